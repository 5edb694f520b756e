"""A real control plane of Kubernetes on this machine, with hollow nodes or a real one; and one in memory."""
