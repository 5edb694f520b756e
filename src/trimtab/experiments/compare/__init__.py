"""Compares policies on the same work: several seeds in parallel processes, confidence intervals, a bound.

`kind` is what a comparison asks of a kind of work, and all it knows of it. `run_comparison` plans the
`tasks`, which `task_pool` runs in processes within the limits of `experiments.machine`; `comparison` is what
they
found, and `curves` what figures draw of a run.
"""

from trimtab.experiments.compare.comparison import Comparison, PolicyResult, SweepPoint
from trimtab.experiments.compare.curves import Curves
from trimtab.experiments.compare.kind import FigureChoice, Kind, LowerBound
from trimtab.experiments.compare.run_comparison import run_comparison

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
