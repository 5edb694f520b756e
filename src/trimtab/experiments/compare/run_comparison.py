"""Compares policies on the same work: several seeds, in parallel processes, with confidence intervals."""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from trimtab.domain.parameters import artifacts_of
from trimtab.errors import UsageError
from trimtab.experiments.compare.comparison import Comparison, PolicyResult, SweepPoint
from trimtab.experiments.compare.kind import AnyKind, Inputs, Kind, Notice, PolicySpec, Settings
from trimtab.experiments.compare.pace import Expected, PlannedRuns, expected_of, short_items
from trimtab.experiments.compare.task_pool import HERE, Progress, TaskRuns, check_place
from trimtab.experiments.compare.tasks import RunResult, Task, TaskResult, plan_tasks
from trimtab.experiments.compare.workfolder import Workfolder
from trimtab.experiments.machine import check_disk, check_memory, cores
from trimtab.metrics import Estimate, mean_ci95
from trimtab.version import versions

S = TypeVar("S", bound=Settings)
I = TypeVar("I", bound=Inputs)  # noqa: E741 - the inputs
R = TypeVar("R")


class Interrupted(KeyboardInterrupt):
    """A comparison was interrupted.

    `finished` compares what is finished: all policies on the seeds that all have run, else those that have
    run the first seed; None without any. `done` of `total` runs have ended.
    """

    def __init__(self, finished: Comparison | None, done: int, total: int) -> None:
        super().__init__()
        self.finished, self.done, self.total = finished, done, total


def run_comparison(
    kind: Kind[S, I, R],
    source: S | str | os.PathLike[str],
    policies: PolicySpec | Sequence[PolicySpec] | None = None,
    seeds: int | Sequence[int] | None = None,
    *,
    load: float | None = None,
    sweep: Sequence[float] | None = None,
    out: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    on: str = HERE,
    mode: str = "auto",
    progress: Progress | None = None,
    notice: Notice | None = None,
    planned: Callable[[PlannedRuns], None] | None = None,
) -> Comparison:
    """Run policies on common random numbers and summarise them over the seeds.

    Args:
        kind: the kind of work.
        source: settings of that kind, or their name or file.
        policies: as the kind takes them, or one alone; default: those of the settings, else of the kind.
        seeds: how many, or which; default: those of the settings.
        load: offered work over capacity; default: that of the settings.
        sweep: loads for policy-against-load curves; default: those of the settings, up to the kind's size for
            sweeps; () for none. Costly policies of the default comparison leave them out.
        out: folder for finished runs and records; an interrupted comparison goes on from there.
        jobs: runs at a time; default: one per core, on Ray one per CPU of the cluster.
        on: where the runs are made: "processes" of this machine, "ray", or the address of a Ray cluster.
        mode: "auto", "compiled" or "interpreted", where the kind knows these.
        progress: called with a `RunsDone` whenever a run begins or ends, and now and then.
        notice: called with what takes time before the first run.
        planned: called with what will run, before that. How long it takes is measured for this call only.

    Raises UsageError for input that cannot be used, PolicyError for a policy that fails, and Interrupted, a
    KeyboardInterrupt.
    """
    check_place(on)
    begun_s = time.perf_counter()
    work = _work(kind, source, policies, seeds, load, sweep)
    check_memory(work.n_runs, work.n_items, jobs or cores(), kind.items)
    tasks = _tasks(work)
    folder = None
    if out is not None:
        check_disk(Path(out), len(work.specs) * len(work.seeds), work.n_items, kind.items)
        folder = Workfolder(Path(out), tasks)
        tasks = folder.tasks
    with folder or nullcontext():
        mode = work.kind.prepare(work.settings, work.specs, mode, work.n_runs * work.n_items, notice)
        runs = TaskRuns([replace(task, mode=mode) for task in tasks], folder)
        expected = None
        if planned is not None:
            expected = _expected(work, runs, mode, notice)
            planned(_plan(work, runs, expected, jobs or cores()))

        def summary(of: _Work, chosen: Sequence[TaskResult]) -> Comparison:
            return _summarise(of, chosen, time.perf_counter() - begun_s, folder)

        try:
            runs.run(jobs, progress, expected, on)
        except KeyboardInterrupt:
            finished = _finished(work, runs.ended)
            raise Interrupted(summary(*finished) if finished else None, len(runs.ended), len(tasks)) from None
        return summary(work, runs.ended)


