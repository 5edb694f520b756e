"""Scenarios small enough to work out on paper: a second of service per unit, each request sent by its key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from support.mini_policies import Scripted
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import FAULT, Options
from trimtab.domain.policy import Decider, Policy
from trimtab.domain.requests import TRUTH, Requests
from trimtab.domain.view import new_work
from trimtab.engine.driver import Driver
from trimtab.engine.simulator import run


def asked(c: Cluster, arrival_s: Sequence[float], units: Any = 1.0, **columns: Any) -> Requests:
    """Requests at these times; `columns` set further fields of WORK (key: the node; default node 0)."""
    work, truth = new_work(len(arrival_s)), np.zeros(len(arrival_s), TRUTH)
    work["serial"], work["units"] = np.arange(len(work)), units
    work["arrival_s"] = work["run_arrival_s"] = arrival_s
    work["model_idx"] = work["adapter_idx"] = -1
    work["deadline_s"] = np.inf
    for name, values in columns.items():
        work[name] = values
    work["estimate_s"] = work["rank_s"] = c.best_estimate_s(work["class_idx"], work["units"])
    truth["units"], truth["factor"] = work["units"], 1.0
    return Requests(work, truth)


def once(node: int, start_s: float, end_s: float, factor: float = 0.0) -> tuple[Any, ...]:
    """A single fault; factor 0 = down."""
    return (start_s, end_s, factor, np.inf, 0.0, node, 0, 0, 0, 0.0, 0)


def on_cable(cable: int, start_s: float, end_s: float, factor: float = 0.0) -> tuple[Any, ...]:
    """A single fault of both directions of a link; factor 0 = it fails."""
    return (*once(0, start_s, end_s, factor)[:-1], 1 + cable)


def background(
    node: int, start_s: float, end_s: float, amount: float, factor: float = 1.0, resource: int = 0
) -> tuple[Any, ...]:
    """Background work that takes this amount of a resource once; the speed meanwhile."""
    return (start_s, end_s, factor, np.inf, 0.0, node, 0, 0, 1 + resource, amount, 0)


def fault_table(*rows: tuple[Any, ...]) -> np.ndarray:
    """Faults made by `once`."""
    return np.array(list(rows), FAULT)


def played(
    c: Cluster,
    r: Requests,
    options: Options | None = None,
    policy: Policy | None = None,
    order: Policy | None = None,
) -> Driver:
    """The run's end, interpreted."""
    return run(c, r, options or Options(), Decider.of(policy or Scripted(), order), mode="interpreted")


def finishes(driver: Driver) -> list[float]:
    """Finish times in order of arrival; nan = not finished."""
    return driver.state.requests["finish_s"].tolist()


def starts(driver: Driver) -> list[float]:
    """Start times in order of arrival; nan = never started."""
    return driver.state.requests["start_s"].tolist()


def count(driver: Driver, name: str) -> int:
    """A counter of the run."""
    return int(driver.state.counts[name][0])
