"""Slurm by its own programs: trimtab as the scheduler of a partition, its traces, its nodes as a host."""
