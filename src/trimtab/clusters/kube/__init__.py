"""Kubernetes: its API, nodes and pods, and trimtab as its scheduler or extender (extra `kube`)."""
