"""Experiments: a scenario, its runs, and their comparison.

`scenario` is what is run, `serving` runs requests on its nodes, `compare` does that for many policies and
seeds, and `bounds` says what no policy could have beaten. `outcome` reads a finished run.
"""
