"""A run without end: requests enter from outside one by one, and their rows are reused.

It runs the same loop over the same state as the simulator. The host reports each outside change as an event
of the present: a request arrives, ends, is lost or aborted, or a node is switched on or off. `advance` then
decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from operator import itemgetter
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from trimtab.domain.chains import Templates
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Options
from trimtab.domain.planning import History, Runs
from trimtab.domain.policy import Decider, Policy
from trimtab.domain.requests import TRUTH, Requests, Status
from trimtab.domain.view import BACKGROUND, PINNED_RUNNING, WORK, Plan, View, memory, new_work
from trimtab.engine.bound_state import Columns, python_state
from trimtab.engine.calls import Calls
from trimtab.engine.driver import IS_OVER, Driver, PlanningLog
from trimtab.engine.events import ARRIVAL, CANCELLATION, COMPLETION, LOSS, SWITCH
from trimtab.engine.held_work import note_unheld
from trimtab.engine.layout import no_runs
from trimtab.engine.node_reports import NodeReports
from trimtab.engine.policy_errors import Fallback
from trimtab.engine.request_history import RequestHistory
from trimtab.engine.rollout import Rollouts
from trimtab.engine.run_row_writer import record_struct
from trimtab.engine.slots import SOME_S, UNESTIMATED
from trimtab.engine.state import AVOIDED, COUNTS, DECISION, OPEN, HostMode, State
from trimtab.errors import PolicyError

_COUNTED = Struct("=4q")  # of COUNTS: events, injected, started and ended, in one call
_COUNTED_AT = int(COUNTS.fields["events"][1])  # type: ignore[index]  # COUNTS has fields
_DECISION_BYTES = DECISION.itemsize
_NEVER_S = float("inf")
_HELD, _RUNNING, _RETRYING = int(Status.HELD), int(Status.RUNNING), int(Status.RETRYING)


class RequestSpec(NamedTuple):
    """The needs of a request: the fields of WORK that its host knows."""

    class_idx: int
    units: float
    estimate_s: float = UNESTIMATED  # service on the best node type; default: from the tables
    model_idx: int = -1
    adapter_idx: int = -1
    tenant_idx: int = 0
    priority: int = 0
    deadline_s: float = float("inf")
    tokens: float = 0.0
    input_tokens: int = 0  # of its prompt; 0 = no language model's
    output_tokens: int = 0  # expected
    cost: float = 0.0
    key: int = 0
    affinity_node_idx: int = -1
    pinned: int = 0  # 1 = only this node can serve it
    payload_gib: float = 0.0
    zone_idx: int = 0  # where it comes from
    next_class_idx: int = -1
    parts_max: int = 1  # items that can be served apart, for planners: the host splits requests itself
    arrival_s: float | None = None  # for a request that arrived before it enters here


_WRITTEN = {  # field of WORK that `enter` writes → field of RequestSpec; the others are zero
    name: "estimate_s" if name == "rank_s" else name
    for name in WORK.names or ()
    if name in (*RequestSpec._fields, "rank_s") and name != "arrival_s"
}
_TIMES = ("serial", "arrival_s", "run_arrival_s")  # the first fields of WORK
_WORK_BYTES = WORK.itemsize


_pack_work = record_struct(WORK, (*_TIMES, *_WRITTEN)).pack_into
_in_order = itemgetter(*map(RequestSpec._fields.index, _WRITTEN.values()))


class Ended(NamedTuple):
    """A request that will not be served: rejected, cancelled or lost."""

    row: int
    status: int
    reason: int


class LiveDriver:
    """State and loop of one policy over a cluster, for at most `rows` requests at a time.

    Least connections decides if the policy raises or returns no valid decision. `policy_failures` counts
    these cases.

    Args:
        begun_s: time at which the run begins. The first plan is due then.
        planning: a log to continue.
        keeps_history: False if no planner will read `history`.
        templates: of the chains whose runs enter through `LiveRuns`.
        bounds_time: a policy in plain Python must not keep the host from its other work (`decision_budget`).
    """

    def __init__(
        self,
        cluster: Cluster,
        options: Options,
        decider: Decider,
        *,
        rows: int,
        tenants: int = 1,
        seed: int = 0,
        shadow: Policy | None = None,
        mode: str = "compiled",
        begun_s: float = 0.0,
        planning: PlanningLog | None = None,
        keeps_history: bool = True,
        host: HostMode = OPEN,
        templates: Templates | None = None,
        bounds_time: bool = False,
    ) -> None:
        truth = np.zeros(rows, TRUTH)
        truth["factor"] = 1.0
        chains = None if templates is None else no_runs(templates, rows)
        requests = Requests(new_work(rows), truth, ("",) * tenants, chains=chains)
        self._driver = Driver(
            cluster,
            requests,
            options,
            decider,
            seed=seed,
            mode=mode,
            host=host,
            shadow=shadow,
            planning=planning,
            bounds_time=bounds_time,
        )
        if begun_s > 0.0:
            self._driver.skip_plans(begun_s)
        state = self._driver.state
        self.reports = NodeReports(self._driver)
        self._fallback, self._fallback_memory = Fallback(), memory()
        self._fallback_calls: Calls | None = None
        self.policy, self.shadow, self.cluster = decider.dispatch, shadow, cluster
        self.policy_failures = 0
        self.last_failure = ""
        self._free = list(range(rows - 1, -1, -1))
        self._stale: list[int] = []  # free once no queue links to them
        self._history = RequestHistory(state) if keeps_history else None
        self._serial = 0
        self._work, self._rows = Columns(state.work), Columns(state.requests)
        self._status, self._version, self._node_of = (
            self._rows.status,
            self._rows.version,
            self._rows.node_idx,
        )
        self.options, self.rollouts = options, self._driver.rollouts
        self.told_runs: Callable[[], Runs] | None = (
            None  # what a planner is told of runs, if they have a host
        )
        # The host corrects these arrays in place.
        self.fixed_s, self.unit_s = state.fixed_s, state.unit_s  # estimated seconds [classes, types]
        self.resident = state.resident  # which items nodes hold, u1 [nodes, items]
        self.prefix_tokens = state.prefix_tokens  # [nodes or 0], of the next request that enters
        self.virtual_counters = state.virtual_counters  # cost served to each tenant [tenants]
        self.tenant_weight = state.tenant_weight  # relative share of the capacity [tenants]
        self.leaf_of = state.leaf_of  # row of each tenant's leaf queue [tenants or 0]
        self.nodes, self._hidden = Columns(state.nodes), Columns(state.hidden)
        self._counts, self._contexts = Columns(state.counts), Columns(state.contexts)
        self._n_held = self._contexts.n_held
        self._virtual_counters: Any = memoryview(state.virtual_counters)
        self._ended_count, self._started_count = self._counts.ended, self._counts.started
        self._held_cost: Any = memoryview(state.held_cost)
        self._completed: list[int] = []
        self._work_bytes = memoryview(state.work.view(np.uint8))
        self._count_bytes = memoryview(state.counts.view(np.uint8))
        self._avoid = memoryview(state.avoid)
        self._avoiding: set[int] = set()  # rows that may have lost nodes
        self.decisions = Columns(state.decision_trace)  # the last one about each request, by row
        self._decision_bytes = memoryview(state.decision_trace.view(np.uint8))
        self._fixed_s: Any = memoryview(state.fixed_s)
        self._unit_s: Any = memoryview(state.unit_s)
        self._started = memoryview(state.started)
        self._given_tokens = Columns(state.truth).given_tokens
        self._preemptions = Columns(state.preemptions)

    # State for planners, displays and `LiveRuns`.

    @property
    def state(self) -> State:
        """The state of the run."""
        return self._driver.state

    def push(self, time_s: float, kind: int, row: int, version: int) -> None:
        """Schedule an event of a row."""
        self._driver.push(time_s, kind, row, version)

    @property
    def now_s(self) -> float:
        """Time of the last event."""
        return self._driver.now_s

    @property
    def n_held(self) -> int:
        """Requests in the central queue."""
        held: int = self._n_held[0]
        return held

    @property
    def shadow_failures(self) -> int:
        """How often the shadow policy raised."""
        return int(self._counts.shadow_failures[0])

    @property
    def has_row(self) -> bool:
        """Whether one more request can enter."""
        if not self._free:
            self._collect()
        return bool(self._free)

    def show_prompt(self, prompt_tokens: float) -> None:
        """Tell the policy the length of the next request's prompt; 0 = not known."""
        self._driver.state.contexts["prompt_tokens"] = prompt_tokens

    def add_cost(self, tenant_idx: int, amount: float) -> None:
        """Add an amount, positive or negative, to the virtual counter of a tenant."""
        self._virtual_counters[tenant_idx] += amount

    def view(self) -> View:
        """The policy's present view."""
        return self._driver.view()

    def history(self) -> History:
        """The recent past, for planning."""
        assert self._history is not None
        past = self._history.history(self._driver.last_plan)
        return past if self.told_runs is None else past._replace(runs=self.told_runs())

    def rollouts_for(self, policy: Policy) -> Rollouts | None:
        """The rollouts for another policy."""
        return self._driver.rollouts_for(Decider.of(policy))

    def waiting(self) -> np.ndarray:
        """The first held requests by queue key, as WORK rows."""
        return self._driver.waiting()

    # Events from outside. The next `advance` processes them.

    def enter(self, spec: RequestSpec, now_s: float) -> int:
        """A request enters; returns its row. The caller ensures that a row is free (`has_row`)."""
        row, serial, arrival_s = self._free.pop(), self._serial, spec[-1]
        self._serial = serial + 1
        at = row * _WORK_BYTES
        arrived_s = now_s if arrival_s is None else arrival_s
        _pack_work(self._work_bytes, at, serial, arrived_s, arrived_s, *_in_order(spec))
        self._status[row] = 0
        if row in self._avoiding:
            self._avoiding.discard(row)
            self.avoid(row, [-1] * AVOIDED)
        if self._history is not None:  # `RequestHistory` copies the row before the loop fills in its estimate
            if spec.estimate_s == UNESTIMATED:
                self._work.estimate_s[row] = self.best_estimate_s(spec.class_idx, spec.units)
            self._history.add(row)
        self._driver.push(now_s, ARRIVAL, row, self._version[row])
        return row

    def best_estimate_s(self, class_idx: int, units: float) -> float:
        """Estimated service seconds on the best type; SOME_S if no type serves the class yet."""
        state = self._driver.state
        best_s = float((state.fixed_s[class_idx] + state.unit_s[class_idx] * units).min())
        return best_s if best_s < _NEVER_S else SOME_S

    def enter_at(self, node_idx: int, spec: RequestSpec, estimate_s: float, now_s: float) -> int:
        """A request that already runs on a node enters, regardless of the node's bounds; returns its row.

        `estimate_s` applies if the node's type no longer serves the class.
        """
        at = spec.class_idx, int(self.cluster.type_idx[node_idx])
        table = self._fixed_s[at], self._unit_s[at]
        if table[0] == _NEVER_S:
            self._fixed_s[at], self._unit_s[at] = estimate_s, 0.0
        row = self.enter(spec._replace(affinity_node_idx=node_idx, pinned=PINNED_RUNNING), now_s)
        self.advance(now_s)
        self.take_started()
        self._fixed_s[at], self._unit_s[at] = table
        self._work.pinned[row], self._work.affinity_node_idx[row] = spec.pinned, spec.affinity_node_idx
        return row

    def avoided(self, row: int) -> list[int]:
        """Nodes that a request has lost, the latest first."""
        return [j for i in range(AVOIDED) if (j := self._avoid[row, i]) >= 0]

    def avoid(self, row: int, nodes: Sequence[int]) -> None:
        """Let a request avoid the first AVOIDED of these nodes."""
        for i, j in enumerate(nodes[:AVOIDED]):
            self._avoid[row, i] = j
        if nodes:
            self._avoiding.add(row)

    def pin(self, row: int, node_idx: int) -> None:
        """Only this node may serve a request that waits; -1 = any."""
        self._work.pinned[row], self._work.affinity_node_idx[row] = int(node_idx >= 0), node_idx

    def complete(self, row: int, now_s: float) -> None:
        """A running request is served. Its row is free after the next `advance`."""
        if self._history is not None:
            self._history.finish(row, now_s)
        self._driver.push(now_s, COMPLETION, row, self._version[row])
        self._completed.append(row)

    def lose(self, row: int, now_s: float) -> None:
        """A running request has lost its node: it is dispatched again, to another node."""
        self._avoiding.add(row)
        self._driver.push(now_s, LOSS, row, 0)

    def note_cached(self, row: int, tokens: float) -> None:
        """The node of a running request need not read so many tokens of its prompt, but its last one."""
        cached = min(int(tokens), self._work.input_tokens[row] - 1)
        if cached > 0:
            self._given_tokens[row] = cached
            self._driver.state.engine_load["waiting_tokens"][self._rows.node_idx[row]] -= cached

    def note_read(self, row: int) -> None:
        """The node of a running request has read its prompt: tokens have come."""
        work, tokens = self._work, self._work.input_tokens[row]
        if tokens:
            unread = tokens - self._given_tokens[row]
            self._driver.state.engine_load["waiting_tokens"][self._rows.node_idx[row]] -= unread
            work.input_tokens[row] = self._given_tokens[row] = 0

    def set_deadline(self, row: int, deadline_s: float) -> None:
        """Another deadline for a running request, for when it waits again."""
        self._work.deadline_s[row] = deadline_s

    def keep(self, row: int) -> None:
        """A running request stays at its node, whatever guarantees of queues ask for."""
        if len(self._preemptions):
            self._preemptions.is_firm[row] = 1

    def wait_until(self, row: int, deadline_s: float) -> None:
        """A request that was taken back waits so long. In queues it keeps the deadline that it came with."""
        self._preemptions.until_s[row] = deadline_s
        if self._status[row] == _HELD and deadline_s < _NEVER_S:
            self._driver.push(deadline_s, CANCELLATION, row, 0)
            self._counts.pending_wakeups[0] += 1

    def resize(self, row: int, spec: RequestSpec) -> None:
        """Another size for a request that waits. Its arrival stays, and with it its place in the queue."""
        work = self._work
        if self._status[row] == _HELD:
            self._held_cost[spec.tenant_idx] += spec.cost - work.cost[row]
            if spec.deadline_s > work.deadline_s[row]:
                self._driver.push(spec.deadline_s, CANCELLATION, row, 0)
                self._counts.pending_wakeups[0] += 1
        work.units[row], work.tokens[row], work.cost[row] = spec.units, spec.tokens, spec.cost
        work.payload_gib[row], work.deadline_s[row] = spec.payload_gib, spec.deadline_s
        work.estimate_s[row] = work.rank_s[row] = self.best_estimate_s(spec.class_idx, spec.units)
        if self._history is not None:
            self._history.note_size(row)

    def clear_avoided(self, row: int, now_s: float) -> None:
        """Allow a waiting request the nodes that it avoids, from the next `advance` on."""
        for j in self.avoided(row):
            self.allow(row, j, now_s)
        self._avoiding.discard(row)

    def allow(self, row: int, node_idx: int, now_s: float) -> None:
        """Allow a waiting request a node that it avoids."""
        for i in range(AVOIDED):
            if self._avoid[row, i] == node_idx:
                self._avoid[row, i] = -1
                self._driver.push(now_s, SWITCH, node_idx, 0)  # offers held requests to the node

    def abort(self, row: int, now_s: float) -> None:
        """Cancel a request whose client is gone. `take_ended` will return it."""
        self._driver.push(now_s, LOSS, row, IS_OVER)

    def switch(self, node_idx: int, up: bool, now_s: float) -> None:
        """Switch a node on or off for new work. Its running requests continue."""
        self.nodes.up[node_idx] = int(up)
        self._driver.push(now_s, SWITCH, node_idx, 0)

    def suits(self, row: int, node_idx: int) -> bool:
        """Whether a node is on and may serve this request, now or once it has room."""
        work, nodes, j = self._work, self.nodes, node_idx
        if nodes.up[j] == 0 or (work.pinned[row] and work.affinity_node_idx[row] != j):
            return False
        fixed_s: float = self._fixed_s[work.class_idx[row], nodes.type_idx[j]]
        return fixed_s < _NEVER_S

    def takes(self, row: int, node_idx: int) -> bool:
        """Whether a node would accept a second attempt of a running request under the terms of the first."""
        work, nodes, hidden, j = self._work, self.nodes, self._hidden, node_idx
        if nodes.room[j] <= 0 or not self.suits(row, j):
            return False
        if work.priority[row] <= BACKGROUND and nodes.room[j] <= hidden.reserve[j]:
            return False
        is_capped = self._driver.state.config["token_caps"][0] == 1 and nodes.in_flight[j] > 0
        return not is_capped or bool(work.tokens[row] <= hidden.token_room[j])

    def add_load(
        self, node_idx: int, requests: int, estimate_s: float, now_s: float, tokens: float = 0.0
    ) -> None:
        """Add the load of another sender to a node, or remove it (negative). It counts and takes room."""
        self._hidden.token_room[node_idx] -= tokens
        nodes = self.nodes
        nodes.in_flight[node_idx] += requests
        nodes.room[node_idx] -= requests
        nodes.outstanding_s[node_idx] = max(0.0, nodes.outstanding_s[node_idx] + estimate_s)
        self._driver.push(now_s, SWITCH, node_idx, 0)

    def change_room(self, node_idx: int, places: int, now_s: float) -> None:
        """Change the number of requests that a node takes at a time."""
        self.nodes.room[node_idx] += places
        self._driver.push(now_s, SWITCH, node_idx, 0)

    def limit_tokens(self, node_idx: int, tokens: float) -> None:
        """Bound the tokens in flight on a node."""
        self._hidden.token_room[node_idx] = tokens
        self._driver.state.config["token_caps"] = 1

    def reserve(self, node_idx: int, places: int) -> None:
        """Keep places of a node free of background work."""
        self._hidden.reserve[node_idx] = places

    # Decisions and their results.

    def advance(self, now_s: float, max_steps: int = 1 << 62) -> int:
        """Process all events up to now; returns one of the loop's codes (REACHED, PLAN_…)."""
        try:
            code = self._driver.advance(now_s, max_steps)
        except PolicyError as error:
            code = self._advance_otherwise(error, now_s)
        if self._completed:
            self._free += self._completed
            self._completed.clear()
        return code

    def take_started(self) -> list[tuple[int, int]]:
        """(row, node) of each request to send now."""
        count = self._started_count[0]
        if count == 0:
            return []
        self._started_count[0] = 0
        started, node_idx, status = self._started, self._node_of, self._status
        if count == 1:
            row = started[0]
            return [(row, node_idx[row])] if status[row] == _RUNNING else []
        rows = started[:count].tolist()
        return [(row, node_idx[row]) for row in rows if status[row] == _RUNNING]  # without aborted ones

    def take_back(self) -> list[int]:
        """Rows that have lost their places to queues below their guarantees; some may have started again."""
        count = self._counts.taken_back[0]
        if count == 0:
            return []
        self._counts.taken_back[0] = 0
        rows: list[int] = self._driver.state.taken_back[:count].tolist()
        return rows

    def take_ended(self) -> list[Ended]:
        """The requests that will not be served. Their rows are free from now on."""
        linked = self._rows.stale_link
        ended = self.take_ended_rows()
        for row, _, _ in ended:
            (self._stale if linked[row] else self._free).append(row)
        return ended

    def take_ended_rows(self) -> list[Ended]:
        """As `take_ended`, with runs that were served; the rows stay in use."""
        count, rows = self._ended_count[0], self._rows
        if count == 0:
            return []
        self._ended_count[0] = 0
        return [Ended(r, rows.status[r], rows.reason[r]) for r in self._driver.state.ended[:count].tolist()]

    def next_event_s(self) -> float:
        """Time of the next event that needs no report from outside; inf = none."""
        n_events, n_injected, _, _ = _COUNTED.unpack_from(self._count_bytes, _COUNTED_AT)
        if n_injected:
            return self._driver.next_event_s()
        return self._driver.first_event_s() if n_events else _NEVER_S

    def adopt(self, plan: Plan, at_s: float) -> None:
        """Put a plan in force at `at_s`."""
        self._driver.adopt(plan, at_s)

    def adopt_for_shadow(self, plan: Plan) -> None:
        """Put a plan of the shadow policy in force now."""
        self._driver.set_shadow_plan(plan)

    def put_next_in_force(self) -> None:
        """Carry out PLAN_READY."""
        self._driver.put_next_in_force()

    def decision(self, row: int) -> bytes:
        """A copy of the last decision about a request, the bytes of one DECISION."""
        at = row * _DECISION_BYTES
        return self._decision_bytes[at : at + _DECISION_BYTES].tobytes()

    def ranked(self, row: int) -> list[int]:
        """Positions of the nodes that the policy ranked for a request, best first."""
        decided = np.frombuffer(self.decision(row), self._driver.state.decision_trace.dtype)
        return [j for j in decided["node_idx"][0].tolist() if j >= 0]

    def set_estimate(self, class_idx: int, type_idx: int, fixed_s: float, unit_s: float) -> None:
        """Set one entry of `fixed_s` and `unit_s`."""
        at = class_idx, type_idx
        self._fixed_s[at], self._unit_s[at] = fixed_s, unit_s

    def _collect(self) -> None:
        """Free the rows of cancelled requests to which no queue links any more."""
        linked = self._rows.stale_link
        self._free += [row for row in self._stale if not linked[row]]
        self._stale = [row for row in self._stale if linked[row]]

    def _advance_otherwise(self, error: PolicyError, now_s: float) -> int:
        """Let the fallback process all events up to now after a failure of the policy."""
        self.last_failure = str(error)
        self._put_back(self._counts.deciding[0], now_s)
        if self._counts.consulting[0]:  # no request depends on the shadow's answer
            self._counts.consulting[0], self._counts.shadow_failures[0] = 0, self.shadow_failures + 1
            self._driver.state.config["shadows"] = 0
            return self.advance(now_s)
        self.policy_failures += 1
        return self._driver.advance_by(self._calls_of_fallback(), now_s)

    def _put_back(self, row: int, now_s: float) -> None:
        """Dispatch a request again whose decision failed half-way, as if it had lost a node."""
        rows, nodes = self._rows, self.nodes
        for i in range(AVOIDED):
            j = self._avoid[row, i]
            if j >= 0 and nodes.up[j] < 0:
                nodes.up[j] += 2
        if rows.status[row] == _HELD:
            note_unheld(self._interpreted, row)
        rows.status[row], rows.version[row] = _RETRYING, rows.version[row] + 1
        self._driver.push(now_s, ARRIVAL, row, rows.version[row])

    @cached_property
    def _interpreted(self) -> State:
        """The state for helpers of the loop, called from Python. Its events may be old."""
        interpreted: State = python_state(self._driver.state)
        return interpreted

    def _calls_of_fallback(self) -> Calls:
        state = self._driver.state
        if self._fallback_calls is None or self._fallback_calls.state.events is not state.events:
            memories = [self._fallback_memory, *state.memories[1:]]
            order_memories = [self._fallback_memory]
            self._fallback_calls = Calls(
                state._replace(memories=memories, order_memories=order_memories),
                Decider.of(self._fallback),
                self.shadow,
                compiled=self._driver.compiled,
            )
        return self._fallback_calls
