"""Policies that follow the present load of the nodes."""
