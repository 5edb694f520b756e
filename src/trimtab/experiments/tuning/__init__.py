"""Parameters of a policy, searched on a workload of one's own and judged on parts not seen before."""

from trimtab.experiments.tuning.objective import Goal
from trimtab.experiments.tuning.tuning import Change, Trial, Tuning, tune_policy

__all__ = ["Change", "Goal", "Trial", "Tuning", "tune_policy"]