@dataclass(frozen=True, slots=True)
class _Work:
    """What is compared."""

    kind: AnyKind
    settings: Settings
    specs: tuple[PolicySpec, ...]
    seeds: tuple[int, ...]
    seedless: frozenset[str]
    swept: frozenset[str]  # names of policies
    sweep_loads: tuple[float, ...]
    left_out: tuple[float, ...]  # loads that are not swept because the work is large
    n_items: int

    @property
    def loads(self) -> tuple[float, ...]:
        """The loads of the sweep without the settings' own, which is run anyway."""
        own_load = self.kind.own_load(self.settings)
        return tuple(x for x in self.sweep_loads if x != own_load)

    @property
    def n_runs(self) -> int:
        return len(self.seeds) * (len(self.specs) + len(self.swept) * len(self.loads))


def _work(
    kind: AnyKind,
    source: Any,
    policies: PolicySpec | Sequence[PolicySpec] | None,
    seeds: int | Sequence[int] | None,
    load: float | None,
    sweep: Sequence[float] | None,
) -> _Work:
    given = None if policies is None else _as_sequence(policies)
    named = None if given is None else [kind.canonical(policy) for policy in given]
    settings = kind.read(source, load=load, policies=named, seeds=seeds)
    specs = _each_once(kind, given or settings.policies or kind.default_policies(settings))
    is_default = given is None and not settings.policies
    n_items, sweep_loads = kind.size(settings), kind.sweep_loads(settings, sweep)
    is_large = sweep is None and n_items > kind.sweep_up_to
    seeds_used = settings.seed_list()
    seedless = kind.seedless(settings, specs, seeds_used[0])
    return _Work(
        kind,
        settings,
        specs,
        seeds_used[:1] if len(seedless) == len(specs) else seeds_used,
        seedless,
        frozenset(kind.canonical(spec) for spec in specs if not is_default or kind.is_swept_by_default(spec)),
        sweep_loads=() if is_large else sweep_loads,
        left_out=sweep_loads if is_large else (),
        n_items=n_items,
    )


def _tasks(work: _Work) -> Sequence[Task]:
    keys = _keys(work)
    swept = [key for key, spec in keys.items() if work.kind.canonical(spec) in work.swept]
    return plan_tasks(work.kind, work.settings, keys, swept, work.seeds, work.loads)


def _expected(work: _Work, runs: TaskRuns, mode: str, notice: Notice | None) -> Expected | None:
    """Expected times of what is left to run; None where there is nothing to measure."""
    left = runs.left_policies
    specs = [spec for spec in work.specs if work.kind.canonical(spec) in left]
    short = short_items(work.kind, work.n_items, len(left), len(specs)) if specs else None
    if short is None:
        return None
    if notice is not None:
        notice(f"{_plan(work, runs, None, 1)}: measuring on short runs how long this takes")
    return expected_of(work.kind, work.settings, specs, work.n_items, short, mode)


def _plan(work: _Work, runs: TaskRuns, expected: Expected | None, at_once: int) -> PlannedRuns:
    return PlannedRuns(
        policies=len(work.specs),
        seeds=len(work.seeds),
        loads=1 + len(work.loads),
        n_items=work.n_items,
        items=work.kind.items,
        elapsed_s=None if expected is None else runs.left_s({}, expected, at_once),
        disk_bytes=None if expected is None else expected.record_bytes * len(work.specs) * len(work.seeds),
        left_out=work.left_out,
        sweep_up_to=work.kind.sweep_up_to,
    )


def _finished(work: _Work, ended: Sequence[TaskResult]) -> tuple[_Work, list[TaskResult]] | None:
    """All policies on the seeds that each has run; without such a seed, those that have run the first one."""
    main = [result for result in ended if result.run.load is None]
    by_seed = {seed: {r.run.policy for r in main if r.run.seed == seed} for seed in work.seeds}
    seeds = tuple(seed for seed, names in by_seed.items() if len(names) == len(work.specs))
    if not seeds:
        seeds = work.seeds[:1]
    names = by_seed[seeds[0]]
    if not names:
        return None
    specs = tuple(spec for spec in work.specs if work.kind.canonical(spec) in names)
    chosen = [r for r in main if r.run.seed in seeds and r.run.policy in names]
    return replace(work, specs=specs, seeds=seeds, sweep_loads=()), chosen


