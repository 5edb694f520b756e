"""Orders: the sort keys of waiting work."""
