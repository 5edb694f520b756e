"""Differential privacy (extra `private`): what releases cost, and noise; functions of numbers and arrays."""
