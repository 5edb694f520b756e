"""Lower bounds on mean completion, and how many deadlines can be met at most."""

from __future__ import annotations

import numpy as np

from trimtab.domain.training_jobs import Ints, Workload
from trimtab.experiments.bounds.instance import Instance
from trimtab.experiments.bounds.pooled_srpt import candidate_weights, pooled_work_s, srpt_completions_s
from trimtab.training.job_models import JobModel


def mean_completion_bound_s(workload: Workload, model: JobModel, type_gpus: Ints) -> float:
    """No schedule has a lower mean completion time. `type_gpus` [types]: GPUs of the cluster.

    The larger of two: every job alone at its fastest; and all GPUs as one machine that serves the least work
    of each job, shortest remaining first (Schrage, 1968). A GPU of a type does as much of that work in a
    second as its weight says, and a job's work is the least of its weighted GPU seconds over types: true for
    any weights, so the best of those of `bounds/pooled_srpt.py` counts.
    """
    run_s, gpu_s = model.least(workload)
    if not np.isfinite(run_s).all() or not len(workload):
        return float("nan")
    there = type_gpus > 0
    at_s = np.zeros(gpu_s[:, there].shape)
    pool = Instance(workload.submit_s, gpu_s[:, there], at_s, type_gpus[there])
    pooled_s = [
        float(srpt_completions_s(workload.submit_s, pooled_work_s(pool, weights)).mean())
        for weights in candidate_weights(pool)
    ]
    return max(float(run_s.mean()), max(pooled_s) - float(workload.submit_s.mean()))


def most_deadlines(workload: Workload, model: JobModel, gpus: int) -> int:
    """No schedule meets more deadlines.

    Of the jobs that could meet theirs alone, those due by any time t fit into the GPU seconds from the first
    submission to t; the smallest of them are counted, and all that are due later.
    """
    run_s, gpu_s = model.least(workload)
    can = np.isfinite(workload.deadline_s) & (workload.submit_s + run_s <= workload.deadline_s)
    due_s, need = workload.deadline_s[can], gpu_s.min(axis=1)[can]
    if not can.any():
        return 0
    first_s, most = float(workload.submit_s[can].min()), int(can.sum())
    for t in np.unique(due_s):
        early = np.sort(need[due_s <= t])
        fits = int(np.searchsorted(np.cumsum(early), gpus * (t - first_s), side="right"))
        most = min(most, fits + int((due_s > t).sum()))
    return most
