"""Draws scenes. Only training uses it: the chain's pictures come from the picture model."""
