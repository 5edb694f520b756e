"""Placement by a policy of the catalogue in a cluster system that keeps nodes and work itself.

What Kubernetes and Slurm have in common: what nodes have left, the policy's choice, its regret, the trace.
"""
