"""Live hosts: the shared event loop on a wall clock or a virtual clock, in front of backends."""
