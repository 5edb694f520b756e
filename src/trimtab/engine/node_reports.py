"""Outside events of a live host's nodes, written into the state of a run between two events of the loop.

Only the arrays that policies see change: use and demand of resources, KV memory, round trips, links.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from trimtab.engine.driver import Driver
from trimtab.engine.events import SWITCH
from trimtab.engine.new_state import in_steps
from trimtab.engine.state import State


class EngineReport(NamedTuple):
    """What a node that serves a language model has told, at `read_s`; 0 = it does not say."""

    read_s: float = 0.0
    kv_used: float = 0.0  # tokens
    kv_tokens: float = 0.0  # capacity
    decoding: int = 0
    step_s: float = 0.0  # of an iteration with these
    row_s: float = 0.0  # by which one more lengthens it
    usual_step_s: float = 0.0  # in which the estimates of service were made


NO_REPORT: Final = EngineReport()


class NodeReports:
    """Writes reports into the state of one driver. The next `advance` offers held requests again."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._engines: dict[int, EngineReport] = {}

    @property
    def _state(self) -> State:
        return self._driver.state  # a driver replaces its state when its events need more room

    def add_use(self, node_idx: int, class_idx: int, requests: int) -> None:
        """Requests of another sender take resources of a node, or no longer (negative)."""
        state = self._state
        if state.demand.shape[1]:
            state.used[node_idx] += requests * state.demand[class_idx]

    def set_demand(self, demand: np.ndarray, now_s: float) -> None:
        """Set what a request of each class takes, [classes, resources]. `set_used` must follow."""
        state, demand = self._state, in_steps(demand)
        if (demand != state.demand).any():
            state.demand[...] = demand
            self._note_changes(np.arange(len(state.nodes)), now_s)  # policies keep scores of nodes by class

    def set_class_demand(self, class_idx: int, demand: np.ndarray) -> None:
        """Set what a request of one class takes [resources], while none runs."""
        self._state.demand[class_idx] = in_steps(demand)

    def set_used(self, used: np.ndarray, reported_s: np.ndarray, now_s: float) -> None:
        """Set what is in use on each node [nodes, resources], by requests that run here and by others.

        `reported_s` [nodes]: when the part of others was reported; inf = never.
        """
        state, used = self._state, in_steps(used)
        state.use_reported_s[...] = reported_s
        nodes = np.flatnonzero((used != state.used).any(axis=1))
        if len(nodes):
            state.used[nodes] = used[nodes]
            self._note_changes(nodes, now_s)

    def set_engine(self, node_idx: int, told: EngineReport, now_s: float) -> None:
        """Set what a node reports of its engine. Each request that decodes adds a token in each iteration."""
        if self._engines.get(node_idx, NO_REPORT) == told:
            return
        self._engines[node_idx], state = told, self._state
        load = state.engine_load[node_idx]
        per_s = told.decoding / told.step_s if told.step_s > 0.0 else 0.0
        aged_s = told.read_s - state.nodes["anchor_s"][node_idx]  # the line of its use passes the report
        load["kv_used"], load["kv_per_s"] = told.kv_used - per_s * aged_s, per_s
        load["kv_tokens"], load["decoding"] = told.kv_tokens, told.decoding
        load["step_s"], load["row_s"] = told.step_s, told.row_s
        state.usual_step_s[node_idx] = told.usual_step_s
        if told.usual_step_s == 0.0:
            load["load_factor"] = 1.0
        self._note_changes(np.array([node_idx]), now_s)

    def add_requests(self, node_idx: int, requests: int, estimate_s: float, now_s: float) -> None:
        """Requests that others sent to a node, or fewer of them (negative). They take no room of ours."""
        nodes = self._state.nodes
        nodes["in_flight"][node_idx] = max(0, nodes["in_flight"][node_idx] + requests)
        nodes["outstanding_s"][node_idx] = max(0.0, nodes["outstanding_s"][node_idx] + estimate_s)
        self._driver.push(now_s, SWITCH, node_idx, 0)

    def set_round_trips(self, rtt_s: np.ndarray, now_s: float) -> None:
        """Set the round trips between zones, [zones, zones]."""
        state = self._state
        if (rtt_s != state.rtt_s).any():
            state.rtt_s[...] = rtt_s
            self._note_changes(np.arange(len(state.nodes)), now_s)

    def set_link(self, node_idx: int, active: int, gib_per_s: float) -> None:
        """Set the transfers under way to a node, and the bandwidth that they share."""
        state = self._state
        link = len(state.rtt_s) + node_idx
        state.link_active[link] = active
        state.views[0].link_gib_per_s[link] = gib_per_s  # one array in all views

    def set_load_time(self, item_idx: int, type_idx: int, load_s: float, now_s: float) -> None:
        """Set how long nodes of a type take to load an item."""
        state = self._state
        state.load_s[item_idx, type_idx] = load_s
        self._note_changes(np.flatnonzero(state.nodes["type_idx"] == type_idx), now_s)

    def note_residents(self, node_idx: int, now_s: float) -> None:
        """Note a change of the items that `resident` says the node holds."""
        self._state.resident_changes[node_idx] += 1
        self._note_changes(np.array([node_idx]), now_s)

    def set_memory_used(self, node_idx: int, now_s: float) -> None:
        """`resident` says all that the node holds: count its memory anew."""
        state = self._state
        state.hidden["memory_used_gib"][node_idx] = state.item_gib[state.resident[node_idx] == 1].sum()
        self.note_residents(node_idx, now_s)

    def _note_changes(self, nodes: np.ndarray, now_s: float) -> None:
        """Log changes of nodes for all policies, and offer held requests."""
        state = self._state
        for d in range(len(state.is_changed)):
            n = int(state.contexts["n_changed"][d])
            new = nodes[state.is_changed[d][nodes] == 0]
            state.is_changed[d][new] = 1
            state.changed[d][n : n + len(new)] = new
            state.contexts["n_changed"][d] = n + len(new)
        self._driver.push(now_s, SWITCH, int(nodes[0]), 0)
