"""Routers of requests to language models: they read what continuous batching makes of a node's load."""