def _as_sequence(policies: PolicySpec | Sequence[PolicySpec]) -> Sequence[PolicySpec]:
    """The policies as a sequence; one policy becomes a list. Raises UsageError for an empty list."""
    if not isinstance(policies, Sequence) or isinstance(policies, str):
        return (policies,)
    if not policies:
        expected = "at least one policy, or None for those of the scenario"
        raise UsageError("is empty", field="policies", value=policies, expected=expected)
    return policies


def _each_once(kind: AnyKind, wanted: Sequence[PolicySpec]) -> tuple[PolicySpec, ...]:
    """The policies without duplicates. Raises UsageError if two different ones share a name."""
    chosen: dict[str, PolicySpec] = {}
    for spec in wanted:
        name = kind.canonical(spec)
        if _classes(kind, chosen.setdefault(name, spec)) != _classes(kind, spec):
            raise UsageError(
                "two different policies have this name",
                field="policy",
                value=name,
                expected="a `name` for each",
            )
    return tuple(chosen.values())


def _classes(kind: AnyKind, spec: PolicySpec) -> list[type]:
    return [type(policy) for policy in kind.find(spec)]


def _keys(work: _Work) -> dict[str, PolicySpec]:
    """Key → policy, for runs of an interrupted comparison to be used again."""
    return {run_key(work.kind, work.settings, spec): spec for spec in work.specs}


def run_key(kind: AnyKind, settings: Settings, spec: PolicySpec) -> str:
    """All but seed and load that must be equal for two runs to give the same result."""
    same = kind.read(settings, load=None, policies=(), seeds=(0,)).hash()  # of a run, others do not matter
    common = repr((same, kind.stamp(settings), versions()))
    weights = [artifact.sha256 for policy in kind.find(spec) for artifact in artifacts_of(policy)]
    return repr((common, kind.canonical(spec), *map(_source_of, _classes(kind, spec)), *weights))


def _source_of(policy: type) -> str:
    """The source of a policy's module; without a file (a notebook), a unique value."""
    file = getattr(sys.modules[policy.__module__], "__file__", None)
    return str(uuid.uuid4()) if file is None else Path(file).read_text(encoding="utf-8")


def _summarise(
    work: _Work, results: Sequence[TaskResult], elapsed_s: float, folder: Workfolder | None
) -> Comparison:
    kind, settings, seedless = work.kind, work.settings, work.seedless
    runs = [result.run for result in results]
    names = [kind.canonical(spec) for spec in work.specs]
    main = {name: [r for r in runs if r.policy == name and r.load is None] for name in names}
    by_load: dict[tuple[str, float], list[RunResult]] = {}
    for run in runs:
        load = kind.own_load(settings) if run.load is None else run.load
        if load is not None:
            by_load.setdefault((run.policy, load), []).append(run)
    bounds = {r.bound.seed: r.bound for r in results if r.bound is not None}
    return Comparison(
        kind=kind,
        scenario=settings,
        seeds=work.seeds,
        offered_load=results[0].offered_load,
        n_items=results[0].n_items,
        results=tuple(_policy_result(kind, settings, name, main[name], name in seedless) for name in names),
        bounds=tuple(bounds[seed] for seed in sorted(bounds)),
        sweep=tuple(
            SweepPoint(name, load, _estimates(kind, found, name in seedless), tuple(found))
            for name in names
            for load in sorted(work.sweep_loads)
            if (found := by_load.get((name, load)))
        ),
        elapsed_s=elapsed_s,
        folder=folder,
        specs=work.specs,
    )


def _policy_result(
    kind: AnyKind, settings: Settings, name: str, runs: Sequence[RunResult], is_seedless: bool
) -> PolicyResult:
    distance = mean_ci95([r.distance_frac for r in (runs[:1] if is_seedless else runs)])
    served = mean_ci95([kind.served_frac(settings, r.metrics) for r in runs])
    metrics = _estimates(kind, runs, is_seedless)
    return PolicyResult(name, metrics, distance, served.mean, tuple(runs), is_seedless)


def _estimates(kind: AnyKind, runs: Sequence[RunResult], is_seedless: bool) -> dict[str, Estimate]:
    """Estimates over the seeds; if the seed changes nothing, by batches of one run."""
    if not is_seedless:
        return {name: mean_ci95([run.metrics[name] for run in runs]) for name in kind.metrics}
    run = runs[0]
    return {name: Estimate(run.metrics[name], run.batch_ci95.get(name)) for name in kind.metrics}
