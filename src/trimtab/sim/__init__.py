"""The simulator: the shared loop on virtual time."""
