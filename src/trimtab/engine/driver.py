"""Runs the loop for a host: binds policies, enlarges the event heap, applies plans, and reports failures."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from trimtab.compiled.kernel import interpreted
from trimtab.domain.cluster import Cluster
from trimtab.domain.needs import Need
from trimtab.domain.options import Options
from trimtab.domain.planning import HISTORY, RUNS, WAITING, History, Runs, checked_plan
from trimtab.domain.policy import Decider, Policy, members
from trimtab.domain.requests import Requests, Status
from trimtab.domain.view import MAX_RANKED, Plan, View, empty_plan
from trimtab.engine.bindings import located
from trimtab.engine.bound_state import Columns
from trimtab.engine.calls import Calls, Raised, are_runs_compiled, is_ready
from trimtab.engine.events import COMPLETION, LOSS, PLAN, key_of
from trimtab.engine.loop import DECIDE, FULL, MAX_IDLE_EVENTS
from trimtab.engine.network_state import enlarged
from trimtab.engine.new_state import memory_of, new_state
from trimtab.engine.policy_errors import policy_failure
from trimtab.engine.python_policies import COUNT_OF_NODES
from trimtab.engine.request_history import is_sent
from trimtab.engine.rollout import Rollouts, Setting
from trimtab.engine.state import SIMULATED, HostMode
from trimtab.engine.told_runs import runs_of, taken
from trimtab.errors import PolicyError

_NEVER = float("inf")
_EVENT_ROW = Struct("=dq")  # an EVENT in one call
_EVENT_BYTES, _pack_event = _EVENT_ROW.size, _EVENT_ROW.pack_into
_key_of = interpreted(key_of)
_SWITCHES = 1_000  # of a composite policy that are kept, the last ones
IS_OVER = 1  # version of a LOSS event: no client waits for the request


@dataclass(slots=True)
class PlanningLog:
    """Outcomes of the plans of a run. Only `made` plans took force."""

    made: int = 0
    late: int = 0  # took longer than their period
    raised: int = 0
    invalid: int = 0  # no plan for this cluster

    def add(self, other: PlanningLog) -> None:
        """Add the counts of another log."""
        self.made += other.made
        self.late += other.late
        self.raised += other.raised
        self.invalid += other.invalid


class Started(NamedTuple):
    """A request that took a slot. A live host hands it to its backend."""

    serial: int
    node_idx: int
    version: int  # distinguishes this start from a later one, and from a cancellation
    until_s: float  # when its drawn service time is over


class Driver:
    """One run of one policy. The host decides how far to advance, and how long a plan takes.

    A live host reports arrivals and completions (`arrive`, `complete`), advances the driver to the present,
    and hands started requests (`take_started`) to a backend.
    """

    def __init__(
        self,
        cluster: Cluster,
        requests: Requests,
        options: Options,
        decider: Decider,
        *,
        seed: int = 0,
        mode: str = "auto",
        host: HostMode = SIMULATED,
        shadow: Policy | None = None,
        planning: PlanningLog | None = None,
        declared: np.ndarray | Runs | None = None,
        bounds_time: bool = False,
    ) -> None:
        self.decider, self.policy = decider, decider.dispatch
        self.active_idx = 0  # the active candidate of a composite policy
        self.switches: deque[tuple[float, int]] = deque(maxlen=_SWITCHES)  # (time, candidate since then)
        self._cluster, self._shadow, self._active_of_shadow = cluster, shadow, 0
        self.options, self.label = options, decider.label
        compiled = mode == "compiled" or (mode == "auto" and are_runs_compiled([decider], len(requests)))
        self.state = new_state(cluster, requests, options, decider, seed, host=host, shadow=shadow)
        self.compiled, self.n_requests = compiled, len(requests)
        self.planning = planning or PlanningLog()
        self._declared, self._plans_apart = declared, bounds_time
        self._templates = None if requests.chains is None else requests.chains.templates
        self.rollouts = self.rollouts_for(decider)
        self._pending: deque[Plan] = deque()  # made, not yet in force
        self._is_placing = False  # the plan in force places items on nodes
        self._has_runs = bool(self.state.config["runs"][0])
        self._reuses_rows = host.rows_reused  # then rows are not in order of arrival
        self._first_open = 0  # all requests before this one are over
        self.last_plan = empty_plan()
        self._counts, self._rows = Columns(self.state.counts), Columns(self.state.requests)
        self._steps, self._n_injected, self._n_events = (
            self._counts.steps,
            self._counts.injected,
            self._counts.events,
        )
        self._see_events(self.state.events)
        work = Columns(self.state.work)
        self._arrival_s, self._run_arrival_s = work.arrival_s, work.run_arrival_s
        self._calls = Calls(self.state, decider, shadow, compiled=compiled, bounds_time=bounds_time)
        self._calls.begin()
        if requests.leave_s is not None:
            self._schedule_leaving(requests.leave_s)

    def _schedule_leaving(self, leave_s: np.ndarray) -> None:
        for serial in np.flatnonzero(np.isfinite(leave_s)).tolist():
            self.push(float(leave_s[serial]), LOSS, serial, IS_OVER)

    @property
    def now_s(self) -> float:
        """Time of the last event."""
        return float(self._counts.now_s[0])

    def advance(self, until_s: float = float("inf"), max_steps: int = 1 << 62) -> int:
        """Process all events up to `until_s`; returns one of the loop's codes. Raises PolicyError."""
        return self.advance_by(self._calls, until_s, max_steps)

    def advance_by(self, calls: Calls, until_s: float, max_steps: int = 1 << 62) -> int:
        """`advance` with other deciding functions than this driver's own."""
        while True:
            before = self._steps[0]
            try:
                code = calls.advance(until_s, max_steps)
            except Raised as error:
                raise self._failure(error) from error.__cause__
            if code < FULL or code == DECIDE:
                return code
            if code != FULL:  # no decision, or the policy raised
                raise PolicyError(f"policy {self.label!r} {self._bad_answer()}")
            self._enlarge(calls)
            max_steps -= self._steps[0] - before

    def _failure(self, raised: Raised) -> PolicyError:
        return policy_failure(self.label, raised.__cause__, self._when(raised.serial))

    def _bad_answer(self) -> str:
        answer, n_nodes = int(self.state.counts["answer"][0]), len(self.state.nodes)
        ranked = self.state.ranking["node_idx"][: max(0, min(answer, MAX_RANKED))].tolist()
        when = self._when(int(self.state.counts["deciding"][0]))
        return (
            f"answered {answer} with candidates {ranked} {when}; expected {COUNT_OF_NODES}, "
            f"each of them a node (0 to {n_nodes - 1})"
        )

    def _when(self, serial: int) -> str:
        return f"for request {serial} at {self.now_s:.6f} s"

    @property
    def addresses(self) -> np.ndarray:
        """The addresses of a compiled run, for benchmark kernels that call the policy themselves."""
        return self._calls.addresses

    def view(self, dispatcher: int = 0) -> View:
        """The present view of a dispatcher, as NumPy record arrays."""
        view = self.state.views[dispatcher]
        view.context["now_s"] = self.now_s
        nodes, engines = (array.view(np.recarray) for array in (view.nodes, view.engines))
        return view._replace(context=view.context.view(np.recarray)[0], nodes=nodes, engines=engines)

    def history(self) -> History:
        """The recent past, for planning."""
        past = self._past()
        return past._replace(work=past.work.copy())

    def _past(self) -> History:
        """`history` without a copy of the work. The caller reads it before the run continues."""
        past = self._recent_rows()
        work = taken(self.state.work, past)
        work.flags.writeable = False
        status, finish_s, node_idx = (
            self.state.requests[name][past] for name in ("status", "finish_s", "node_idx")
        )
        finish_s, node_idx = np.where(status == Status.FINISHED, finish_s, np.nan), node_idx.copy()
        in_flight = is_sent(status) & (node_idx >= 0)  # a run itself is at no node
        return History(work, finish_s, node_idx, in_flight, self.last_plan, self._past_runs())

    def _past_runs(self) -> Runs | None:
        """The last runs of chains, and all that are not over, for policies that use rollouts."""
        if self._templates is None or self.rollouts is None:
            return None
        arrived = self._counts.arrived[0]
        recent, status = max(0, arrived - RUNS), self.state.requests["status"]
        is_open = (status[:recent] != Status.PENDING) & (status[:recent] < Status.FINISHED)
        return runs_of(self.state, np.append(np.flatnonzero(is_open), np.arange(recent, arrived)))

    def _recent_rows(self) -> Any:
        """The last rows that needed a decision, oldest first."""
        if not self._has_runs:
            arrived = self._counts.arrived[0]
            return slice(max(0, arrived - HISTORY), arrived)
        ready = self._counts.ready[0]
        return self.state.recent[np.arange(max(0, ready - HISTORY), ready) % len(self.state.recent)]

    def waiting(self) -> np.ndarray:
        """The first held requests by queue key, as WORK rows."""
        held = self.held()
        serials = self.state.work["serial"][held]
        first = np.lexsort((serials, self.state.requests["key"][held]))[:WAITING]
        rows: np.ndarray = self.state.work[held[first]]
        return rows

    def held(self) -> np.ndarray:
        """Rows of the requests that the central queue holds, in no order."""
        status = self.state.requests["status"]
        if self._has_runs:
            return self.state.held_rows[: self._counts.n_held[0]].astype(np.int64)
        if self._reuses_rows:
            return np.flatnonzero(status == Status.HELD)
        arrived = self._counts.arrived[0]
        is_over = status[self._first_open : arrived] >= Status.FINISHED
        self._first_open += len(is_over) if is_over.all() else int(np.argmin(is_over))
        return self._first_open + np.flatnonzero(status[self._first_open : arrived] == Status.HELD)

    def make_plan(self) -> Plan | None:
        """Call the policy's `plan` now. Raises PolicyError if it raises or returns no valid plan."""
        try:
            inputs = self.view(), self._past(), self.waiting()
            plan = self.policy.plan(*inputs, self.rollouts and self.rollouts.from_state(*inputs))
        except Exception as error:
            raise policy_failure(self.label, error, f"in plan() at {self.now_s:.6f} s") from error
        if plan is None:
            return None
        return checked_plan(plan, len(self.state.nodes), len(members(self.policy)))

    def rollouts_for(self, decider: Decider) -> Rollouts | None:
        """The rollouts for a policy. All variants use the separate order of `decider`, if it has one."""
        if Need.ROLLOUT not in decider.dispatch.all_needs:
            return None
        # Results are the same. A process that plans may compile: its host goes on meanwhile.
        compiled = self.compiled or self._plans_apart or is_ready(*decider)
        return Rollouts(
            Setting(
                self._cluster,
                self.options,
                decider,
                self.state.tenant_weight,
                compiled,
                self._declared,
                use_from_outside=bool(self.state.config["use_from_outside"][0]),
                templates=self._templates,
            )
        )

    def adopt(self, plan: Plan, at_s: float) -> None:
        """Put a plan in force at `at_s`: now, or when `advance` returns PLAN_READY."""
        self.planning.made += 1
        self.last_plan = plan
        if at_s <= self.now_s:
            self._put_in_force(plan)
        else:
            self._pending.append(plan)
            self.push(at_s, PLAN, 0, 1)

    def set_shadow_plan(self, plan: Plan) -> None:
        """Put a plan of the shadow policy in force."""
        self._calls.set_shadow_plan(plan)
        if self._shadow is not None and plan.active_idx[0] != self._active_of_shadow:
            self._active_of_shadow = int(plan.active_idx[0])
            self._switch_shadow(members(self._shadow)[self._active_of_shadow])

    def put_next_in_force(self) -> None:
        """Carry out PLAN_READY."""
        self._put_in_force(self._pending.popleft())

    def _put_in_force(self, plan: Plan) -> None:
        self._calls.set_plan(located(plan, self.held(), self.state.work) if len(plan.binding) else plan)
        if plan.active_idx[0] != self.active_idx:
            self.active_idx = int(plan.active_idx[0])
            self.switches.append((self.now_s, self.active_idx))
            self._switch_policy(members(self.policy)[self.active_idx])
        if plan.placement.size or self._is_placing:
            self._is_placing = plan.placement.size > 0
            self._counts.replanned[0] = 1
        self._counts.offers_due[0] = 1  # this plan may dispatch held requests

    def _switch_policy(self, policy: Policy) -> None:
        """Switch to another candidate. Its order applies too, unless the run has a separate order."""
        is_new_order = self.decider.has_own_order
        many, order_memories = len(self.state.order_memories), self.state.order_memories
        memories = [memory_of(policy, self._cluster) for _ in range(many)]
        if is_new_order:
            order_memories = [memory_of(policy, self._cluster) for _ in range(many)]
        decider = Decider(policy, policy if is_new_order else self.decider.order)
        self._calls.switch_policy(decider, memories, order_memories)
        memories = memories + self.state.memories[many:]
        self.state = self.state._replace(memories=memories, order_memories=order_memories)
        try:
            self._calls.activate(is_new_order, self.now_s)
        except Raised as error:
            raise self._failure(error) from error.__cause__

    def _switch_shadow(self, shadow: Policy) -> None:
        own = memory_of(shadow, self._cluster)
        self._calls.switch_shadow(shadow, own)
        self.state = self.state._replace(memories=[*self.state.memories[:-1], own])
        self._calls.activate(False, self.now_s)

    def push(self, time_s: float, kind: int, serial: int, version: int) -> None:
        """Schedule an event. The loop puts it into the heap when it continues."""
        n_injected = self._n_injected
        count = n_injected[0]
        at = (self._n_events[0] + count) * _EVENT_BYTES
        if at == self._event_room:
            self._enlarge(self._calls)
        _pack_event(self._event_bytes, at, time_s, _key_of(kind, serial, version))
        n_injected[0] = count + 1

    def skip_plans(self, now_s: float) -> None:
        """Skip the plans before `now_s`, for a run that begins after 0. Call it before any other event."""
        if self.policy.plan_period_s > 0.0:
            self._counts.events[0] -= 1  # the first plan, the only event there is
            self.push(now_s, PLAN, int(now_s / self.policy.plan_period_s), 0)

    def _enlarge(self, calls: Calls) -> None:
        larger = enlarged(self.state)
        self.state = self.state._replace(**larger)
        self._see_events(self.state.events)
        for bound in {id(c): c for c in (self._calls, calls)}.values():
            bound.use_arrays(larger)

    def _see_events(self, events: Any) -> None:
        self._event_s = Columns(events).time_s
        self._event_bytes = memoryview(events.view(np.uint8))
        self._event_room = len(self._event_bytes)

    def arrive(self, now_s: float) -> None:
        """Live hosts: the next request has arrived."""
        serial = self._counts.work[0]
        self._arrival_s[serial] = self._run_arrival_s[serial] = now_s
        self._counts.work[0] = serial + 1

    def complete(self, started: Started, now_s: float) -> None:
        """Live hosts: a backend has served a request. Ignored if the request has been cancelled meanwhile."""
        self.push(now_s, COMPLETION, started.serial, started.version)

    def take_started(self) -> list[Started]:
        """Live hosts: the requests that took a slot since the last call, in that order."""
        count, rows = self._counts.started[0], self._rows
        self._counts.started[0] = 0
        return [
            Started(r, rows.node_idx[r], rows.version[r], rows.finish_s[r])
            for r in self.state.started[:count].tolist()
            if rows.status[r] == Status.RUNNING  # the end of a run also ends its started stages
        ]

    def is_current(self, started: Started) -> bool:
        """Whether this start is still valid: neither completed nor cancelled."""
        return bool(self._rows.version[started.serial] == started.version)

    @property
    def n_cancelled(self) -> int:
        """Requests cancelled so far."""
        return int(self._counts.cancelled[0])

    @property
    def n_taken_back(self) -> int:
        """Grows whenever requests may have left their backends unserved: cancelled, taken back, …"""
        counts = self._counts
        failed = counts.rejected[0] + counts.lost[0] if self._has_runs else 0
        return self.n_cancelled + int(failed) + int(counts.preempted[0])

    @property
    def n_arrived(self) -> int:
        """Requests decided about so far."""
        return int(self._counts.arrived[0])

    def first_event_s(self) -> float:
        """Live hosts: time of the first event of a heap that is not empty, without injected events."""
        first_s: float = self._event_s[0]
        return first_s

    def next_event_s(self) -> float:
        """Live hosts: time of the next event that needs no report from outside; inf = none."""
        counts = self._counts
        n_injected = counts.injected[0]
        next_s: float = self._event_s[0] if counts.events[0] > 0 else _NEVER
        if n_injected:
            next_s = min(next_s, *self._event_s[counts.events[0] : counts.events[0] + n_injected])
        if counts.arrived[0] < counts.work[0]:
            next_s = min(next_s, self._arrival_s[counts.arrived[0]])
        return next_s

    def is_over(self) -> bool:
        """Live hosts: whether all requests have arrived and no event can change any of them."""
        counts = self._counts
        if counts.arrived[0] < self.n_requests:
            return False
        no_event = counts.events[0] + counts.injected[0] == 0
        is_stuck = counts.idle_events[0] > MAX_IDLE_EVENTS
        return bool(counts.in_system[0] == 0 or is_stuck or (counts.in_nodes[0] == 0 and no_event))
