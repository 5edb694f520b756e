"""Differential privacy (extra `private`): what releases cost, noise, and the ledger of what was spent."""
