"""Compares policies on the same requests: several seeds, in parallel processes, with confidence intervals."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trimtab.domain.policy import Policy
from trimtab.engine.calls import is_ready
from trimtab.errors import ScenarioError, UsageError
from trimtab.experiments.bounds import compile_bounds
from trimtab.experiments.machine import check_disk, check_memory, cores
from trimtab.experiments.notes import unfit_note, unserved_note
from trimtab.experiments.pool import Progress, Workfolder, run_tasks
from trimtab.experiments.recorded import stamp_of
from trimtab.experiments.scenario import Scenario, load_scenario
from trimtab.experiments.spec.scenario import SweepSpec
from trimtab.experiments.tasks import (
    BoundResult,
    RunResult,
    Task,
    TaskResult,
    plan_tasks,
)
from trimtab.experiments.warm import compile_kernels
from trimtab.metrics import METRICS, Estimate, mean_ci95
from trimtab.policies import DEFAULT_COMPARISON, PolicySpec, canonical, find
from trimtab.validation.problems import checked

if TYPE_CHECKING:
    import polars as pl

INTERPRET_UP_TO = 100_000  # simulated requests of a whole comparison worth interpreting on a cold cache
SPLIT_FROM = 200_000  # requests from which a task is one policy rather than all


@dataclass(frozen=True)
class PolicyResult:
    """One policy over all seeds at the scenario's own load."""

    policy: str
    metrics: dict[str, Estimate]
    distance_frac: Estimate  # over the lower bound
    runs: tuple[RunResult, ...] = field(repr=False)  # one per seed


@dataclass(frozen=True)
class SweepPoint:
    """One policy at one load, over all seeds."""

    policy: str
    load: float
    metrics: dict[str, Estimate]


