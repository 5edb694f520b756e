"""Requests on pools whose nodes come and go, period by period.

At the end of each period the rule sees what its pool showed and says how many nodes it wants. A node that is
ordered serves after its start-up time, with empty memory. One that is returned takes no new requests, those
that run there go on, and it is paid until the last of them has ended. A node that is wanted again before that
serves on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from trimtab.domain.requests import Status
from trimtab.domain.training_jobs import Flags, Floats, Ints
from trimtab.engine import simulator
from trimtab.engine.bound_state import python_state
from trimtab.engine.prefix_cache import forget_prefixes, has_prefixes
from trimtab.engine.records import records_of
from trimtab.engine.residency import forget_all
from trimtab.experiments.autoscaling.autoscalers import Autoscaler, PoolState, settled
from trimtab.experiments.autoscaling.autoscaling_scenario import AutoscalingScenario
from trimtab.experiments.colocation.round_companions import RequestSide
from trimtab.experiments.scenario.build import RunInputs
from trimtab.metrics import Records
from trimtab.policies import find

RECENT = 256  # requests whose estimates rules see
LONGEST_AFTER_S = 86_400.0  # the rule goes on so long after the last arrival, while requests are left


@dataclass(frozen=True, eq=False)
class AutoscalingInputs:
    """One seed of a scenario."""

    scenario: AutoscalingScenario
    seed: int
    serving: RunInputs
    offered_load: float  # on all nodes

    def __len__(self) -> int:
        return len(self.serving.requests)

    @cached_property
    def pools(self) -> list[Pool]:
        """The pools, in the file's order."""
        cluster = self.serving.cluster
        made = []
        for name, spec in self.scenario.pools.items():
            nodes = np.flatnonzero(cluster.type_idx == cluster.type_names.index(name))
            most = len(nodes) if spec.most is None else spec.most
            initial = max(spec.least, 1) if spec.initial is None else spec.initial
            made.append(Pool(name, nodes[:most], spec.least, initial, spec.start_s, spec.cool_down_s))
        return made


@dataclass(frozen=True, eq=False)
class Pool:
    """Nodes of a type, of which some serve."""

    name: str
    nodes: Ints
    least: int
    initial: int
    start_s: float
    cool_down_s: float


@dataclass(frozen=True, eq=False)
class AutoscalingRecords:
    """The records of a run."""

    inputs: AutoscalingInputs
    requests: Records
    nodes_paid: Floats  # [periods] nodes that were paid, mean of all pools and what stays, at their ends
    starts: int  # nodes that were ordered
    node_hours: float


def run_autoscaled(inputs: AutoscalingInputs, rule: Autoscaler, mode: str = "auto") -> AutoscalingRecords:
    """Run requests and pools."""
    return _Scaled(inputs, rule, mode).run()


class _Period(NamedTuple):
    """What a period showed that is no pool's own."""

    t: int
    now_s: float  # its end
    first: int  # request that arrived in it …
    last: int  # … and the first one after it
    held: int  # requests that no node serves at its end


