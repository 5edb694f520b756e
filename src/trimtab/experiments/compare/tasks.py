"""One task of a comparison: build the requests of one seed and load, run policies on them."""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trimtab.domain.decision import Reason
from trimtab.engine.records import records_of
from trimtab.engine.simulator import run
from trimtab.experiments.bounds import Bound, bound_of, distance_frac
from trimtab.experiments.request_table import request_table
from trimtab.experiments.scenario import Scenario
from trimtab.experiments.scenario.build import RunInputs, build, scenario_workload
from trimtab.experiments.scenario.trace_rows import stamp_of
from trimtab.experiments.serving.curves import BINS, Curves, curves_of
from trimtab.experiments.serving.warnings import MOST_NAMED
from trimtab.metrics import compute
from trimtab.policies import PolicySpec, canonical, find

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, slots=True)
class Task:
    """Work for one process. `load` None = as the scenario has it."""

    scenario: Scenario
    seed: int
    load: float | None
    policies: tuple[PolicySpec, ...]
    mode: str = "auto"
    with_bound: bool = False
    with_curves: bool = False
    records_folder: Path | None = None


@dataclass(frozen=True, slots=True)
class RunResult:
    """One policy on one seed and load."""

    policy: str
    seed: int
    load: float | None
    metrics: dict[str, float]
    distance_frac: float  # mean completion over the lower bound, less 1; nan where no bound holds
    curves: Curves | None
    loop_s: float  # what the run itself took
    fits_no_node: tuple[int, ...]  # the first requests that fit no node
    n_fits_no_node: int


@dataclass(frozen=True, slots=True)
class BoundResult:
    """Lower bound of one seed, for all requests that can be served."""

    seed: int
    completion_mean_s: float
    method: str
    assumptions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What a task brings back."""

    runs: tuple[RunResult, ...]
    bound: BoundResult | None
    offered_load: float
    n_requests: int


@functools.lru_cache(maxsize=1)
def _built(scenario: Scenario, seed: int, load: float | None, _: object) -> RunInputs:
    return build(scenario, seed, load)


@functools.lru_cache(maxsize=1)
def _bound_of(built: RunInputs) -> Bound | None:
    """Kept, as the next task may be another policy on the same requests."""
    return bound_of(built.cluster, built.requests, built.options)


def run_task(task: Task) -> TaskResult:
    """Run every policy of a task on the very same requests."""
    trace = task.scenario.workload.trace
    built = _built(task.scenario, task.seed, task.load, None if trace is None else stamp_of(trace))
    bound = _bound_of(built) if task.with_bound else None
    edges_s = _shared_edges(built) if task.with_curves else None
    runs = tuple(_run_one(task, built, spec, bound, edges_s) for spec in task.policies)
    return TaskResult(runs, _bound_result(task.seed, bound), built.offered_load, len(built.requests))


def _shared_edges(built: RunInputs) -> np.ndarray:
    """Time bins that all policies of a task share: the arrivals, and a tenth more for the last to finish."""
    arrival_s = built.requests.work["arrival_s"]
    span_s = max(1e-9, float(arrival_s[-1] - arrival_s[0]))
    return np.linspace(arrival_s[0], arrival_s[0] + 1.1 * span_s, BINS + 1)


def _bound_result(seed: int, bound: Bound | None) -> BoundResult | None:
    return None if bound is None else BoundResult(seed, bound.mean_s, bound.method, bound.assumptions)


def _run_one(
    task: Task, built: RunInputs, spec: PolicySpec, bound: Bound | None, edges_s: np.ndarray | None
) -> RunResult:
    policy, order = find(spec)
    declared = scenario_workload(policy, task.scenario, task.seed, task.load)
    begun_s = time.perf_counter()
    driver = run(
        built.cluster,
        built.requests,
        built.options,
        policy,
        order,
        seed=task.seed,
        mode=task.mode,
        declared=declared,
    )
    loop_s = time.perf_counter() - begun_s
    records = records_of(driver, built.cluster, built.requests, built.slo_s)
    if task.records_folder is not None:
        path = _record_file(task.records_folder, canonical(spec), task.seed)
        _write_records(path, request_table(records, built.cluster, built.requests))
    metrics = compute(records)
    unfit = np.flatnonzero(records.requests.reason == Reason.FITS_NO_NODE)
    finished = int(records.requests.finished.sum())
    return RunResult(
        policy=canonical(spec),
        seed=task.seed,
        load=task.load,
        metrics=metrics,
        distance_frac=distance_frac(metrics["completion_mean_s"], finished, bound),
        curves=curves_of(records, built.cluster, edges_s) if task.with_curves else None,
        loop_s=loop_s,
        fits_no_node=tuple(unfit[:MOST_NAMED].tolist()),
        n_fits_no_node=len(unfit),
    )


def file_name(policy: str) -> str:
    """A policy's name as a file name; with a hash where a character had to go, lest two names become one."""
    name = "".join(c if c.isalnum() or c in "-+._=," else "_" for c in policy)
    return name if name == policy else f"{name}-{hashlib.sha256(policy.encode()).hexdigest()[:6]}"


def record_files(task: Task) -> list[Path]:
    """Where a task writes its request records, a file per policy; empty where it writes none."""
    if task.records_folder is None:
        return []
    return [_record_file(task.records_folder, canonical(spec), task.seed) for spec in task.policies]


def _record_file(folder: Path, policy: str, seed: int) -> Path:
    return folder / file_name(policy) / f"seed-{seed}.parquet"


def _write_records(path: Path, table: pl.DataFrame) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table.write_parquet(path.with_suffix(".part"), compression="zstd")
    path.with_suffix(".part").replace(path)


def plan_tasks(
    scenario: Scenario,
    policies: Sequence[PolicySpec],
    seeds: Sequence[int],
    sweep_loads: Sequence[float],
    *,
    mode: str,
    together: bool,
    records_folder: Path | None,
) -> list[Task]:
    """Tasks of a comparison: every seed at the scenario's own load, then at the loads of the sweep.

    `together`: all policies of a seed in one task, which builds the requests once; else one task a policy.
    """
    groups = [tuple(policies)] if together else [(p,) for p in policies]
    tasks = []
    for load in (None, *sweep_loads):
        for seed in seeds:
            for i, group in enumerate(groups):
                main = load is None
                tasks.append(
                    Task(
                        scenario,
                        seed,
                        load,
                        group,
                        mode,
                        with_bound=main and (i == 0 or not together),
                        with_curves=main and seed == seeds[0],
                        records_folder=records_folder if main else None,
                    )
                )
    return tasks
