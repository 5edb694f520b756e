"""One task of a comparison: build the inputs of one seed and load, run policies on them."""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from trimtab.experiments.compare.kind import AnyKind, Inputs, LowerBound, PolicySpec, Settings
from trimtab.experiments.curves import Curves

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, slots=True)
class Task:
    """Work for one process. `load` None = the settings' load."""

    kind: AnyKind
    settings: Settings
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
    distance_frac: float  # the objective over the lower bound, less 1; nan where no bound holds
    curves: Curves | None
    loop_s: float  # what the run itself took
    remarks: Mapping[str, Any]  # what the kind's notes must know
    batch_ci95: Mapping[str, float]  # half-widths of intervals from this run alone, by metric


@dataclass(frozen=True, slots=True)
class BoundResult:
    """Lower bound of one seed, for all items that can be served."""

    seed: int
    value: float  # of the kind's objective
    method: str
    assumptions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The results of a task."""

    runs: tuple[RunResult, ...]
    bound: BoundResult | None
    offered_load: float
    n_items: int


@functools.lru_cache(maxsize=1)
def _built(kind: AnyKind, settings: Settings, seed: int, load: float | None, _: object) -> Inputs:
    inputs: Inputs = kind.build(settings, seed, load)
    return inputs


@functools.lru_cache(maxsize=1)
def _bound_of(kind: AnyKind, inputs: Inputs) -> LowerBound[Any] | None:
    """The bound, cached because the next task may be another policy on the same inputs."""
    return kind.bound(inputs)


def run_task(task: Task) -> TaskResult:
    """Run every policy of a task on the same inputs."""
    kind = task.kind
    inputs = _built(kind, task.settings, task.seed, task.load, kind.stamp(task.settings))
    bound = _bound_of(kind, inputs) if task.with_bound else None
    runs = tuple(_run_one(task, inputs, spec, bound) for spec in task.policies)
    return TaskResult(runs, _bound_result(task.seed, bound), inputs.offered_load, len(inputs))


def run_task_elsewhere(task: Task) -> tuple[TaskResult, dict[str, bytes]]:
    """`run_task` where the records' folder may be out of reach: the files come back, by path in it."""
    if task.records_folder is None:
        return run_task(task), {}
    with TemporaryDirectory() as folder:
        moved = replace(task, records_folder=Path(folder))
        result = run_task(moved)
        return result, {str(path.relative_to(folder)): path.read_bytes() for path in record_files(moved)}


def _bound_result(seed: int, bound: LowerBound[Any] | None) -> BoundResult | None:
    return None if bound is None else BoundResult(seed, bound.value, bound.method, bound.assumptions)


def _run_one(task: Task, inputs: Inputs, spec: PolicySpec, bound: LowerBound[Any] | None) -> RunResult:
    kind, name = task.kind, task.kind.canonical(spec)
    begun_s = time.perf_counter()
    records = kind.run(inputs, spec, task.mode)
    loop_s = time.perf_counter() - begun_s
    if task.records_folder is not None:
        _write_records(_record_file(task.records_folder, name, task.seed), kind.table(inputs, records))
    metrics = kind.measure(records)
    return RunResult(
        policy=name,
        seed=task.seed,
        load=task.load,
        metrics=metrics,
        distance_frac=float("nan") if bound is None else bound.distance_frac(records, metrics),
        curves=kind.curves(inputs, records) if task.with_curves else None,
        loop_s=loop_s,
        remarks=kind.remarks(inputs, spec, records),
        batch_ci95=kind.batch_ci95(records),
    )


def file_name(policy: str) -> str:
    """A policy's name as a file name; with a hash if a character was replaced, to stay unique."""
    name = "".join(c if c.isalnum() or c in "-+._=," else "_" for c in policy)
    return name if name == policy else f"{name}-{hashlib.sha256(policy.encode()).hexdigest()[:6]}"


def record_files(task: Task) -> list[Path]:
    """The record files of a task, one per policy; empty if it writes none."""
    if task.records_folder is None:
        return []
    return [_record_file(task.records_folder, task.kind.canonical(spec), task.seed) for spec in task.policies]


def _record_file(folder: Path, policy: str, seed: int) -> Path:
    return folder / file_name(policy) / f"seed-{seed}.parquet"


def _write_records(path: Path, table: pl.DataFrame) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table.write_parquet(path.with_suffix(".part"), compression="zstd")
    path.with_suffix(".part").replace(path)


def plan_tasks(
    kind: AnyKind,
    settings: Settings,
    policies: Sequence[PolicySpec],
    swept: Sequence[PolicySpec],
    seeds: Sequence[int],
    sweep_loads: Sequence[float],
    *,
    mode: str,
    together: bool,
    records_folder: Path | None,
) -> list[Task]:
    """Tasks of a comparison: every seed at the settings' own load, then `swept` at the loads of the sweep.

    `together`: all policies of a seed in one task, which builds the inputs once; else one task a policy.
    """
    tasks = []
    for load in (None, *sweep_loads):
        main = load is None
        chosen = policies if main else swept
        groups = [tuple(chosen)] if together else [(p,) for p in chosen]
        for seed in seeds:
            for i, group in enumerate(groups):
                tasks.append(
                    Task(
                        kind,
                        settings,
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
