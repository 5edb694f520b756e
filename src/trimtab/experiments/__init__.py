"""Experiments: a scenario, its runs, and their comparison.

`scenario` defines the runs. `compare` compares policies on any kind of work. `serving` is the first kind:
requests on nodes. `bounds` computes lower bounds that no policy can beat there. `curves` holds the data of
figures, `machine` the limits of this machine.
"""
