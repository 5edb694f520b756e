"""Serving requests on nodes: single runs, their figures and warnings, and replays of recordings."""
