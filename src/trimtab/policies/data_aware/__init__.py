"""Policies that follow where data is: models and adapters, prompts in caches, zones and links."""
