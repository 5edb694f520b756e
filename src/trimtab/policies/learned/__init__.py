"""Heuristics whose scores learned weights correct, within bounds."""
