"""Which nodes to add so that runs of chains meet an objective, by simulation on the same work.

Greedy: of all node groups, the one whose further node lowers the metric most for its price is enlarged, until
the objective is met. The work of each seed stays the same, so differences are paired.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trimtab.experiments.scenario import Scenario
from trimtab.experiments.scenario.build import RunInputs, build
from trimtab.experiments.serving.objectives import Objective
from trimtab.experiments.serving.run import simulate_inputs

STEPS = 12  # nodes added at most


@dataclass(frozen=True, slots=True)
class Step:
    """One node more: of which group, and the metric after it, mean over the seeds."""

    added: str  # "" for the cluster as it is
    metric: float
    usd_per_hour: float


@dataclass(frozen=True, slots=True)
class Sizing:
    """The steps from the cluster as it is, and whether the last one meets the objective."""

    objective: Objective
    steps: tuple[Step, ...]
    is_met: bool


def size_chains(
    scenario: Scenario,
    policy: str,
    objective: Objective,
    seeds: int,
    progress: Callable[[str], None] | None = None,
) -> Sizing:
    """Add nodes until the objective is met, at most `STEPS`. Raises UsageError as `simulate` does."""
    work = [build(scenario, seed) for seed in range(seeds)]  # a larger cluster gets no more of it
    metric = objective.metric
    steps = [Step("", _mean(scenario, work, policy, metric), usd_per_hour(scenario))]
    while steps[-1].metric > objective.value and len(steps) <= STEPS:
        if progress is not None:
            progress(f"{len(steps) - 1} nodes added: {metric} {steps[-1].metric:.3g}")
        tried = [
            (Step(name, _mean(larger, work, policy, metric), usd_per_hour(larger)), larger)
            for name, larger in _enlarged(scenario)
        ]
        best, scenario = max(tried, key=lambda pair: _gain_per_usd(steps[-1], pair[0]))
        steps.append(best)
    return Sizing(objective, tuple(steps), steps[-1].metric <= objective.value)


def _gain_per_usd(before: Step, after: Step) -> float:
    gain, cost = before.metric - after.metric, after.usd_per_hour - before.usd_per_hour
    return gain / cost if cost > 0.0 else gain


def _enlarged(scenario: Scenario) -> Iterator[tuple[str, Scenario]]:
    """The scenario with one node more of each group."""
    for k, group in enumerate(scenario.cluster.nodes):
        nodes = list(scenario.cluster.nodes)
        nodes[k] = group.model_copy(update={"count": group.count + 1})
        cluster = scenario.cluster.model_copy(update={"nodes": tuple(nodes)})
        yield group.name or group.type, scenario.model_copy(update={"cluster": cluster})


def usd_per_hour(scenario: Scenario) -> float:
    """Price of all nodes."""
    types = scenario.cluster.types
    return sum(group.count * types[group.type].usd_per_hour for group in scenario.cluster.nodes)


def _mean(scenario: Scenario, work: Sequence[RunInputs], policy: str, metric: str) -> float:
    """The metric on this cluster, mean over the seeds; `work` has the requests of each seed."""
    values = []
    for seed, inputs in enumerate(work):
        cluster = build(scenario, seed).cluster
        run = simulate_inputs(scenario, replace(inputs, cluster=cluster), policy, seed)
        values.append(run.metrics[metric])
    return float(np.mean(values))
