"""Policies that act on forecasts."""
