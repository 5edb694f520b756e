"""Compares policies on the same work: several seeds in parallel processes, confidence intervals, a bound.

`kind` is the interface of a kind of work. `run_comparison` plans the `tasks`. `task_pool` runs them in
processes within the limits of `experiments.machine`. `comparison` holds the results.
"""

from trimtab.experiments.compare.comparison import Comparison, PolicyResult, SweepPoint
from trimtab.experiments.compare.kind import FigureChoice, Kind, LowerBound
from trimtab.experiments.compare.run_comparison import run_comparison
from trimtab.experiments.curves import Curves

__all__ = [
    "Comparison",
    "Curves",
    "FigureChoice",
    "Kind",
    "LowerBound",
    "PolicyResult",
    "SweepPoint",
    "run_comparison",
]
