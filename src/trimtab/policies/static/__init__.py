"""Policies that do not look at load, or only at a bound on it."""
