"""Endpoint picker: Envoy asks for each request which backend serves it (extra `envoy`)."""
