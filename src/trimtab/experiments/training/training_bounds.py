"""Lower bounds on mean completion, and how many deadlines can be met at most."""

from __future__ import annotations

import numpy as np
import polars as pl

from trimtab.domain.training_jobs import Floats, Ints, Workload
from trimtab.experiments.bounds.instance import Instance
from trimtab.experiments.bounds.pooled_srpt import candidate_weights, pooled_work_s, srpt_completions_s
from trimtab.experiments.compare.kind import BINS, QUANTILES, ROWS, Curves
from trimtab.training.job_models import JobModel
from trimtab.training.job_records import JobRecords, Outcome


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


def edges_of(records: JobRecords, offered_load: float = 0.0) -> Floats:
    """A time axis that does not depend on the policy.

    It holds the submissions and half as long again, or a quarter more than all the work would take on the
    whole cluster, if that is longer.
    """
    submit_s = records.workload.submit_s
    span_s = max(float(submit_s[-1] - submit_s[0]), 1e-9)
    return np.linspace(submit_s[0], submit_s[0] + max(1.5, 1.25 * offered_load) * span_s, BINS + 1)


def curves_of_jobs(records: JobRecords, edges_s: Floats) -> Curves:
    """Curves of a run. Rows of the chart are jobs by submission; colour = GPUs held."""
    done = records.finished
    jct_s = records.finish_s[done] - records.workload.submit_s[done]
    frac = np.linspace(0.0, 1.0, QUANTILES)
    occupied = gpus_over_time(records, edges_s)
    top = max(float(occupied.max(initial=0.0)), 1e-9)
    row_of = np.arange(len(occupied)) * min(ROWS, len(occupied)) // max(len(occupied), 1)
    rows = np.zeros((int(row_of.max(initial=-1)) + 1, len(edges_s) - 1))
    np.maximum.at(rows, row_of, occupied / top)
    ids = records.workload.job_ids
    first = np.unique(row_of, return_index=True)[1]
    held_frac = np.minimum(occupied.sum(axis=0) / records.total_gpus, 1.0)  # two jobs may share GPUs
    return Curves(
        quantile_frac=frac,
        completion_s=np.quantile(jct_s, frac) if len(jct_s) else np.full(QUANTILES, np.nan),
        edges_s=edges_s,
        queue_length=_binned(records.decided_s, records.waiting.astype(np.float64), records.end_s, edges_s),
        utilisation_frac=rows,
        row_names=tuple(ids[i] for i in first),
        rows_most=top,
        rows_unit="GPUs",
        series={
            "allocated_frac": held_frac,
            "goodput_frac": goodput_over_time(records, edges_s),
        },
    )


def goodput_over_time(records: JobRecords, edges_s: Floats) -> Floats:
    """Work done in each bin over the GPU seconds of the cluster, [bins]; linear between decisions."""
    if not len(records.decided_s):
        return np.zeros(len(edges_s) - 1)
    workload = records.workload
    alone_gpu_s = np.nan_to_num(workload.duration_s * workload.gpus_requested)
    times_s = np.append(records.decided_s, max(records.end_s, records.decided_s[-1]))
    done_gpu_s = np.append(records.done_gpu_s, alone_gpu_s[records.finished].sum())
    done: Floats = np.diff(np.interp(edges_s, times_s, np.maximum.accumulate(done_gpu_s)))
    return done / (np.diff(edges_s) * records.total_gpus)


def gpus_over_time(records: JobRecords, edges_s: Floats) -> Floats:
    """Mean GPUs of each job in each bin, [jobs, bins]."""
    n = len(records.workload)
    gpus = np.zeros((n, len(edges_s) - 1))
    times_s = np.append(records.decided_s, records.end_s)
    order = np.lexsort((np.arange(len(records.change_job)), records.change_job))
    job, at = records.change_job[order], times_s[records.change_decision[order]]
    held = records.change_gpus[order].astype(np.float64)
    last = np.append(job[1:] != job[:-1], True) if len(job) else np.zeros(0, np.bool_)
    until = np.append(at[1:], records.end_s) if len(job) else at
    ends_s = np.where(np.isnan(records.finish_s), records.end_s, records.finish_s)
    until = np.minimum(np.where(last, records.end_s, until), ends_s[job])
    for j, begin_s, end_s, count in zip(job, at, until, held, strict=True):
        if count > 0 and end_s > begin_s:
            overlap = np.minimum(edges_s[1:], end_s) - np.maximum(edges_s[:-1], begin_s)
            gpus[j] += count * np.maximum(overlap, 0.0)
    gpus /= np.diff(edges_s)
    return gpus


def _binned(at_s: Floats, values: Floats, end_s: float, edges_s: Floats) -> Floats:
    """Mean over each bin of a step function."""
    if not len(at_s):
        return np.zeros(len(edges_s) - 1)
    times_s = np.append(at_s, max(end_s, at_s[-1]))
    area = np.append(0.0, np.cumsum(values * np.diff(times_s)))
    binned: Floats = np.diff(np.interp(edges_s, times_s, area)) / np.diff(edges_s)
    return binned


def job_table(records: JobRecords) -> pl.DataFrame:
    """One row per job."""
    workload = records.workload
    return pl.DataFrame(
        {
            "job_id": list(workload.job_ids),
            "model": [workload.model_names[m] for m in workload.model_idx],
            "tenant": [workload.tenant_names[t] for t in workload.tenant_idx],
            "submit_s": workload.submit_s,
            "deadline_s": workload.deadline_s,
            "gpus_requested": workload.gpus_requested,
            "outcome": [Outcome(o).name.lower() for o in records.outcome],
            "reason": [records.reasons.get(i, "") for i in range(len(workload))],
            "start_s": records.start_s,
            "finish_s": records.finish_s,
            "jct_s": records.finish_s - workload.submit_s,
            "gpu_s": records.gpu_s,
            "run_s": records.run_s,
            "restart_s": records.restart_s,
            "restarts": records.restarts,
        }
    )
