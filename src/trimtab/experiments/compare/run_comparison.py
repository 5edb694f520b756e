"""Compares policies on the same requests: several seeds, in parallel processes, with confidence intervals."""

from __future__ import annotations

import hashlib
import os
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

from trimtab.domain.policy import Policy
from trimtab.engine.calls import is_ready
from trimtab.errors import ScenarioError, UsageError
from trimtab.experiments.bounds import compile_bounds
from trimtab.experiments.compare.comparison import Comparison, PolicyResult, SweepPoint
from trimtab.experiments.compare.machine import check_disk, check_memory, cores
from trimtab.experiments.compare.task_pool import Progress, Workfolder, run_tasks
from trimtab.experiments.compare.tasks import (
    RunResult,
    Task,
    TaskResult,
    plan_tasks,
)
from trimtab.experiments.scenario import Scenario, load_scenario
from trimtab.experiments.scenario.spec.scenario import SweepSpec
from trimtab.experiments.scenario.trace_rows import stamp_of
from trimtab.experiments.serving.compilation import compile_kernels
from trimtab.metrics import METRICS, Estimate, mean_ci95, served_frac
from trimtab.policies import DEFAULT_COMPARISON, PolicySpec, canonical, find
from trimtab.validation.problems import checked
from trimtab.version import versions

INTERPRET_UP_TO = 100_000  # simulated requests of a whole comparison worth interpreting on a cold cache
SPLIT_FROM = 200_000  # requests from which a task is one policy rather than all


def compare(
    scenario: Scenario | str | os.PathLike[str],
    policies: PolicySpec | Sequence[PolicySpec] | None = None,
    seeds: int | Sequence[int] | None = None,
    *,
    load: float | None = None,
    sweep: Sequence[float] | None = None,
    out: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    mode: str = "auto",
    progress: Progress | None = None,
    notice: Callable[[str], None] | None = None,
) -> Comparison:
    """Run policies on common random numbers and summarise them over the seeds.

    Parameters
    ----------
    scenario : a Scenario, a built-in's name, or a file.
    policies : names, `file.py:Class` specs, Policy objects or classes, or one of these alone; default: the
        scenario's, else the catalogue's.
    seeds : how many, or which; default: the scenario's.
    load : offered work over capacity; default: the scenario's.
    sweep : loads for policy-against-load curves; default: the scenario's; () for none.
    out : folder for request records while running; an interrupted comparison goes on from there.
    jobs : processes; default: one per core.
    mode : "auto", "compiled" or "interpreted".
    progress : called with the runs done and the runs in all.
    notice : called with what takes time before the first run.

    Raises UsageError for input that cannot be used and PolicyError for a policy that fails.
    """
    chosen = scenario if isinstance(scenario, Scenario) else load_scenario(scenario)
    given = None if policies is None else _as_sequence(policies)
    named = None if given is None else [canonical(policy) for policy in given]
    chosen = chosen.with_overrides(load=load, policies=named, seeds=seeds)
    specs = _each_once(given or chosen.policies or DEFAULT_COMPARISON)
    sweep_loads = chosen.sweep.loads if sweep is None else _checked_loads(sweep)
    own_load = chosen.workload.load
    loads = [x for x in sweep_loads if x != own_load]  # that one is run anyway
    begun_s = time.perf_counter()
    seeds_used = chosen.seed_list()
    n_runs = len(specs) * len(seeds_used) * (1 + len(loads))
    n_requests = chosen.n_requests()
    check_memory(n_runs, n_requests, jobs or cores())
    if out is not None:
        check_disk(Path(out), len(specs) * len(seeds_used), n_requests)
    folder = None if out is None else Workfolder(Path(out), _key(chosen, specs, seeds_used, loads))
    with folder or nullcontext():
        mode = _prepare(specs, mode, n_runs * n_requests, notice)
        tasks = plan_tasks(
            chosen,
            specs,
            seeds_used,
            loads,
            mode=mode,
            together=n_requests < SPLIT_FROM,
            records_folder=None if folder is None else folder.records,
        )
        results = run_tasks(tasks, folder, jobs or cores(), progress)
    return _summarise(chosen, specs, tasks, results, sweep_loads, time.perf_counter() - begun_s, folder)


def _checked_loads(sweep: Sequence[float]) -> tuple[float, ...]:
    return checked(lambda: SweepSpec(loads=tuple(sweep)), SweepSpec, "sweep", ScenarioError).loads


