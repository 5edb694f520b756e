"""The figures that advice on a fleet rests on: policies compared, what limits the best one, one node more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trimtab.experiments.compare import Comparison, run_comparison
from trimtab.experiments.compare.comparison import OneMore
from trimtab.experiments.scenario import Scenario
from trimtab.experiments.scenario.build import build
from trimtab.experiments.scenario.scenario_changes import WhatIf, with_what_if
from trimtab.experiments.serving.run import Run, simulate, simulate_inputs
from trimtab.experiments.serving.serving_kind import SERVING
from trimtab.metrics import paired_difference_ci95

ADVISED: Final = (
    *("late-binding", "least-expected-completion", "least-expected-wait", "power-of-d", "least-connections"),
    "round-robin",
)
WINDOWS: Final = 12
_MORE_SEEDS: Final = 5  # that runs with one node more are made on at most


@dataclass(frozen=True, slots=True)
class ClassLoad:
    """One class under the best policy: its share of the work, and how long its requests waited."""

    name: str
    work_frac: float
    queueing_mean_s: float
    completion_mean_s: float


@dataclass(frozen=True, slots=True)
class Window:
    """A part of the run: offered work over capacity, and how long its arrivals waited."""

    start_s: float
    end_s: float
    load: float
    queueing_mean_s: float


@dataclass(frozen=True, slots=True)
class AdviceFigures:
    """All figures of an advice; `run` is the best policy on the first seed."""

    comparison: Comparison
    run: Run
    classes: tuple[ClassLoad, ...]
    windows: tuple[Window, ...]
    busy_frac: dict[str, float]  # node type → busy slots over all, nan where there are none
    one_more: tuple[OneMore, ...]
    has_own_times: bool  # the scenario tells service times; else they are the defaults of the format


def advice_figures(
    scenario: Scenario,
    policies: Sequence[str] | None = None,
    *,
    jobs: int | None = None,
) -> AdviceFigures:
    """Compare policies, then simulate the best one with one node more of each type. Raises as `compare`."""
    chosen = tuple(policies or scenario.policies or ADVISED)
    comparison = run_comparison(SERVING, scenario, chosen, sweep=(), jobs=jobs)
    winner = comparison.ranked()[0]
    best = winner.policy
    seeds = comparison.seeds[: 1 if winner.is_seedless else _MORE_SEEDS]
    run = simulate(scenario, best, seeds[0])
    types = dict.fromkeys(group.type for group in scenario.cluster.nodes)
    return AdviceFigures(
        comparison=comparison,
        run=run,
        classes=tuple(_classes(run)),
        windows=tuple(_windows(run)),
        busy_frac=_busy(run),
        one_more=tuple(_one_more(scenario, comparison, best, name, seeds) for name in types),
        has_own_times=bool(scenario.classes),
    )


def _one_more(
    scenario: Scenario, comparison: Comparison, policy: str, name: str, seeds: Sequence[int]
) -> OneMore:
    larger = with_what_if(scenario, WhatIf(nodes=[_group(scenario, name)]))
    result = next(r for r in comparison.results if r.policy == policy)
    before = {run.seed: run.metrics["completion_mean_s"] for run in result.runs}
    after = [
        simulate_inputs(larger, build(larger, seed), policy, seed).metrics["completion_mean_s"]
        for seed in seeds
    ]
    change = paired_difference_ci95(after, [before[seed] for seed in seeds])
    return OneMore(name, scenario.cluster.types[name].usd_per_hour, change)


def _group(scenario: Scenario, type_name: str) -> str:
    """The change that adds one node to the first group of a type."""
    first = next(group for group in scenario.cluster.nodes if group.type == type_name)
    return f"{first.name or type_name}=+1"


def _classes(run: Run) -> list[ClassLoad]:
    rows, cluster = run.records.requests, run.inputs.cluster
    arrival_s = run.inputs.requests.work["arrival_s"]
    work_s = np.where(rows.finished, rows.finish_s - rows.service_start_s, 0.0)
    all_s = float(np.nansum(work_s))
    found = []
    for c, name in enumerate(cluster.class_names):
        mine = rows.finished & (rows.class_idx == c)
        if mine.any():
            waited_s = float((rows.start_s - arrival_s)[mine].mean())
            took_s = float((rows.finish_s - arrival_s)[mine].mean())
            share = float(np.nansum(work_s[mine])) / all_s if all_s > 0 else float("nan")
            found.append(ClassLoad(name, share, waited_s, took_s))
    return found


def _windows(run: Run) -> list[Window]:
    """Equal parts of the time of arrivals."""
    work, rows = run.inputs.requests.work, run.records.requests
    arrival_s = work["arrival_s"]
    first_s, last_s = float(arrival_s[0]), float(arrival_s[-1])
    if not last_s > first_s:
        return []
    edges_s = np.linspace(first_s, last_s, WINDOWS + 1)
    at = np.clip(np.searchsorted(edges_s, arrival_s, side="right") - 1, 0, WINDOWS - 1)
    per_s = run.inputs.capacity_per_s
    length_s = float(edges_s[1] - edges_s[0])
    relative = _relative_work(run)
    found = []
    for k in range(WINDOWS):
        mine = at == k
        done = mine & rows.finished
        waited_s = float((rows.start_s - arrival_s)[done].mean()) if done.any() else 0.0
        load = float(relative[mine].sum()) / length_s / per_s
        found.append(Window(float(edges_s[k]), float(edges_s[k + 1]), load, waited_s))
    return found


def _relative_work(run: Run) -> NDArray[np.float64]:
    """Work of each request over that of the mean one, by its estimate."""
    estimate_s = run.inputs.requests.work["estimate_s"]
    finite = np.where(np.isfinite(estimate_s), estimate_s, 0.0)
    mean_s = float(finite.mean())
    relative: NDArray[np.float64] = finite / mean_s if mean_s > 0 else np.ones(len(finite))
    return relative


def _busy(run: Run) -> dict[str, float]:
    """Busy slots of each node type that has nodes."""
    table = run.nodes.drop_nulls("busy_frac")
    return {
        str(name): float(str(part["busy_frac"].mean()))
        for (name,), part in sorted(table.group_by("type"), key=lambda item: str(item[0]))
    }
