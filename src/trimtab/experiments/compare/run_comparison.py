"""Compares policies on the same work: several seeds, in parallel processes, with confidence intervals."""

from __future__ import annotations

import hashlib
import os
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TypeVar

from trimtab.errors import UsageError
from trimtab.experiments.compare.comparison import Comparison, PolicyResult, SweepPoint
from trimtab.experiments.compare.kind import AnyKind, Inputs, Kind, Notice, PolicySpec, Settings
from trimtab.experiments.compare.task_pool import HERE, Progress, Workfolder, check_place, run_tasks
from trimtab.experiments.compare.tasks import RunResult, Task, TaskResult, plan_tasks
from trimtab.experiments.machine import check_disk, check_memory, cores
from trimtab.metrics import Estimate, mean_ci95
from trimtab.version import versions

SPLIT_FROM = 200_000  # items from which a task is one policy rather than all

S = TypeVar("S", bound=Settings)
I = TypeVar("I", bound=Inputs)  # noqa: E741 - the inputs
R = TypeVar("R")


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
) -> Comparison:
    """Run policies on common random numbers and summarise them over the seeds.

    Args:
        kind: the kind of work.
        source: settings of that kind, or their name or file.
        policies: as the kind takes them, or one alone; default: those of the settings, else of the kind.
        seeds: how many, or which; default: those of the settings.
        load: offered work over capacity; default: that of the settings.
        sweep: loads for policy-against-load curves; default: those of the settings; () for none.
            Costly policies of the default comparison leave them out.
        out: folder for records while running; an interrupted comparison goes on from there.
        jobs: runs at a time; default: one per core, on Ray one per CPU of the cluster.
        on: where the runs are made: "processes" of this machine, "ray", or the address of a Ray cluster.
        mode: "auto", "compiled" or "interpreted", where the kind knows these.
        progress: called with the runs done and the runs in all.
        notice: called with what takes time before the first run.

    Raises UsageError for input that cannot be used and PolicyError for a policy that fails.
    """
    check_place(on)
    given = None if policies is None else _as_sequence(policies)
    named = None if given is None else [kind.canonical(policy) for policy in given]
    settings = kind.read(source, load=load, policies=named, seeds=seeds)
    specs = _each_once(kind, given or settings.policies or kind.default_policies(settings))
    sweep_loads = kind.sweep_loads(settings, sweep)
    own_load = kind.own_load(settings)
    loads = [x for x in sweep_loads if x != own_load]  # that one is run anyway
    is_default = given is None and not settings.policies
    swept = tuple(spec for spec in specs if not is_default or kind.is_swept_by_default(spec))
    begun_s = time.perf_counter()
    seeds_used = settings.seed_list()
    seedless = kind.seedless(settings, specs, seeds_used[0])
    if len(seedless) == len(specs):
        seeds_used = seeds_used[:1]
    n_runs = len(seeds_used) * (len(specs) + len(swept) * len(loads))
    n_items = kind.size(settings)
    check_memory(n_runs, n_items, jobs or cores(), kind.items)
    if out is not None:
        check_disk(Path(out), len(specs) * len(seeds_used), n_items, kind.items)
    folder = (
        None if out is None else Workfolder(Path(out), _key(kind, settings, specs, swept, seeds_used, loads))
    )
    with folder or nullcontext():
        tasks = plan_tasks(
            kind,
            settings,
            specs,
            swept,
            seeds_used,
            loads,
            mode=kind.prepare(settings, specs, mode, n_runs * n_items, notice),
            together=n_items < SPLIT_FROM,
            records_folder=None if folder is None else folder.records,
        )
        results = run_tasks(tasks, folder, jobs, progress, on)
    return _summarise(
        kind, settings, specs, seedless, tasks, results, sweep_loads, time.perf_counter() - begun_s, folder
    )


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


def _key(
    kind: AnyKind,
    settings: Settings,
    specs: Sequence[PolicySpec],
    swept: Sequence[PolicySpec],
    seeds: Sequence[int],
    loads: Sequence[float],
) -> str:
    """Hash of all that must be equal for an interrupted comparison's results to be used."""
    named = [(kind.canonical(spec), *map(_source_of, _classes(kind, spec))) for spec in specs]
    over_load = [kind.canonical(spec) for spec in swept], list(loads)
    text = repr((settings.hash(), kind.stamp(settings), named, list(seeds), over_load, versions()))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _source_of(policy: type) -> str:
    """The source of a policy's module; without a file (a notebook), a unique value."""
    file = getattr(sys.modules[policy.__module__], "__file__", None)
    return str(uuid.uuid4()) if file is None else Path(file).read_text(encoding="utf-8")


def _summarise(
    kind: AnyKind,
    settings: Settings,
    specs: Sequence[PolicySpec],
    seedless: frozenset[str],
    tasks: Sequence[Task],
    results: Sequence[TaskResult],
    sweep_loads: Sequence[float],
    elapsed_s: float,
    folder: Workfolder | None,
) -> Comparison:
    runs = [run for result in results for run in result.runs]
    names = [kind.canonical(spec) for spec in specs]
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
        seeds=tuple(dict.fromkeys(task.seed for task in tasks)),
        offered_load=results[0].offered_load,
        n_items=results[0].n_items,
        results=tuple(_policy_result(kind, settings, name, main[name], name in seedless) for name in names),
        bounds=tuple(bounds[seed] for seed in sorted(bounds)),
        sweep=tuple(
            SweepPoint(name, load, _estimates(kind, found, name in seedless), tuple(found))
            for name in names
            for load in sorted(sweep_loads)
            if (found := by_load.get((name, load)))
        ),
        elapsed_s=elapsed_s,
        folder=folder,
        specs=tuple(specs),
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
