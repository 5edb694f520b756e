"""The subjects of scheduling, the places, and the decisions: pure data, and the contract of a policy."""