class _Scaled:
    """One run."""

    def __init__(self, inputs: AutoscalingInputs, rule: Autoscaler, mode: str) -> None:
        self._inputs, self._rule = inputs, rule
        scenario, ready = inputs.scenario, inputs.serving
        self._period_s = scenario.period_s
        self._last_s = float(ready.requests.work["arrival_s"][-1])
        rounds = math.ceil((self._last_s + LONGEST_AFTER_S) / self._period_s)
        decider = find(scenario.serve_with)
        self._driver = simulator.begun(
            ready.cluster, ready.requests, ready.options, decider, seed=inputs.seed, mode=mode
        )
        self._side = RequestSide(self._driver, self._period_s, rounds, len(ready.cluster.class_names))
        n = ready.cluster.n_nodes
        self._is_wanted = np.ones(n, np.bool_)
        self._ordered_s = np.zeros(n)  # when the present stretch of each node was ordered
        self._spans: list[tuple[int, float, float]] = []  # node, ordered, returned
        self._starts = 0
        self._answers: list[list[int]] = [[] for _ in inputs.pools]
        self._changed_s = [-math.inf for _ in inputs.pools]
        self._attained = np.full(rounds, np.nan)  # [periods] of requests that ended, the share in time
        self._shown = [
            {name: np.zeros(rounds) for name in ("concurrency", "busy", "arrivals")} for _ in inputs.pools
        ]
        self._slo_s = 0.0
        self._estimates = [self._services_s(pool) for pool in inputs.pools]
        classes = ready.requests.work["class_idx"]
        self._slo_of = np.where(np.isfinite(ready.slo_s[classes]), ready.slo_s[classes], np.nan)

    def _services_s(self, pool: Pool) -> Floats:
        """Estimated seconds of each request on the pool's type; inf = not served [requests]."""
        cluster, work = self._inputs.serving.cluster, self._inputs.serving.requests.work
        g, c = int(cluster.type_idx[pool.nodes[0]]), work["class_idx"]
        return np.asarray(cluster.fixed_s[c, g] + cluster.unit_s[c, g] * work["units"], np.float64)

    def run(self) -> AutoscalingRecords:
        """To the end of the last request."""
        for pool in self._inputs.pools:
            self._is_wanted[pool.nodes[pool.initial :]] = False
            self._is_wanted[np.setdiff1d(self._of_type(pool), pool.nodes)] = False
        self._ordered_s[~self._is_wanted] = np.nan
        self._side.set_on(self._is_wanted, 0.0, np.zeros(len(self._is_wanted)))
        paid = []
        for t in range(len(self._side.busy_nodes)):
            now_s = (t + 1) * self._period_s
            self._side.end_round(t)
            if now_s >= self._last_s and self._driver.state.counts["in_system"][0] == 0:
                break
            seen, wanted = self._see(t, now_s), self._is_wanted.copy()
            for k, pool in enumerate(self._inputs.pools):
                self._decide(k, pool, self._state(k, pool, seen), wanted)
            if (wanted != self._is_wanted).any():
                self._change(wanted, now_s)
            paid.append(float(self._is_wanted.sum()))
        self._side.go_to(np.inf)
        return self._records(np.array(paid))

    def _of_type(self, pool: Pool) -> Ints:
        kinds = self._inputs.serving.cluster.type_idx
        return np.flatnonzero(kinds == kinds[pool.nodes[0]])

    def _see(self, t: int, now_s: float) -> _Period:
        """What the period showed that is no pool's own."""
        arrival_s, begin_s = self._inputs.serving.requests.work["arrival_s"], now_s - self._period_s
        first, last = np.searchsorted(arrival_s, [begin_s, now_s], side="left").tolist()
        slo_s = self._slo_of[first:last]
        if np.isfinite(slo_s).any():
            self._slo_s = float(np.nanmean(slo_s))
        self._attained[t] = self._attained_since(begin_s)
        held = int((self._driver.state.requests["status"][: self._driver.n_arrived] == Status.HELD).sum())
        return _Period(t, now_s, first, last, held)

    def _decide(self, k: int, pool: Pool, state: PoolState, wanted: Flags) -> None:
        """Ask the rule about a pool, and mark the nodes that are to serve in `wanted`."""
        answer = self._rule.wanted(state)
        count = min(max(settled(state, self._rule, answer), pool.least), len(pool.nodes))
        self._answers[k].append(answer)  # `state` reads them
        is_cooling = state.now_s - self._changed_s[k] < pool.cool_down_s
        if count == state.nodes or (count < state.nodes and is_cooling):
            return
        self._changed_s[k] = state.now_s
        here, up = self._is_wanted[pool.nodes], self._driver.state.nodes["up"][pool.nodes] == 1
        in_flight = self._driver.state.nodes["in_flight"][pool.nodes]
        if count > state.nodes:  # first those that still serve their last requests
            order = np.lexsort((pool.nodes, -in_flight, here))
            wanted[pool.nodes[order[: count - state.nodes]]] = True
        else:  # first those that do not serve yet, then the least busy
            order = np.lexsort((-pool.nodes, in_flight, up, ~here))
            wanted[pool.nodes[order[: state.nodes - count]]] = False

    def _state(self, k: int, pool: Pool, seen: _Period) -> PoolState:
        """What the pool showed up to now."""
        nodes, shown, side, t = self._driver.state.nodes, self._shown[k], self._side, seen.t
        up = nodes["up"] == 1
        mine, capacity = np.zeros(len(up), np.bool_), nodes["slots"] * up
        mine[pool.nodes] = True
        share = float(capacity[mine].sum() / capacity.sum()) if capacity.any() else 1.0 / len(self._shown)
        recent_s = self._estimates[k][max(0, seen.last - RECENT) : seen.last]
        in_use = side.load[t] * nodes["slots"]
        busy, waits = float(in_use[mine].sum()), side.busy_nodes[t] * nodes["slots"].mean() - in_use.sum()
        shown["concurrency"][t] = busy + share * max(0.0, float(waits))
        shown["busy"][t] = busy
        shown["arrivals"][t] = share * (seen.last - seen.first)
        ready = int((up & self._is_wanted)[mine].sum())
        return PoolState(
            now_s=seen.now_s,
            period_s=self._period_s,
            start_s=pool.start_s,
            ready=ready,
            coming=int(self._is_wanted[mine].sum()) - ready,
            slots=int(nodes["slots"][pool.nodes[0]]),
            waiting=round(share * seen.held),
            recent_s=recent_s[np.isfinite(recent_s)],
            slo_s=self._slo_s,
            attained=self._attained[: t + 1],
            answers=self._answers[k],
            **{name: values[: t + 1] for name, values in shown.items()},
        )

    def _attained_since(self, since_s: float) -> float:
        """Share of the requests that ended since then within their objective; nan = none did."""
        n = self._driver.n_arrived
        rows = self._driver.state.requests[:n]
        ended = np.flatnonzero((rows["status"] >= Status.FINISHED) & (rows["ended_s"] > since_s))
        if not len(ended):
            return math.nan
        took_s = rows["ended_s"][ended] - self._inputs.serving.requests.work["arrival_s"][ended]
        in_time = (rows["status"][ended] == Status.FINISHED) & ~(took_s > self._slo_of[ended])
        return float(in_time.mean())

    def _change(self, wanted: Flags, now_s: float) -> None:
        """Order and return nodes."""
        state, own = self._driver.state, python_state(self._driver.state)
        later_s = np.zeros(len(wanted))
        for j in np.flatnonzero(wanted & ~self._is_wanted).tolist():
            if state.nodes["in_flight"][j] == 0:
                later_s[j] = self._start_s(j)
                forget_all(own, j, now_s)
                if has_prefixes(own):
                    forget_prefixes(own, j)
                self._starts += 1
                self._ordered_s[j] = now_s
            else:  # it serves on
                at = max(i for i, (node, _, _) in enumerate(self._spans) if node == j)
                self._ordered_s[j] = self._spans.pop(at)[1]
        for j in np.flatnonzero(self._is_wanted & ~wanted).tolist():
            self._spans.append((j, float(self._ordered_s[j]), now_s))
            self._ordered_s[j] = np.nan
        self._is_wanted = wanted
        self._side.set_on(wanted, now_s, later_s)

    def _start_s(self, j: int) -> float:
        return next(pool.start_s for pool in self._inputs.pools if j in pool.nodes)

    def _records(self, paid: Floats) -> AutoscalingRecords:
        """Records whose nodes are paid and up while they were ordered."""
        ready = self._inputs.serving
        found = records_of(self._driver, ready.cluster, ready.requests, ready.slo_s, ready.token_slos)
        rows = found.requests
        paid_s = np.zeros(ready.cluster.n_nodes)
        open_ = [
            (j, float(self._ordered_s[j]), found.end_s)
            for j in np.flatnonzero(np.isfinite(self._ordered_s)).tolist()
        ]
        for j, from_s, to_s in (*self._spans, *open_):
            there = (rows.node_idx == j) & (rows.start_s < to_s) & (rows.finish_s > to_s)
            until_s = float(rows.finish_s[there].max()) if there.any() else to_s
            paid_s[j] += max(0.0, min(until_s, found.end_s) - max(from_s, found.start_s))
        window_s = max(found.window_s, 1e-9)
        nodes = replace(found.nodes, up_s=paid_s, paid_frac=paid_s / window_s)
        hours = float(paid_s.sum()) / 3600.0
        return AutoscalingRecords(self._inputs, replace(found, nodes=nodes), paid, self._starts, hours)