@dataclass(frozen=True)
class Comparison:
    """What `compare` found. `results` is in the order of the policies given."""

    scenario: Scenario
    seeds: tuple[int, ...]
    offered_load: float
    n_requests: int
    results: tuple[PolicyResult, ...]
    bounds: tuple[BoundResult, ...]  # one per seed; empty where none holds
    sweep: tuple[SweepPoint, ...]
    elapsed_s: float
    folder: Workfolder | None = None  # the request records, until the results are written

    def __repr__(self) -> str:
        """Mean completion of every policy, best first; `table` and `to_dict` have the rest."""
        title = f"Comparison on {self.scenario.name}: {self.n_requests:,} requests"
        lines = [f"{title}, load {self.offered_load:.3g}, seeds {_listed(self.seeds)}"]
        width = max(len(r.policy) for r in self.results)
        for r in self.ranked():
            mean = _short(r.metrics["completion_mean_s"], "s", 1.0)
            lines.append(f"  {r.policy:{width}}  mean completion {mean}")
            if np.isfinite(r.distance_frac.mean):
                lines[-1] += f", {_short(r.distance_frac, '%', 100.0)} above the lower bound"
        return "\n".join(lines)

    @property
    def bound(self) -> dict[str, Any]:
        """Lower bound on mean completion, over the seeds; values are None where none holds."""
        if not self.bounds:
            return {
                "completion_mean_s": None,
                "ci95": None,
                "method": None,
                "assumptions": [],
                "per_seed": [],
            }
        mean = mean_ci95([b.completion_mean_s for b in self.bounds])
        return {
            "completion_mean_s": mean.mean,
            "ci95": mean.ci95,
            "method": ", ".join(sorted({b.method for b in self.bounds})),
            "assumptions": list(self.bounds[0].assumptions),
            "per_seed": [{"seed": b.seed, "completion_mean_s": b.completion_mean_s} for b in self.bounds],
        }

    def ranked(self, metric: str = "completion_mean_s") -> list[PolicyResult]:
        """Results, best first by one metric. Raises UsageError for an unknown one."""
        if metric not in METRICS:
            raise UsageError("no such metric", field="sort", value=metric, expected=", ".join(METRICS))
        sign = -1.0 if METRICS[metric].better == "higher" else 1.0

        def key(result: PolicyResult) -> float:
            mean = result.metrics[metric].mean
            return float("inf") if np.isnan(mean) else sign * mean

        return sorted(self.results, key=key)

    def table(self) -> pl.DataFrame:
        """One row per policy and metric: policy, metric, mean, ci95."""
        import polars as pl

        rows = [
            {"policy": r.policy, "metric": name, "mean": value.mean, "ci95": value.ci95}
            for r in self.results
            for name, value in r.metrics.items()
        ]
        return pl.DataFrame(
            rows, schema={"policy": pl.String, "metric": pl.String, "mean": pl.Float64, "ci95": pl.Float64}
        )

    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints and `results.json` holds."""
        return {
            "scenario": self.scenario.name,
            "scenario_hash": self.scenario.hash(),
            "seeds": list(self.seeds),
            "requests": self.n_requests,
            "offered_load": self.offered_load,
            "bound": self.bound,
            "results": [_result_dict(r) for r in self.results],
            "sweep": [
                {"policy": p.policy, "load": p.load, "metrics": _estimates(p.metrics)} for p in self.sweep
            ],
            "versions": versions(),
            "elapsed_s": self.elapsed_s,
        }

    def notes(self) -> list[str]:
        """What a reader of the figures must know."""
        notes = self._notes_on_recording()
        by_seed = {run.seed: run for result in self.results for run in result.runs if run.n_fits_no_node}
        if by_seed:
            first = by_seed[min(by_seed)]
            count = sum(run.n_fits_no_node for run in by_seed.values())
            notes.append(unfit_note(count, first.fits_no_node, f"seed {first.seed}: "))
        return notes

    def _notes_on_recording(self) -> list[str]:
        trace = self.scenario.workload.trace
        if trace is None:
            return []
        from trimtab.experiments.recorded import unserved_rows
        from trimtab.traces.gateway import is_recording

        if not is_recording(Path(trace.file)):
            return []

        requests, by_outcome = unserved_rows(trace)
        return [unserved_note(requests, by_outcome)] if by_outcome else []


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds)) if len(seeds) <= 5 else f"{seeds[0]}, {seeds[1]}, …, {seeds[-1]}"


def _short(value: Estimate, unit: str, factor: float) -> str:
    ci95 = f" ± {factor * value.ci95:.2g}" if value.ci95 else ""
    return f"{factor * value.mean:.4g}{ci95} {unit}"


def _result_dict(result: PolicyResult) -> dict[str, Any]:
    return {
        "policy": result.policy,
        "metrics": _estimates(result.metrics),
        "distance_to_bound_frac": _estimate(result.distance_frac),
        "per_seed": [
            {"seed": r.seed, "metrics": {k: _number(v) for k, v in r.metrics.items()}} for r in result.runs
        ],
    }


def _estimates(metrics: dict[str, Estimate]) -> dict[str, Any]:
    return {name: _estimate(value) for name, value in metrics.items()}


def _estimate(value: Estimate) -> dict[str, float | None]:
    return {"mean": _number(value.mean), "ci95": value.ci95}


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def versions() -> dict[str, str]:
    """Versions that results depend on."""
    libraries = {name: version(name) for name in ("trimtab", "numba", "numpy", "polars")}
    return {"python": platform.python_version(), **libraries}


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
        results=tuple(_policy_result(name, main[name]) for name in names),
        bounds=tuple(bounds[seed] for seed in sorted(bounds)),
        sweep=tuple(
            SweepPoint(name, load, _over_seeds(by_load.get((name, load), main[name])))
            for name in names
            for load in sorted(sweep_loads)
        ),
        elapsed_s=elapsed_s,
        folder=folder,
    )


def _policy_result(name: str, runs: Sequence[RunResult]) -> PolicyResult:
    distance = mean_ci95([r.distance_frac for r in runs])
    return PolicyResult(name, _over_seeds(runs), distance, tuple(runs))


def _over_seeds(runs: Sequence[RunResult]) -> dict[str, Estimate]:
    return {name: mean_ci95([run.metrics[name] for run in runs]) for name in METRICS}
