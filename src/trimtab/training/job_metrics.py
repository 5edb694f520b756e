"""The metrics of a run of training jobs: definitions, and their computation from records."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from trimtab.domain.training_jobs import Floats
from trimtab.metrics import Metric
from trimtab.metrics.imbalance import jain_index
from trimtab.metrics.statistics import mean, percentiles
from trimtab.training.job_records import JobRecords, Outcome

UNFAIR_FROM = 1.05  # of rho, as in Shockwave's evaluation

_ALL: Final = (
    Metric("completion_mean_s", "s", "Mean job completion time (JCT): finish − submission.", "lower", True),
    Metric("completion_p50_s", "s", "Median JCT.", "lower"),
    Metric("completion_p99_s", "s", "99th percentile of JCT.", "lower", True),
    Metric("queueing_mean_s", "s", "Mean time from submission to the first GPUs.", "lower"),
    Metric("makespan_s", "s", "Last finish minus first submission.", "lower", True),
    Metric(
        "deadline_satisfied_frac",
        "frac",
        "Of jobs with a deadline, the share finished by it; rejected jobs count as missed.",
        "higher",
        True,
    ),
    Metric(
        "deadline_kept_frac",
        "frac",
        "Of jobs with a deadline, the share that the policy promised to finish by it, and did; nan if it "
        "promises nothing.",
        "higher",
    ),
    Metric(
        "rho_mean",
        "1",
        "Mean finish-time fairness, static: JCT ÷ (run time alone × max(1, jobs of the trace ÷ GPUs)).",
        "lower",
    ),
    Metric("rho_max", "1", "The worst of these ratios.", "lower", True),
    Metric("rho_unfair_frac", "frac", "Share of finished jobs whose static ratio is above 1.05.", "lower"),
    Metric(
        "rho_contention_mean",
        "1",
        "Mean finish-time fairness, by contention: with the mean number of jobs active meanwhile.",
        "lower",
    ),
    Metric(
        "rho_isolated_mean",
        "1",
        "Mean finish-time fairness, isolated (Sia): JCT ÷ run time alone on GPUs ÷ mean active jobs.",
        "lower",
    ),
    Metric("rho_isolated_max", "1", "The worst of these ratios.", "lower"),
    Metric(
        "rho_isolated_unfair_frac", "frac", "Share of finished jobs whose isolated ratio is above 1.", "lower"
    ),
    Metric("restarts_mean", "1", "Mean number of changes of a job's GPUs after its start.", "lower", True),
    Metric("restart_frac", "frac", "Share of GPU time spent in restarts.", "lower"),
    Metric("lost_frac", "frac", "Share of GPU time whose work was lost in failures of nodes.", "lower"),
    Metric("gpu_hours", "h", "GPU hours held by jobs.", "lower"),
    Metric(
        "utilisation_allocated_mean_frac",
        "frac",
        "Mean share of GPUs held by jobs, from the first submission to the last finish.",
        "higher",
        True,
    ),
    Metric(
        "shared_frac", "frac", "Share of the GPU time held in which two jobs had the same GPUs.", "higher"
    ),
    Metric(
        "fragmentation_mean_frac", "frac", "Mean share of GPUs that were free while jobs waited.", "lower"
    ),
    Metric(
        "jain_tenant_gpu_hours",
        "1",
        "Jain's index over tenants of GPU hours held; nan with one tenant.",
        "higher",
    ),
    Metric(
        "queue_jain_share",
        "1",
        "Jain's index over queues of GPU time held ÷ fair share, at most 1 each; nan without queues.",
        "higher",
    ),
    Metric(
        "queue_below_frac",
        "frac",
        "Share of the time with jobs in which one that fits into the guarantee waited; the worst queue.",
        "lower",
        True,
    ),
    Metric(
        "queue_completion_worst_s",
        "s",
        "Mean JCT of the queue in which it is longest; nan without queues.",
        "lower",
    ),
    Metric(
        "queue_preempted", "1", "Jobs that lost their GPUs to a queue that took back its guarantee.", "lower"
    ),
    Metric("decision_mean_s", "s", "Mean time of a decision of the policy.", "lower", is_timed=True),
    Metric("decision_p95_s", "s", "95th percentile of the time of a decision.", "lower", is_timed=True),
    Metric("finished_frac", "frac", "Share of jobs that finished.", "higher"),
    Metric("stopped_frac", "frac", "Share of jobs that were stopped early, as having learned enough.", None),
    Metric("rejected_frac", "frac", "Share of jobs that were rejected.", "lower", True),
    Metric("unfinished_frac", "frac", "Share of jobs that were neither finished nor rejected.", "lower"),
    Metric("service_slowdown_mean", "1", "Mean latency of online services over that alone.", "lower"),
    Metric(
        "service_over_limit_frac", "frac", "Share of online services' time with a latency above 1.2.", "lower"
    ),
    Metric("usd", "USD", "Price of the GPU hours held, at the price of their nodes.", "lower"),
)
JOB_METRICS: Final[dict[str, Metric]] = {metric.name: metric for metric in _ALL}


def job_metrics(records: JobRecords) -> dict[str, float]:
    """All metrics by name; nan where undefined."""
    workload, done, ends = records.workload, records.finished, records.is_job
    jct_s = records.finish_s[done] - workload.submit_s[done]
    rho = _rho(records, np.full(len(workload), float(ends.sum())))
    contention = _rho(records, records.mean_active)
    isolated = _isolated(records)
    span_s = float(records.finish_s[done].max() - workload.submit_s.min()) if done.any() else math.nan
    timed = np.isfinite(workload.deadline_s)
    gpu_s = float(records.gpu_s.sum())
    gpus = np.divide(records.gpu_s, records.run_s, out=np.zeros(len(workload)), where=records.run_s > 0)
    started = ends & ~np.isnan(records.start_s)
    served_s = float(records.served_s.sum())
    p50_s, p99_s = percentiles(jct_s, 50, 99)
    return {
        "completion_mean_s": mean(jct_s),
        "completion_p50_s": p50_s,
        "completion_p99_s": p99_s,
        "queueing_mean_s": mean((records.start_s - workload.submit_s)[started]),
        "makespan_s": span_s,
        "deadline_satisfied_frac": mean(records.on_time[timed]),
        "deadline_kept_frac": mean((records.on_time & records.admitted)[timed])
        if records.admitted.any()
        else math.nan,
        "rho_mean": mean(rho),
        "rho_max": float(rho.max()) if len(rho) else math.nan,
        "rho_unfair_frac": mean(rho > UNFAIR_FROM),
        "rho_contention_mean": mean(contention),
        "rho_isolated_mean": mean(isolated),
        "rho_isolated_max": float(isolated.max()) if len(isolated) else math.nan,
        "rho_isolated_unfair_frac": mean(isolated > 1.0),
        "restarts_mean": mean(records.restarts[started]),
        "restart_frac": float((records.restart_s * gpus).sum()) / gpu_s if gpu_s > 0 else math.nan,
        "lost_frac": float(records.lost_gpu_s.sum()) / gpu_s if gpu_s > 0 else math.nan,
        "gpu_hours": gpu_s / 3600.0,
        "utilisation_allocated_mean_frac": gpu_s / (records.total_gpus * span_s),
        "shared_frac": float(records.shared_gpu_s.sum()) / gpu_s if gpu_s > 0 else math.nan,
        "fragmentation_mean_frac": _fragmentation(records),
        "jain_tenant_gpu_hours": _jain_tenants(records),
        **_queue_metrics(records),
        "decision_mean_s": mean(records.spent_s),
        "decision_p95_s": percentiles(records.spent_s, 95)[0],
        "finished_frac": mean(done[ends]),
        "stopped_frac": mean(records.outcome[ends] == Outcome.STOPPED),
        "rejected_frac": mean(records.outcome[ends] == Outcome.REJECTED),
        "unfinished_frac": mean(records.outcome[ends] == Outcome.UNFINISHED),
        "service_slowdown_mean": float(records.slowed_s.sum()) / served_s if served_s > 0 else math.nan,
        "service_over_limit_frac": float(records.over_limit_s.sum()) / served_s if served_s > 0 else math.nan,
        "usd": gpu_s / 3600.0 * records.usd_per_gpu_hour,
    }


def _rho(records: JobRecords, contenders: Floats) -> Floats:
    """JCT ÷ (run time alone × max(1, contenders ÷ GPUs)) of finished jobs whose run time is known."""
    workload = records.workload
    known = records.finished & (workload.duration_s > 0)
    jct_s = records.finish_s[known] - workload.submit_s[known]
    crowd = np.maximum(contenders[known] / records.total_gpus, 1.0)
    return np.asarray(jct_s / (workload.duration_s[known] * crowd), np.float64)


def _isolated(records: JobRecords) -> Floats:
    """JCT ÷ run time alone on a fair share, of finished jobs of which it is known."""
    if records.isolated_s is None:
        return np.zeros(0)
    known = records.finished & (records.isolated_s > 0) & np.isfinite(records.isolated_s)
    jct_s = records.finish_s[known] - records.workload.submit_s[known]
    return np.asarray(jct_s / records.isolated_s[known], np.float64)


def _jain_tenants(records: JobRecords) -> float:
    n = len(records.workload.tenant_names)
    held: Floats = np.bincount(records.workload.tenant_idx, records.gpu_s, n).astype(np.float64)
    return jain_index(held) if n > 1 else math.nan


def _queue_metrics(records: JobRecords) -> dict[str, float]:
    names = ("queue_jain_share", "queue_below_frac", "queue_completion_worst_s", "queue_preempted")
    queues = records.queues
    if queues is None:
        return dict.fromkeys(names, math.nan)
    is_used = queues.fair_gpu_s > 0
    held_gpu_s = np.bincount(queues.leaf_of[records.workload.tenant_idx], records.gpu_s, len(queues.paths))
    kept = np.minimum(held_gpu_s[is_used] / queues.fair_gpu_s[is_used], 1.0)
    below = queues.below_s[is_used] / queues.wanting_s[is_used]
    each = [figures["completion_mean_s"] for figures in queue_figures(records).values()]
    finite = [value for value in each if not math.isnan(value)]
    worst_s = max(finite, default=math.nan)
    values = jain_index(kept), float(below.max(initial=0.0)), worst_s, float(queues.preempted.sum())
    return dict(zip(names, values, strict=True))


def queue_figures(records: JobRecords) -> dict[str, dict[str, float]]:
    """Leaf → its figures: jobs, JCT, queueing, GPUs held, guaranteed and fair, time below, preemptions."""
    queues, workload, done = records.queues, records.workload, records.finished
    if queues is None:
        return {}
    leaf, span_s = queues.leaf_of[workload.tenant_idx], max(records.end_s, 1e-9)
    found: dict[str, dict[str, float]] = {}
    for k, path in enumerate(queues.paths):
        jct_s = (records.finish_s - workload.submit_s)[done & (leaf == k)]
        started = (leaf == k) & ~np.isnan(records.start_s)
        found[path] = {
            "jobs": float((leaf == k).sum()),
            "completion_mean_s": mean(jct_s),
            "completion_p99_s": percentiles(jct_s, 99)[0],
            "queueing_mean_s": mean((records.start_s - workload.submit_s)[started]),
            "held_gpus": float(records.gpu_s[leaf == k].sum()) / span_s,
            "guaranteed_gpus": float(queues.guaranteed_gpu_s[k]) / span_s,
            "fair_gpus": float(queues.fair_gpu_s[k]) / span_s,
            "below_frac": float(queues.below_s[k] / queues.wanting_s[k]) if queues.wanting_s[k] else 0.0,
            "preempted": float(queues.preempted[k]),
        }
    return found


def _fragmentation(records: JobRecords) -> float:
    if len(records.decided_s) < 2:
        return math.nan
    lasts_s = np.diff(np.append(records.decided_s, records.end_s))
    free = np.where(records.waiting > 0, records.total_gpus - records.used_gpus, 0)
    total = float(lasts_s.sum()) * records.total_gpus
    return float((free * lasts_s).sum()) / total if total > 0 else math.nan
