"""Plans of teachers that know true sizes, for states that a student reaches in simulated runs.

The student sees a window of held requests and slots as `hungarian` does, by estimates. Its teacher sees when
slots are really free, how long requests really take, and what comes: it matches at least true cost, as
`hungarian` would, or makes a schedule of all that waits and comes next, and matches what that starts first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, NamedTuple

import numpy as np

from trimtab.domain.cluster import Floats, Ints
from trimtab.domain.policy import Decider
from trimtab.domain.requests import Requests, Status, true_service_s
from trimtab.domain.view import View
from trimtab.engine import simulator
from trimtab.engine.driver import Driver
from trimtab.learn.clairvoyant_schedules import clairvoyant_schedule
from trimtab.learn.drawn_workloads import Figures, Workloads, begun_run, completion_figures
from trimtab.policies.learned.learned_matching import MOST_REQUESTS, MOST_SLOTS, LearnedMatching
from trimtab.policies.resource_aware.hungarian import least_cost
from trimtab.policies.shared.demand_forecast import loads_s
from trimtab.policies.shared.plan_features import Window, window, window_of

Teacher = Literal["plans", "schedules"]
_NEXT: Final = 48  # requests to come that a schedule has
_EACH: Final = 2  # plans from one demonstration to the next
PERIOD_S: Final = 1.0  # between plans: a tenth of a usual service of generated clusters


class Demonstration(NamedTuple):
    """A window as the student sees it, and the slot of each request by the teacher [requests]; -1 = none."""

    seen: Window
    slot: Ints


class Demonstrated(NamedTuple):
    """A run with its demonstrations."""

    demonstrations: list[Demonstration]
    figures: Figures


Match = Callable[[View, Any, Ints, Floats], Ints]


@dataclass(frozen=True)
class _Observed(LearnedMatching):
    """A student whose matchings another sees and may replace."""

    match_of: ClassVar[Match]

    def match(self, view: View, waiting: Any, node: Ints, free_s: Floats) -> Ints:
        return type(self).match_of(view, waiting, node, free_s)


def demonstrated(
    workloads: Workloads, i: int, student: LearnedMatching, teacher: Teacher, teacher_acts: bool
) -> Demonstrated:
    """The run of a student on workload i, with what the teacher would do; or the teacher acts itself."""
    inputs = workloads.inputs(i)
    knows = _Knowledge(inputs.requests, true_service_s(inputs.cluster, inputs.requests))
    found, plans = list[Demonstration](), 0

    def match(view: View, waiting: Any, node: Ints, free_s: Floats) -> Ints:
        nonlocal plans
        plans += 1
        waiting, node, free_s = waiting[:MOST_REQUESTS], node[:MOST_SLOTS], free_s[:MOST_SLOTS]
        is_shown = plans % _EACH == 0
        if is_shown or teacher_acts:
            slot = knows.teach(driver, teacher, view, waiting, node)
            if is_shown:
                found.append(Demonstration(window_of(view, waiting, node, free_s), slot))
            if teacher_acts:
                return slot
        return student.match(view, waiting, node, free_s)

    observed = type("Observed", (_Observed,), {"match_of": staticmethod(match)})
    driver = begun_run(workloads, i, Decider.of(observed(artifact=student.artifact, plan_period_s=PERIOD_S)))
    simulator.go_to(driver, driver.options.horizon_s)
    return Demonstrated(found, completion_figures(driver))


@dataclass(frozen=True)
class _Knowledge:
    """What a teacher knows of a run's requests."""

    requests: Requests
    service_s: Floats  # [requests, types]

    def teach(self, driver: Driver, teacher: Teacher, view: View, waiting: Any, node: Ints) -> Ints:
        """The slot of each request that waits; -1 = none."""
        free_s, work, held = _true_free_s(driver, node), self.requests.work, waiting["serial"]
        if teacher == "plans":
            cost_s = (
                free_s + loads_s(view, waiting)[:, node] + self.service_s[held][:, view.nodes.type_idx[node]]
            )
            return least_cost(cost_s, view.context.now_s - waiting["arrival_s"])
        comes = np.searchsorted(work["arrival_s"], view.context.now_s, side="right")
        known = np.concatenate([held, np.arange(comes, min(comes + _NEXT, len(work)))])
        rows = work[known]
        there_s = self.service_s[known][:, view.nodes.type_idx[node]]
        item = np.where(rows["model_idx"] >= 0, rows["model_idx"], -1).astype(np.int64)
        load_s, best_s = loads_s(view, rows)[:, node], there_s.min(axis=1)
        all_of_it = window(there_s, load_s, free_s, best_s, np.zeros(len(rows)), item, node)
        later_s = np.maximum(0.0, rows["arrival_s"] - view.context.now_s)
        first, _ = clairvoyant_schedule(all_of_it, later_s, int(comes))
        slot = np.full(len(held), -1, np.int64)
        is_held = (first >= 0) & (first < len(held))
        slot[first[is_held]] = np.flatnonzero(is_held)
        return slot


def _true_free_s(driver: Driver, node: Ints) -> Floats:
    """Seconds until each slot is really free [slots]; a node's slots in that order."""
    rows, now_s = driver.state.requests, driver.now_s
    is_busy = rows["status"] == Status.RUNNING
    busy_node, left_s = rows["node_idx"][is_busy], rows["finish_s"][is_busy] - now_s
    free_s = np.zeros(len(node))
    for j in np.unique(busy_node).tolist():
        places = np.flatnonzero(node == j)
        idle = int(driver.state.nodes["slots"][j]) - int((busy_node == j).sum())
        ends = np.concatenate([np.zeros(idle), np.sort(left_s[busy_node == j])])
        free_s[places] = ends[: len(places)]
    return free_s
