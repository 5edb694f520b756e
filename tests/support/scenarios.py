"""Random small scenarios with everything switched on, for properties that must hold in all of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from support.builders import cluster, faults, requests
from support.mini_policies import Anywhere, ByDeadline, ByPriority, Emptiest, InTurn, TwoChoices
from trimtab.domain.cluster import RESOURCES, Cluster
from trimtab.domain.options import FAULT, Cancel, OnFailure, OnRefusal, Options
from trimtab.domain.policy import Decider, Policy
from trimtab.domain.requests import Requests
from trimtab.domain.view import UNLIMITED
from trimtab.engine.driver import Driver


@dataclass(frozen=True)
class Case:
    """Everything a Driver takes."""

    cluster: Cluster
    requests: Requests
    options: Options
    policy: Policy
    order: Policy | None
    seed: int

    def driver(self, mode: str = "interpreted") -> Driver:
        decider = Decider.of(self.policy, self.order)
        return Driver(self.cluster, self.requests, self.options, decider, seed=self.seed, mode=mode)


def _cluster(pick: Any) -> Cluster:
    types, models = pick.integers(1, 3), pick.integers(0, 4)
    n = pick.integers(1, 6)
    c = cluster(
        n,
        types=types,
        slots=pick.integers(1, 4, n),
        classes=2,
        models=models,
        adapters=pick.integers(0, 3) if models else 0,
        zones=pick.integers(1, 3),
        queue_max=int(pick.choice([0, 1, 3, UNLIMITED])),
        load_s=pick.choice([0.0, 0.5]),
        memory_gib=pick.choice([6.6, 12.5, 40.0]),
        nic_gib_per_s=pick.choice([0.5, np.inf]),
        unserved=[(1, 0)] if pick.random() < 0.3 else [],
    )
    return _with_resources(replace(c, zone_gib_per_s=pick.choice([0.7, np.inf], len(c.zone_names))), pick)


def _with_resources(c: Cluster, pick: Any) -> Cluster:
    """None, one or three; some nodes too small for a class, or without a resource."""
    many = int(pick.choice([0, 1, 3]))
    return replace(
        c,
        resource_names=RESOURCES[:many],
        capacity=pick.choice([0.0, 0.7, 1.0, 2.3], (c.n_nodes, many), p=[0.1, 0.2, 0.3, 0.4]),
        demand=pick.choice([0.0, 0.1, 0.35, 0.8], (len(c.class_names), many)),
    )


def _requests(c: Cluster, pick: Any, n: int) -> Requests:
    r = requests(
        c,
        n,
        load=pick.choice([0.5, 1.0, 2.0]),
        seed=int(pick.integers(1 << 30)),
        priorities=3,
        deadline_s=pick.choice([1.0, 4.0]),
        payload_gib=pick.choice([0.0, 0.2]),
        noise=True,
    )
    if pick.random() < 0.3:  # some deadlines have passed on arrival
        r.work["deadline_s"] -= 2.0
    if pick.random() < 0.4:  # whole numbers: many things happen at once
        r.work["arrival_s"] = np.floor(r.work["arrival_s"])
        r.truth["units"], r.truth["factor"] = np.ceil(r.truth["units"]), 1.0
        r.work["deadline_s"] = np.ceil(r.work["deadline_s"])
    return r


def _faults(c: Cluster, pick: Any) -> np.ndarray | None:
    if pick.random() < 0.3:
        return None
    failing, slow = (pick.integers(0, c.n_nodes, pick.integers(0, 3)) for _ in range(2))
    recurring = faults(failing, slow, mtbf_s=pick.choice([1.0, 5.0]), mttr_s=1.0)
    single = np.zeros(2, FAULT)
    single["mtbf_s"], single["node_idx"] = np.inf, pick.integers(0, c.n_nodes, 2)
    single["start_s"] = pick.integers(0, 4, 2)
    single["end_s"] = single["start_s"] + pick.integers(1, 4, 2)
    single["factor"] = pick.choice([0.0, 0.25], 2)
    return np.concatenate([recurring, single])


def _options(c: Cluster, pick: Any) -> Options:
    return Options(
        held_max=int(pick.choice([0, 2, 10, UNLIMITED])),
        on_refusal=OnRefusal(int(pick.integers(0, 2))),
        lookahead=int(pick.integers(1, 4)),
        cancel=Cancel(int(pick.integers(0, 3))),
        on_failure=OnFailure(int(pick.integers(0, 2))),
        max_retries=int(pick.integers(0, 3)),
        dispatchers=int(pick.integers(1, 4)),
        telemetry_period_s=float(pick.choice([0.0, 0.5, 1.0])),
        telemetry_delay_s=float(pick.choice([0.0, 0.2, 0.5, 2.3])),
        faults=_faults(c, pick),
    )


def case(seed: int, n: int = 40) -> Case:
    """The random scenario with this number."""
    pick = np.random.default_rng(seed)
    c = _cluster(pick)
    policies = (Emptiest(), InTurn(), TwoChoices(), Anywhere())
    orders = (None, ByDeadline(), ByPriority())
    return Case(
        c,
        _requests(c, pick, n),
        _options(c, pick),
        policies[pick.integers(len(policies))],
        orders[pick.integers(len(orders))],
        int(pick.integers(1 << 30)),
    )


cases = st.integers(0, 1 << 40).map(case)
