"""Policies in the gateway over real backends, beside what the simulator predicted."""
