"""Workloads to train on and to judge by, each drawn from a number, and what a policy makes of one."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.domain.policy import Decider
from trimtab.engine import simulator
from trimtab.engine.driver import Driver
from trimtab.errors import UsageError
from trimtab.experiments.scenario import Scenario
from trimtab.experiments.scenario.build import RunInputs, build, scenario_workload
from trimtab.learn.augmentation import UNCHANGED, Augmentation
from trimtab.learn.generated_clusters import generated_cluster

Floats = NDArray[np.float64]
TAIL_FRAC: Final = 0.02  # `tail` is the mean of the longest: steadier than one quantile
_TERM: Final = re.compile(r"(?:(?P<weight>\d+(?:\.\d+)?)\s*\*\s*)?(?P<metric>\w+)")
_UNSERVED: Final = 10.0  # a request that was not served counts as so many of the longest completions


class Figures(NamedTuple):
    """Completion of one run, seconds."""

    mean: float
    tail: float
    p99: float


@dataclass(frozen=True)
class Objective:
    """What training lowers: a sum of weight × log of a metric over that of the rule without weights."""

    weights: tuple[tuple[str, float], ...]

    @classmethod
    def parsed(cls, text: str) -> Objective:
        """From `mean+0.5*tail`. Raises UsageError."""
        found = []
        for part in text.split("+"):
            match = _TERM.fullmatch(part.strip())
            if match is None or match["metric"] not in Figures._fields:
                expected = f"METRIC or WEIGHT*METRIC joined by +, of {', '.join(Figures._fields)}"
                raise UsageError("names no metric", field="--objective", value=part, expected=expected)
            weight = float(match["weight"] or 1.0)
            if not 0.0 < weight < math.inf:
                raise UsageError(
                    "weighs nothing", field="--objective", value=part, expected="a weight above 0"
                )
            found.append((match["metric"], weight))
        return cls(tuple(found))

    def loss(self, found: Figures, base: Figures) -> float:
        """How much worse a run is than the rule's; below 0 is better."""
        return sum(w * math.log(getattr(found, m) / getattr(base, m)) for m, w in self.weights)

    def __str__(self) -> str:
        """As it is written."""
        return "+".join(
            metric if weight == 1.0 else f"{weight:g}*{metric}" for metric, weight in self.weights
        )


@dataclass(frozen=True)
class Workloads:
    """Workload i is a generated cluster, or a scenario with seed i.

    Attributes:
        scenario: None = generated clusters.
        requests: of a generated cluster.
        nodes: of a generated cluster, one of these; empty = as the family has them.
        load: of a generated cluster; None = as the family has it.
        augmentation: how each differs from the scenario or cluster that it is drawn from.
    """

    scenario: Scenario | None = None
    requests: int = 800
    nodes: tuple[int, ...] = ()
    load: float | None = None
    augmentation: Augmentation = UNCHANGED

    @functools.lru_cache(maxsize=256)  # noqa: B019 - as `inputs`
    def scenario_of(self, i: int) -> Scenario:
        """The scenario of workload i. Raises UsageError for what the augmentation cannot vary."""
        scenario = self.scenario
        if scenario is None:
            nodes = int(np.random.default_rng(i).choice(self.nodes)) if self.nodes else None
            scenario = generated_cluster(i, self.requests, nodes=nodes, load=self.load)
        return self.augmentation.scenario(scenario, i)

    @functools.lru_cache(maxsize=256)  # noqa: B019 - workloads are few, and their inputs are small
    def inputs(self, i: int) -> RunInputs:
        """The inputs of workload i."""
        return self.augmentation.inputs(build(self.scenario_of(i), i), i)

    def __str__(self) -> str:
        """In words."""
        return "generated clusters" if self.scenario is None else self.scenario.name


def begun_run(workloads: Workloads, i: int, decider: Decider) -> Driver:
    """The run of a policy on workload i, before its first event."""
    inputs = workloads.inputs(i)
    return simulator.begun(
        inputs.cluster,
        inputs.requests,
        inputs.options,
        decider,
        seed=i,
        mode="compiled",
        declared=scenario_workload(decider.dispatch, workloads.scenario_of(i), i),
    )


def run_of(workloads: Workloads, i: int, decider: Decider) -> Driver:
    """The run of a policy on workload i, at its end. Raises PolicyError."""
    driver = begun_run(workloads, i, decider)
    simulator.go_to(driver, driver.options.horizon_s)
    return driver


def figures_of(workloads: Workloads, i: int, decider: Decider) -> Figures:
    """Mean, tail and p99 of completion of one policy on workload i."""
    return completion_figures(run_of(workloads, i, decider))


def completion_figures(driver: Driver) -> Figures:
    """Mean, tail and p99 of completion of a run at its end."""
    state = driver.state
    completion_s = state.requests["finish_s"] - state.work["arrival_s"]
    served = np.isfinite(completion_s)
    longest_s = completion_s[served].max(initial=1e-9)
    filled = np.sort(np.where(served, completion_s, _UNSERVED * longest_s))
    tail = filled[-max(1, round(TAIL_FRAC * len(filled))) :]
    return Figures(float(filled.mean()), float(tail.mean()), float(np.quantile(filled, 0.99)))


@contextmanager
def processes(jobs: int) -> Iterator[Executor | None]:
    """A pool of so many processes; None for one."""
    if jobs == 1:
        yield None
        return
    from loky import ProcessPoolExecutor

    pool = ProcessPoolExecutor(max_workers=jobs)
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, kill_workers=True)


def mapped(pool: Executor | None, function: Callable[..., Any], *columns: Sequence[Any]) -> list[Any]:
    """A function of each row, in other processes where there is a pool."""
    return list(map(function, *columns) if pool is None else pool.map(function, *columns, chunksize=4))
