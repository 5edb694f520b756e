"""How far each allocator is from the optimum of small lists of jobs, which HiGHS proves.

Six jobs on four GPUs of one node, all there at the start, in rounds, without restarts and with true
estimates. The optimum is over all schedules of whole rounds, with the numbers of GPUs that jobs asked for
("fixed") or any ("free"). A completion is the number of rounds to the end of the one in which a job finishes.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import highspy
import numpy as np

from trimtab.domain.allocator import JobNeed
from trimtab.domain.training_jobs import Workload, gpu_nodes
from trimtab.domain.training_profiles import ScalingTable
from trimtab.training.allocator_catalogue import allocator_class, allocator_names
from trimtab.training.training_loop import run_allocator
from trimtab.training.truths.table_model import TableTruth

LISTS, JOBS, GPUS, ROUND_S, ROUNDS = 20, 6, 4, 60.0, 16
RATE = np.array([[1.0, 1.8, 2.4, 3.0], [1.0, 1.9, 2.75, 3.6], [1.0, 1.5, 1.55, 1.6]])  # with 1 to 4 GPUs
PROVIDED = {JobNeed.SCALING, JobNeed.WORK_LEFT, JobNeed.DEADLINES, JobNeed.ORACLE, JobNeed.LOSSES}
SPECS = {"chronus": "chronus(term_s=60)"}
MEAN, DUE = "mean completion", "deadlines met"


@cache
def drawn(seed: int, objective: str) -> Workload:
    """A list; deadlines only where they are the objective."""
    rng = np.random.default_rng([seed, 36])
    model, asked = rng.integers(0, len(RATE), JOBS), rng.choice([1, 2, 4], JOBS)
    rounds = rng.uniform(0.5, 3.0, JOBS)  # with the GPUs asked for
    work = rounds * ROUND_S * RATE[model, asked - 1]
    due = ROUND_S * (1 + np.ceil(rounds * rng.uniform(1.0, 4.0, JOBS)))
    one, yes = np.ones(JOBS, np.int64), np.ones(JOBS, np.bool_)
    return Workload(
        name=f"list {seed}",
        job_ids=tuple(map(str, range(JOBS))),
        model_names=("a", "b", "c"),
        submit_s=np.zeros(JOBS),
        deadline_s=due if objective == DUE else np.full(JOBS, np.inf),
        model_idx=model,
        gpus_requested=asked,
        gpus_min=one,
        gpus_max=GPUS * one,
        batch=np.ones(JOBS),
        work=work,
        declared_work=work.copy(),
        duration_s=rounds * ROUND_S,
        priority=np.zeros(JOBS, np.int64),
        tenant_idx=np.zeros(JOBS, np.int64),
        tenant_names=("",),
        preemptible=yes,
        scales=yes,
    )


def scheduled(spec: str, seed: int, objective: str) -> float:
    """Mean completion in rounds from the first one on, or jobs on time, of an allocator."""
    names = tuple("abc")
    table = ScalingTable(np.arange(1, GPUS + 1), names, RATE[None], np.arange(3)[:, None], np.ones(1))
    run = run_allocator(
        spec,
        drawn(seed, objective),
        nodes=gpu_nodes(0, [GPUS]),
        type_names=("gpu",),
        truth=TableTruth(table),
        clock=f"rounds(period_s={ROUND_S:g})",
        round_s=ROUND_S,
    )
    if objective == DUE:
        return float(run.on_time.sum())
    return float(np.ceil((run.finish_s - ROUND_S) / ROUND_S - 1e-6).mean())


@cache
def optimum(seed: int, objective: str, free: bool) -> float:
    """The same of the best schedule: a binary for each job, number of GPUs and round, and for its end."""
    jobs = drawn(seed, objective)
    ways = [list(range(1, GPUS + 1)) if free else [int(g)] for g in jobs.gpus_requested]
    columns = [(j, g, t) for j in range(JOBS) for g in ways[j] for t in range(ROUNDS)]
    n, ends = len(columns), np.arange(JOBS * ROUNDS).reshape(JOBS, ROUNDS)
    job, gpus, at = np.array(columns).T
    rate = RATE[jobs.model_idx[job], gpus - 1] * ROUND_S
    cost = np.zeros(n + ends.size)
    if objective == DUE:
        due = np.minimum(jobs.deadline_s / ROUND_S - 2, ROUNDS - 1).astype(np.int64)
        cost[n + ends[np.arange(JOBS), due]] = -1.0
    else:
        cost[n:] = -1.0 / JOBS
    rows: list[tuple[Any, Any, float]] = []
    for t in range(ROUNDS):
        now = np.flatnonzero(at == t)
        rows.append((now, gpus[now], float(GPUS)))
        for j in range(JOBS):
            rows.append((now[job[now] == j], np.ones((job[now] == j).sum()), 1.0))
            done = np.flatnonzero((job == j) & (at <= t))
            factors = np.append(-rate[done] / jobs.work[j], 1.0 - 1e-9)
            rows.append((np.append(done, n + ends[j, t]), factors, 0.0))
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = n + ends.size, len(rows)
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = cost, np.zeros(len(cost)), np.ones(len(cost))
    lp.row_lower_ = np.full(len(rows), -highspy.kHighsInf)
    lp.row_upper_ = np.array([limit for _, _, limit in rows])
    lp.integrality_ = [highspy.HighsVarType.kInteger] * len(cost)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.append(0, np.cumsum([len(index) for index, _, _ in rows]))
    lp.a_matrix_.index_ = np.concatenate([index for index, _, _ in rows])
    lp.a_matrix_.value_ = np.concatenate([factors for _, factors, _ in rows]).astype(float)
    highs = highspy.Highs()
    for name, value in {"output_flag": False, "threads": 1, "mip_rel_gap": 0.0}.items():
        highs.setOptionValue(name, value)
    highs.passModel(lp)
    highs.run()
    assert highs.getModelStatus() == highspy.HighsModelStatus.kOptimal
    ended = np.asarray(highs.getSolution().col_value)[n:].reshape(JOBS, ROUNDS)[:, -1]
    assert objective == DUE or (ended > 0.5).all(), "a list needs more rounds"
    found = -highs.getInfo().objective_function_value
    return found if objective == DUE else 1.0 + ROUNDS - found


def gaps_of(name: str) -> dict[str, list[float]]:
    """Of one allocator: by objective and optimum, the gap of each list; completion as a fraction."""
    cls, spec = allocator_class(name), SPECS.get(name, name)
    found: dict[str, list[float]] = {}
    for objective in (MEAN, DUE):
        for free in (True, False) if cls.keeps_gangs else (True,):
            gaps = []
            for seed in range(LISTS):
                ours, best = scheduled(spec, seed, objective), optimum(seed, objective, free)
                gaps.append(best - ours if objective == DUE else ours / best - 1.0)
            found[f"{objective}, {'free' if free else 'fixed'}"] = [round(gap, 6) for gap in gaps]
    return found


def all_gaps() -> dict[str, dict[str, list[float]]]:
    """Of every allocator that can run alone on GPUs with speeds from a table."""
    names = [name for name in allocator_names() if allocator_class(name).needs <= PROVIDED]
    return {name: gaps_of(name) for name in names}
