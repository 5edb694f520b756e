"""Policies that follow the place of data: models and adapters, prompts in caches, zones and links."""
