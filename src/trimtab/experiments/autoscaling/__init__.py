"""Pools of nodes that grow and shrink while they serve: what each rule costs, and what it serves in time."""
