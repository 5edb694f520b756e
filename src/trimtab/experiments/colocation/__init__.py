"""Requests and training jobs on one cluster, as a kind of work that ways of sharing are compared on."""
