"""What is scheduled, on what, and what was decided: pure data, and the contract of a policy."""
