"""One run of a comparison: build the inputs of a seed and load, run a policy on them."""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from trimtab.experiments.compare.kind import AnyKind, Curves, Inputs, LowerBound, PolicySpec, Settings

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, slots=True)
class Task:
    """One run. `load` None = the settings' load; `key` is equal for tasks that give the same result."""

    kind: AnyKind
    settings: Settings
    seed: int
    load: float | None
    policy: PolicySpec
    name: str  # of the policy, canonical
    mode: str = "auto"
    with_bound: bool = False
    with_curves: bool = False
    key: str = ""
    record: Path | None = None  # file that gets one row per item

    @property
    def inputs(self) -> tuple[int, float | None]:
        """Tasks for which this is equal run on the same inputs."""
        return self.seed, self.load

    def __str__(self) -> str:
        at = "" if self.load is None else f", load {self.load:g}"
        return f"{self.name}, seed {self.seed}{at}"


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
    """The result of a task."""

    run: RunResult
    bound: BoundResult | None
    offered_load: float
    n_items: int
    build_s: float  # to make the inputs and their bound; little where the task before had the same ones
    run_s: float  # the rest of the task


@functools.lru_cache(maxsize=1)
def _built(kind: AnyKind, settings: Settings, seed: int, load: float | None, _: object) -> Inputs:
    inputs: Inputs = kind.build(settings, seed, load)
    return inputs


@functools.lru_cache(maxsize=1)
def _bound_of(kind: AnyKind, inputs: Inputs) -> LowerBound[Any] | None:
    """The bound, cached because the next task may be another policy on the same inputs."""
    return kind.bound(inputs)


def run_task(task: Task) -> TaskResult:
    """Run the policy of a task; the inputs of the task before are used again if they are the same."""
    begun_s = time.perf_counter()
    kind = task.kind
    inputs = _built(kind, task.settings, task.seed, task.load, kind.stamp(task.settings))
    bound = _bound_of(kind, inputs) if task.with_bound else None
    built_s = time.perf_counter()
    return TaskResult(
        _run_one(task, inputs, bound),
        _bound_result(task.seed, bound),
        inputs.offered_load,
        len(inputs),
        build_s=built_s - begun_s,
        run_s=time.perf_counter() - built_s,
    )


def run_task_elsewhere(task: Task) -> tuple[TaskResult, bytes | None]:
    """`run_task` where the record's folder may be out of reach: the file's content comes back."""
    if task.record is None:
        return run_task(task), None
    with TemporaryDirectory() as folder:
        moved = Path(folder) / task.record.name
        return run_task(replace(task, record=moved)), moved.read_bytes()


def _bound_result(seed: int, bound: LowerBound[Any] | None) -> BoundResult | None:
    return None if bound is None else BoundResult(seed, bound.value, bound.method, bound.assumptions)


def _run_one(task: Task, inputs: Inputs, bound: LowerBound[Any] | None) -> RunResult:
    kind = task.kind
    begun_s = time.perf_counter()
    records = kind.run(inputs, task.policy, task.mode)
    loop_s = time.perf_counter() - begun_s
    if task.record is not None:
        _write_record(task.record, kind.table(inputs, records))
    metrics = kind.measure(records)
    return RunResult(
        policy=task.name,
        seed=task.seed,
        load=task.load,
        metrics=metrics,
        distance_frac=float("nan") if bound is None else bound.distance_frac(records, metrics),
        curves=kind.curves(inputs, records) if task.with_curves else None,
        loop_s=loop_s,
        remarks=kind.remarks(inputs, task.policy, records),
        batch_ci95=kind.batch_ci95(records),
    )


def file_name(policy: str) -> str:
    """A policy's name as a file name; with a hash if a character was replaced, to stay unique."""
    name = "".join(c if c.isalnum() or c in "-+._=," else "_" for c in policy)
    return name if name == policy else f"{name}-{hashlib.sha256(policy.encode()).hexdigest()[:6]}"


def _write_record(path: Path, table: pl.DataFrame) -> None:
    table.write_parquet(path.with_suffix(".part"), compression="zstd")
    path.with_suffix(".part").replace(path)


def plan_tasks(
    kind: AnyKind,
    settings: Settings,
    policies: Mapping[str, PolicySpec],
    swept: Sequence[str],
    seeds: Sequence[int],
    sweep_loads: Sequence[float],
) -> list[Task]:
    """Tasks of a comparison: every seed at the settings' own load, then `swept` at the loads of the sweep.

    `policies`: key of each policy → the policy; `swept`: some of these keys. Tasks on the same inputs follow
    each other.
    """
    tasks = []
    for load in (None, *sweep_loads):
        main = load is None
        for seed in seeds:
            for key in policies if main else swept:
                with_curves = main and seed == seeds[0]
                of_run = repr((key, seed, load, with_curves))
                tasks.append(
                    Task(
                        kind,
                        settings,
                        seed,
                        load,
                        policies[key],
                        kind.canonical(policies[key]),
                        with_bound=main,
                        with_curves=with_curves,
                        key=hashlib.sha256(of_run.encode()).hexdigest()[:16],
                    )
                )
    return tasks
