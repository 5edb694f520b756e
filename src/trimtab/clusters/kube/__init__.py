"""Kubernetes: its API, what its pods need and its nodes have, trimtab as its scheduler or extender (extra `kube`)."""
