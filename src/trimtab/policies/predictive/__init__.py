"""Policies that act on what is forecast."""
