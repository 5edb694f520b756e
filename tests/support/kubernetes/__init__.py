"""A real control plane of Kubernetes on this machine, with hollow nodes: no kubelet, no containers."""
