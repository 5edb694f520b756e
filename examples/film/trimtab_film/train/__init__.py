"""Trains the models of the demonstration anew."""
