"""Experiments: a scenario, its runs, and their comparison.

`scenario` is what is run, `compare` sets policies of any kind of work against each other, `serving` is the
first kind: requests on nodes, and `bounds` says what no policy could have beaten there.
"""
