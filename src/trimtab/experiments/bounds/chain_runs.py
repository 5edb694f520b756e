"""Lower bounds on the completion of runs of chains, and of requests beside them.

Completion = finish of the last stage − arrival of the run. A request without stages is a run of one row. Only
rows that every finished run must serve count ("certain" rows): a stage that may be skipped, or replaced by a
default value after a failure, may take no time. Transfers, loads and repeated attempts are left out, as they
only add.
Per run: the stages of a path run one after another, each for no less than its true seconds on its best node
type. So completion ≥ the longest path of certain rows (`critical`).

For all runs: for any weights s_g ≥ 0 of the node types give row i the work w_i = min_g p_ig s_g, and pool all
slots into one machine of speed Σ_g m_g s_g. A schedule serves at most m_g rows at a time on type g, and needs
at least w_i pooled units for row i, so the pooled machine can do the same work in the same intervals, and has
done all work of a run, W_r = Σ w_i, when the run ends or before. Hence no schedule ends runs sooner than the
pooled preemptive machine, and there SRPT has ended the most runs at every moment (Schrage 1968). So the j-th
end of any schedule is no earlier than SRPT's j-th end S_j. It is also no earlier than the j-th smallest
E_(j) of arrival + critical path. Any k finished runs then take in total at least
Σ_{j ≤ k} max(S_j, E_(j)) − Σ of the k latest arrivals.

Two more totals hold for any k runs: the k least critical paths, and for each choice of weights its own S.
Weights that are zero outside the types that serve a class give the fluid bound of that class: work that no
other type can take, over the capacity of the types that can.

Source: Ronald Graham: "Bounds on multiprocessing timing anomalies", SIAM Journal on Applied Mathematics
17(2), 1969 (longest path and work over capacity); Linus Schrage: "A proof of the optimality of the shortest
remaining processing time discipline", Operations Research 16(3), 1968. From memory. The combination is ours.
Cost: O(rows · types · weights + runs · log runs · weights).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.domain.chains import Chains, OnStageFailure
from trimtab.domain.cluster import Cluster
from trimtab.domain.requests import Requests, true_service_s
from trimtab.domain.stage_graph import any_of, in_reverse, inputs_of, longest_of_runs_s, rows_of_stages
from trimtab.experiments.bounds.instance import FloatArray, Instance
from trimtab.experiments.bounds.pooled_srpt import candidate_weights, srpt_completions_s


@dataclass(frozen=True, slots=True, eq=False)
class ChainProblem:
    """Rows of runs on node types, as the bounds read them. Runs that can never finish are left out."""

    arrival_s: FloatArray  # [runs], ascending
    critical_s: FloatArray  # [runs]
    service_s: FloatArray  # [rows, types], inf = not served there
    class_idx: NDArray[np.int64]  # [rows]
    run: NDArray[np.int64]  # [rows]
    slots: NDArray[np.int64]  # [types]


def chain_totals_s(problem: ChainProblem) -> tuple[FloatArray, FloatArray]:
    """Least total completion of any k runs, k = 0 … runs: by critical paths, and by pooled work too."""
    alone_s = np.append(0.0, np.cumsum(np.sort(problem.critical_s)))
    earliest_s = np.sort(problem.arrival_s + problem.critical_s)
    latest_s = np.append(0.0, np.cumsum(problem.arrival_s[::-1]))
    pooled_s = np.zeros_like(alone_s)
    for weights in _weights(problem):
        ends_s = srpt_completions_s(problem.arrival_s, _run_work_s(problem, weights))
        total_s = np.append(0.0, np.cumsum(np.maximum(ends_s, earliest_s))) - latest_s
        pooled_s = np.maximum(pooled_s, total_s)
    return alone_s, pooled_s


def _run_work_s(problem: ChainProblem, weights: FloatArray) -> FloatArray:
    """Seconds that the whole pool takes for each run, [runs]."""
    used = weights > 0.0
    units = np.where(np.isfinite(problem.service_s[:, ~used]).any(axis=1), 0.0, np.inf)
    for g in np.flatnonzero(used):
        units = np.minimum(units, problem.service_s[:, g] * weights[g])
    speed = float((problem.slots * weights).sum())
    return np.bincount(problem.run, units, len(problem.arrival_s)) / speed


def _weights(problem: ChainProblem) -> list[FloatArray]:
    """Weights to try: those of requests, for the rows as requests, and those of each class."""
    zeros = np.zeros_like(problem.service_s)
    found = candidate_weights(Instance(np.zeros(len(zeros)), problem.service_s, zeros, problem.slots))
    for c in np.unique(problem.class_idx):
        mean_s = problem.service_s[problem.class_idx == c].mean(axis=0)
        serves = np.isfinite(mean_s) & (mean_s > 0.0)
        if serves.any():
            found.append(np.where(serves, mean_s[serves].min() / np.where(serves, mean_s, 1.0), 0.0))
    different = {tuple(np.round(weights, 6)): weights for weights in found}
    return list(different.values())


def chain_problem(cluster: Cluster, requests: Requests, chains: Chains) -> ChainProblem | None:
    """The problem of these requests; None if no run can finish."""
    is_run = chains.template_idx >= 0
    certain, n = certain_rows(chains), len(requests)
    plain = np.flatnonzero(~is_run)
    class_idx = np.concatenate([requests.work["class_idx"][plain], chains.work["class_idx"][certain]])
    service_s = np.concatenate(
        [
            true_service_s(cluster, Requests(requests.work[plain], requests.truth[plain])),
            true_service_s(cluster, Requests(chains.work[certain], chains.truth[certain])),
        ]
    )
    slots = np.bincount(cluster.type_idx, weights=cluster.slots, minlength=cluster.n_types).astype(np.int64)
    service_s[:, slots == 0] = np.inf
    run = np.concatenate([plain, np.flatnonzero(is_run)[run_of_rows(chains)[certain]]])
    critical_s = np.zeros(n)
    critical_s[plain] = service_s[: len(plain)].min(axis=1)
    seconds = np.zeros(len(chains.work))
    seconds[certain] = service_s[len(plain) :].min(axis=1)
    critical_s[is_run] = longest_of_runs_s(chains, seconds)
    kept = np.flatnonzero(np.isfinite(critical_s))
    if not kept.size:
        return None
    kept = kept[np.argsort(requests.work["arrival_s"][kept], kind="stable")]
    number = np.full(n, -1)
    number[kept] = np.arange(len(kept))
    rows = number[run] >= 0
    types = np.isfinite(service_s[rows]).any(axis=0)
    arrival_s = requests.work["arrival_s"][kept]
    return ChainProblem(
        arrival_s - arrival_s[0],
        critical_s[kept],
        service_s[rows][:, types],
        class_idx[rows].astype(np.int64),
        number[run[rows]],
        slots[types],
    )


def run_of_rows(chains: Chains) -> NDArray[np.int64]:
    """Number of the run of each row among all runs, [rows]."""
    run = np.zeros(len(chains.work), np.int64)
    for _, runs, stages in rows_of_stages(chains):
        for here in stages.values():
            run[here.rows] = runs[here.run]
    return run


def certain_rows(chains: Chains) -> NDArray[np.bool_]:
    """Rows that every run that finishes must serve, [rows].

    Such a row is not skipped, its failure fails the run, and it reads nothing or the output of a certain row.
    """
    certain = np.zeros(len(chains.work), np.bool_)
    must = chains.templates.stages["on_failure"] == OnStageFailure.FAIL
    for template, _, stages in rows_of_stages(chains):
        for stage in reversed(in_reverse(chains.templates, template)):
            here, inputs = stages[stage], inputs_of(chains.templates, stage)
            is_fed = np.full(len(here.rows), not inputs)
            for before, flow in inputs:
                is_fed |= any_of(here, stages[before], flow, certain)
            certain[here.rows] = is_fed & must[stage] & ~chains.is_skipped[here.rows]
    return certain
