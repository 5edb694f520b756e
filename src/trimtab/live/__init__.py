"""Live hosts: the shared loop on a wall clock or a virtual one, in front of backends."""
