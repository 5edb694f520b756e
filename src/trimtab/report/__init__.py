"""Presents results: terminal tables, interactive figures, a self-contained page, notebooks."""
