"""Compares policies on the same work: several seeds in parallel processes, confidence intervals, a bound.

`kind` is the interface of a kind of work. `run_comparison` plans the `tasks`. `task_pool` runs them in
processes within the limits of `experiments.machine`, `workfolder` keeps what is finished, `pace` says how
long it takes. `comparison` holds the results.
"""

from trimtab.experiments.compare.comparison import Comparison, PolicyResult, SweepPoint
from trimtab.experiments.compare.kind import Curves, FigureChoice, Kind, LowerBound
from trimtab.experiments.compare.pace import PlannedRuns
from trimtab.experiments.compare.run_comparison import Interrupted, run_comparison
from trimtab.experiments.compare.task_pool import RunsDone

__all__ = [
    "Comparison",
    "Curves",
    "FigureChoice",
    "Interrupted",
    "Kind",
    "LowerBound",
    "PlannedRuns",
    "PolicyResult",
    "RunsDone",
    "SweepPoint",
    "run_comparison",
]
