"""The requests of a shared cluster: their simulation, one round at a time, on nodes that are on or off."""

from __future__ import annotations

import numpy as np

from trimtab.domain.requests import Status
from trimtab.domain.training_jobs import Flags, Floats
from trimtab.engine import simulator
from trimtab.engine.driver import Driver


class RequestSide:
    """Nodes that are off take no new requests; those that run there go on to their end.

    Attributes:
        busy_nodes: [rounds] nodes that the requests in the system would fill, mean of each round.
        load: [rounds, nodes] share of each node's slots in use, mean of each round.
    """

    def __init__(self, driver: Driver, round_s: float, rounds: int) -> None:
        self.driver, self._round_s = driver, round_s
        self._slots: Floats = driver.state.nodes["slots"].astype(np.float64)
        n_nodes = len(self._slots)
        self.busy_nodes, self.load = np.zeros(rounds), np.zeros((rounds, n_nodes))
        self._is_on = np.ones(n_nodes, np.bool_)
        self._on_from_s = np.full(n_nodes, np.inf)  # of nodes that are off; inf = not known yet

    def go_to(self, now_s: float) -> None:
        """Process all events up to this time."""
        for j in np.argsort(self._on_from_s, kind="stable"):
            at_s = float(self._on_from_s[j])
            if at_s <= now_s and at_s < np.inf:
                simulator.go_to(self.driver, at_s)
                simulator.switch(self.driver, int(j), True, at_s)
                self._is_on[j], self._on_from_s[j] = True, np.inf
        simulator.go_to(self.driver, now_s)

    def end_round(self, t: int) -> None:
        """Go to the end of round t, and note how full it was."""
        begin_s, end_s = t * self._round_s, (t + 1) * self._round_s
        self.go_to(end_s)
        n = self.driver.n_arrived
        rows, arrival_s = self.driver.state.requests[:n], self.driver.state.work["arrival_s"][:n]
        over_s = np.where(np.isnan(rows["ended_s"]), rows["finish_s"], rows["ended_s"])
        over_s = np.where(rows["status"] >= Status.FINISHED, over_s, np.inf)
        recent = np.flatnonzero(over_s > begin_s)
        rows, until_s = rows[recent], np.minimum(over_s[recent], end_s)
        here_s = until_s - np.maximum(arrival_s[recent], begin_s)
        self.busy_nodes[t] = here_s.sum() / (self._round_s * self._slots.mean())
        runs = ~np.isnan(rows["start_s"])
        ran_s = (until_s - np.maximum(rows["start_s"], begin_s))[runs]
        slot_s = np.bincount(rows["node_idx"][runs], ran_s, len(self._slots))
        self.load[t] = np.minimum(slot_s / (self._round_s * self._slots), 1.0)

    @property
    def is_empty(self) -> Flags:
        """Whether each node has no requests, [nodes]."""
        empty: Flags = self.driver.state.nodes["in_flight"] == 0
        return empty

    def set_on(self, wanted: Flags, now_s: float, later_s: Floats) -> None:
        """Which nodes take new requests from now on; those that were off do so `later_s` [nodes] later."""
        for j in np.flatnonzero(~wanted):
            self._on_from_s[j] = np.inf
            if self._is_on[j]:
                self._is_on[j] = False
                simulator.switch(self.driver, int(j), False, now_s)
        comes = wanted & ~self._is_on & (self._on_from_s == np.inf)
        self._on_from_s[comes] = now_s + later_s[comes]

    def slow(self, t: int, speed: Floats) -> None:
        """Requests run at these speeds [nodes] in round t; the run has `slow_downs` for it."""
        n = len(speed)
        self.driver.state.faults["factor"][t * n : (t + 1) * n] = speed
