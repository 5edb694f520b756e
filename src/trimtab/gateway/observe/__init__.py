"""Observability: metrics, decision records, logs and spans."""
