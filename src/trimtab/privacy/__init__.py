"""Differential privacy (extra `private`): what releases cost, and noise; pure functions of numbers, arrays."""
