"""Every order acts under every policy: of what waits, its choice starts first, whoever chooses nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from support.builders import cluster
from support.by_hand import asked
from support.conformance_cases import ORDERS, in_turn
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Options
from trimtab.domain.policy import Decider
from trimtab.domain.requests import Requests
from trimtab.domain.view import UNLIMITED
from trimtab.engine.simulator import run
from trimtab.errors import UsageError
from trimtab.policies import find, names, policy_class

NODES, BLOCKERS, HALF = 3, 6, 12
IS_LATER = np.arange(BLOCKERS + 2 * HALF) >= BLOCKERS + HALF
IS_EARLIER = ~IS_LATER & (np.arange(BLOCKERS + 2 * HALF) >= BLOCKERS)

# A column of the earlier and of the later half of what waits: each order prefers the later half.
STRICT: dict[str, tuple[str, Any, Any]] = {
    "edf": ("deadline_s", np.inf, 500.0),
    "least-laxity": ("deadline_s", 900.0, 500.0),
    "priority-ageing": ("priority", 0, 3),
    "priority-deadline": ("priority", 0, 3),
    "sjf": ("units", 3.0, 1.0),
    "cmu": ("class_idx", 1, 0),  # the class of the shorter work
    "critical-path": ("rank_s", 1.0, 9.0),
    "fair-runs": ("run_arrival_s", 0.0, -9.0),
}
FAIR = ("vtc", "drf", "hdrf", "drfq", "fair-share")  # two tenants share, where the first came first
CHOOSERS = [name for name in names("dispatch") if not policy_class(name).binds]


def overloaded(column: str, earlier: Any, later: Any, queue_max: int) -> tuple[Cluster, Requests, Options]:
    """Long requests on all nodes, then the waiting ones, all long before any node is free."""
    c, n = cluster(NODES, classes=2, queue_max=queue_max), len(IS_LATER)
    values = np.where(IS_LATER, later, earlier)
    units = values.copy() if column == "units" else np.ones(n)
    units[:BLOCKERS] = 40.0
    r = asked(c, [0.001 * i for i in range(n)], units, cost=units)
    if column != "units":
        r.work[column] = values
        if column == "class_idx":
            r.work["estimate_s"] = c.best_estimate_s(r.work["class_idx"], units)
    return c, replace(r, tenant_names=("a", "b"), tenant_weight=np.ones(2)), Options()


def lead_s(policy: str, order: str | None, case: tuple[Cluster, Requests, Options]) -> float:
    """By how much the later half starts sooner than the earlier one, on average."""
    decider = Decider.of(policy_class(policy)(), policy_class(order)() if order else None)
    start_s = run(*case, decider).state.requests["start_s"]
    assert np.isfinite(start_s).all()
    return float(start_s[IS_EARLIER].mean() - start_s[IS_LATER].mean())


@in_turn(CHOOSERS, STRICT, each=2)
def test_what_the_order_prefers_starts_first(spec: str, case: str) -> None:
    for queue_max in (1,) if case == "cmu" else (1, UNLIMITED):
        assert lead_s(spec, case, overloaded(*STRICT[case], queue_max)) > 0.0


@in_turn(CHOOSERS, FAIR, each=1)
def test_tenants_share_instead_of_going_by_arrival(spec: str, case: str) -> None:
    waiting = overloaded("tenant_idx", 0, 1, 1)
    by_arrival_s, shared_s = lead_s(spec, "fcfs", waiting), lead_s(spec, case, waiting)
    assert by_arrival_s <= -HALF / NODES  # the first tenant's half is over when the second one's begins
    assert shared_s > 0.6 * by_arrival_s


def test_every_order_has_a_case() -> None:
    assert {*STRICT, *FAIR, "fcfs"} == set(ORDERS)


def test_a_policy_that_plans_what_is_next_refuses_orders() -> None:
    with pytest.raises(UsageError, match="plans itself which waiting request is next"):
        find("hungarian+edf")


def test_scores_decide_between_equal_keys() -> None:
    """Two urgent requests of different length and the rest without a deadline: `late-binding+edf`."""
    c = cluster(1)
    r = asked(c, [0.0, 0.1, 0.2, 0.3, 0.4], [9.0, 4.0, 3.0, 2.0, 1.0])
    r.work["deadline_s"][1:3] = 50.0
    start_s = run(c, r, Options(), find("late-binding+edf")).state.requests["start_s"]
    assert start_s.tolist() == [0.0, 12.0, 9.0, 17.0, 16.0]
