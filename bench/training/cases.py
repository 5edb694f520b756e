"""A case: a workload, the metric by which it is judged, and the allocators that are run on it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from trimtab.domain.training_jobs import Floats
from trimtab.metrics.statistics import student_t95
from trimtab.training.job_metrics import job_metrics
from trimtab.training.job_records import JobRecords

OURS = "weighted-goodput"


@dataclass(frozen=True)
class Case:
    """Attributes:
    metrics: names of metrics, the headline first.
    seeds: published lists of jobs, or seeds of generated ones, or of shifted submissions.
    oracles: allocators that are told the truth; they stand beside the others.
    bound: of the headline metric for a seed; None = none is known.
    """

    name: str
    metrics: tuple[str, ...]
    seeds: tuple[int, ...]
    rivals: tuple[str, ...]
    run: Callable[[str, int], JobRecords]
    oracles: tuple[str, ...] = ()
    bound: Callable[[str, int], float] | None = None
    note: str = ""


BESIDE = ("completion_p99_s", "makespan_s", "rho_max")  # what a good mean may hide
HIGHER = ("deadline_satisfied_frac",)


def measured(records: JobRecords, metrics: tuple[str, ...]) -> dict[str, float]:
    found = job_metrics(records)
    names = (*metrics, "completion_mean_s", *BESIDE, "restarts_mean")
    chosen = {name: found[name] for name in names if not math.isnan(found[name])}
    return chosen | {"unfinished_frac": found["unfinished_frac"], "decision_mean_s": found["decision_mean_s"]}


def paired(ours: Floats, theirs: Floats) -> tuple[float, float]:
    """Mean of the difference ours − theirs over seeds, and half of its 95 % interval; nan for one seed."""
    differences = np.asarray(ours) - np.asarray(theirs)
    n = len(differences)
    if n < 2:
        return float(differences.mean()), math.nan
    return float(differences.mean()), student_t95(n - 1) * float(differences.std(ddof=1)) / math.sqrt(n)
