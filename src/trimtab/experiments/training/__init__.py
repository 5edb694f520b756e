"""Training jobs as a kind of work that policies are compared on."""
