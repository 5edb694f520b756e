"""The catalogue of allocators: one file for each published algorithm."""