def _as_sequence(policies: PolicySpec | Sequence[PolicySpec]) -> Sequence[PolicySpec]:
    """One policy alone stands for a list of it. Raises UsageError for none at all."""
    if not isinstance(policies, Sequence) or isinstance(policies, str):
        return (policies,)
    if not policies:
        expected = "at least one policy, or None for those of the scenario"
        raise UsageError("is empty", field="policies", value=policies, expected=expected)
    return policies


def _each_once(wanted: Sequence[PolicySpec]) -> tuple[PolicySpec, ...]:
    """The policies without duplicates. Raises UsageError where two different ones share a name."""
    chosen: dict[str, PolicySpec] = {}
    for spec in wanted:
        name = canonical(spec)
        if [type(policy) for policy in find(chosen.setdefault(name, spec))] != [type(p) for p in find(spec)]:
            raise UsageError(
                "two different policies have this name",
                field="policy",
                value=name,
                expected="a `name` for each",
            )
    return tuple(chosen.values())


def _key(
    scenario: Scenario, specs: Sequence[PolicySpec], seeds: Sequence[int], loads: Sequence[float]
) -> str:
    """What an interrupted comparison must have in common with this one for its results to be used."""
    named = [(canonical(spec), *(_source_of(type(policy)) for policy in find(spec))) for spec in specs]
    trace = scenario.workload.trace
    stamp = None if trace is None else stamp_of(trace)
    text = repr((scenario.hash(), stamp, named, list(seeds), list(loads), versions()))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _source_of(policy: type[Policy]) -> str:
    """The text of a policy's module; where it has none (a notebook), something that never comes again."""
    file = getattr(sys.modules[policy.__module__], "__file__", None)
    return str(uuid.uuid4()) if file is None else Path(file).read_text(encoding="utf-8")


def _prepare(
    specs: Sequence[PolicySpec], mode: str, simulated: int, notice: Callable[[str], None] | None
) -> str:
    """Compile, once and before there are workers, what the runs need; returns their mode.

    Small comparisons on a cold cache are interpreted: compiling would take longer.
    """
    is_warm = all(is_ready(*find(spec)) for spec in specs)
    if mode == "auto":
        mode = "compiled" if is_warm or simulated > INTERPRET_UP_TO else "interpreted"
    if mode == "compiled":
        if notice is not None and not is_warm:
            notice("compiling kernels (once, about a minute)")
        compile_kernels(specs)
    else:
        compile_bounds()
    return mode


def _summarise(
    scenario: Scenario,
    specs: Sequence[PolicySpec],
    tasks: Sequence[Task],
    results: Sequence[TaskResult],
    sweep_loads: Sequence[float],
    elapsed_s: float,
    folder: Workfolder | None,
) -> Comparison:
    runs = [run for result in results for run in result.runs]
    names = [canonical(spec) for spec in specs]
    main = {name: [r for r in runs if r.policy == name and r.load is None] for name in names}
    by_load: dict[tuple[str, float], list[RunResult]] = {}
    for run in runs:
        if run.load is not None:
            by_load.setdefault((run.policy, run.load), []).append(run)
    bounds = {r.bound.seed: r.bound for r in results if r.bound is not None}
    return Comparison(
        scenario=scenario,
        seeds=tuple(dict.fromkeys(task.seed for task in tasks)),
        offered_load=results[0].offered_load,
        n_requests=results[0].n_requests,
        results=tuple(_policy_result(name, main[name], scenario.ends_early()) for name in names),
        bounds=tuple(bounds[seed] for seed in sorted(bounds)),
        sweep=tuple(
            SweepPoint(name, load, _over_seeds(by_load.get((name, load), main[name])))
            for name in names
            for load in sorted(sweep_loads)
        ),
        elapsed_s=elapsed_s,
        folder=folder,
    )


def _policy_result(name: str, runs: Sequence[RunResult], ends_early: bool) -> PolicyResult:
    distance = mean_ci95([r.distance_frac for r in runs])
    served = mean_ci95([served_frac(r.metrics, ends_early=ends_early) for r in runs])
    return PolicyResult(name, _over_seeds(runs), distance, served.mean, tuple(runs))


def _over_seeds(runs: Sequence[RunResult]) -> dict[str, Estimate]:
    return {name: mean_ci95([run.metrics[name] for run in runs]) for name in METRICS}
