"""Traces that may be shared: synthetic ones, from noisy statistics under differential privacy.

trace → `promise.check` → `release` (all that leaves) → `synthesis`; only `release` sees the original.
"""
