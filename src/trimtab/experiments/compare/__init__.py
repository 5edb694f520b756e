"""Compares policies on the same work: several seeds in parallel processes, confidence intervals, a bound.

`run_comparison` plans the `tasks`, which `task_pool` runs in processes within the limits of the `machine`;
`comparison` is what they found.
"""

from trimtab.experiments.compare.comparison import Comparison, PolicyResult, SweepPoint
from trimtab.experiments.compare.run_comparison import compare

__all__ = ["Comparison", "PolicyResult", "SweepPoint", "compare"]
