"""Tenants: who they are, what they may do, what they used, and what replicas share of it."""
