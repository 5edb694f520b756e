"""Helpers that several policies share. A module here defines no policy."""
