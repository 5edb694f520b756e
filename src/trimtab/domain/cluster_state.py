"""The arguments of a policy's `choose`: the cluster and the present request, with NumPy columns by name.

`ClusterState`, `Node` and `Request` show the arrays of View and WORK without copies. An object shows the
present state on every call, so a policy copies the values that it wants to keep.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trimtab.domain.requests import HOLD, Hold, Reject
from trimtab.domain.view import CONTEXT, NODE, WORK, Memory, Plan, View

OF_REQUEST = (
    "attempt",
    "retries",
    "virtual_counter",
    "queued_cost",
    "prompt_tokens",
    "run_left_s",
    "run_path_s",
    "run_rest_s",
    "output_gib",
    "n_runs",
    "job",
    "tasks",
)  # fields of CONTEXT that a request shows
_INF = float("inf")


class Request:
    """The request to decide about. Numbers are Python's own."""

    serial: int  # position in order of arrival
    arrival_s: float  # of a stage: when its inputs were there
    run_arrival_s: float  # of a stage: arrival of its run; else its own
    deadline_s: float  # absolute; inf = none
    units: float  # estimated work units
    estimate_s: float  # estimated service seconds on the best node type
    rank_s: float  # estimated seconds from its start to the end of its run, on the critical path
    payload_gib: float
    tokens: float  # tokens of a node's memory that it takes while it is served
    cost: float  # what a node that takes it adds to its tenant's virtual counter
    key: int  # affinity key: session, or model and adapter
    input_tokens: int  # of its prompt; 0 = no language model's, or not known
    output_tokens: int  # expected
    class_idx: int
    model_idx: int  # artifact that must be resident; -1 = none
    adapter_idx: int  # a second such artifact; -1 = none
    tenant_idx: int
    zone_idx: int  # where it comes from
    priority: int  # higher is more urgent
    affinity_node_idx: int  # node where its session lives; -1 = none
    pinned: int  # 1 = no other node can serve it
    parts_max: int  # images or tiles that can be served apart; 0 or 1 = none
    next_class_idx: int  # of the successor on the critical path; -1 = none
    attempt: int  # decisions made about it before this one
    retries: int  # nodes that failed while they had it
    virtual_counter: float  # for an `order` that reads it
    queued_cost: float  # for an `order` that reads it
    prompt_tokens: float  # of its prompt, where the nodes' prefix caches are known; 0 = not known
    run_left_s: float  # of a stage's run: estimated service not yet over, its own too; 0 = no chains
    run_path_s: float  # estimated critical path of that run, as it was on arrival; 0 = no chains
    run_rest_s: float  # longest `rank_s` of the run's stages that are ready and not over
    output_gib: float  # declared size of the stage's output
    n_runs: int  # runs and requests that have arrived and are not over; 0 = no chains
    job: int  # of a part, or an instance of a stage: serial of the first of all of them
    tasks: int  # how many there are; 0 = neither a part nor a stage
    draws: NDArray[np.float64]  # [policy.draws] random numbers in [0, 1), the same for every policy

    row: int

    @classmethod
    def over(cls, work: NDArray[np.void], context: NDArray[np.void], draws: NDArray[np.float64]) -> Self:
        """A request that shows the row of WORK given by its attribute `row`."""
        fields = {name: _cell(work[name]) for name in WORK.names or ()}
        request: Self = type(cls.__name__, (cls,), fields | {n: _first(context[n]) for n in OF_REQUEST})()
        request.draws, request.row = read_only(draws), 0
        return request


class Node:
    """One node of the cluster. Numbers are Python's own."""

    outstanding_s: float
    backlog_s: float
    anchor_s: float
    weight: float
    in_flight: int
    running: int
    room: int
    up: int
    slots: int
    type_idx: int
    zone_idx: int
    group_idx: int

    row: int

    def __repr__(self) -> str:
        """Its index."""
        return f"<node {self.row}>"

    @property
    def idx(self) -> int:
        """Its index, which `choose` may also return."""
        return self.row


class ClusterState:
    """The cluster as one dispatcher sees it at the time of a decision, with the age of its telemetry.

    Arrays are read-only and show the present state.
    """

    now_s: float  # time of this decision
    n_nodes: int
    n_held: int  # requests in this dispatcher's central queue
    n_offered: int  # of these, the ones compared for a free slot just before this one
    n_wanted: int  # candidates that can make a difference to this host
    n_changed: int
    dispatcher_idx: int
    n_dispatchers: int
    reported_s: float  # time at which the nodes' state was sampled; inf = it is shown as it is now

    outstanding_s: NDArray[np.float64]  # [nodes] estimated seconds of all work in flight, not aged
    backlog_s: NDArray[np.float64]  # [nodes] the same at anchor_s, running work by what remained of it
    anchor_s: NDArray[np.float64]  # [nodes] when backlog_s was last brought up to date
    weight: NDArray[np.float64]  # [nodes] relative capacity: slots × mean speed
    in_flight: NDArray[np.int32]  # [nodes] requests sent here and not ended
    running: NDArray[np.int32]  # [nodes] of these, the ones that hold a slot
    room: NDArray[np.int32]  # [nodes] requests it would still accept
    up: NDArray[np.int32]  # [nodes] 1 = serving; any other number = not
    slots: NDArray[np.int32]  # [nodes] requests served at a time
    type_idx: NDArray[np.int32]  # [nodes]
    zone_idx: NDArray[np.int32]  # [nodes]
    group_idx: NDArray[np.int32]  # [nodes] nodes of one type and slot count share a group

    resident: NDArray[np.uint8]  # [nodes, artifacts] 1 = the node holds it, or is loading it
    resident_changes: NDArray[np.int64]  # [nodes] a count that rises whenever that row changes
    fixed_s: NDArray[np.float64]  # [classes, types] estimated service = fixed_s + unit_s × units
    unit_s: NDArray[np.float64]  # [classes, types]
    load_s: NDArray[np.float64]  # [artifacts, types] seconds to load one
    rtt_s: NDArray[np.float64]  # [zones, zones]
    prefix_tokens: NDArray[np.float64]  # [nodes] of this prompt that the node has cached; [0] = not known
    input_gib: NDArray[np.float64]  # [nodes] of this stage's inputs that the node holds; [0] = no chains
    class_in_flight: NDArray[np.int64]  # [classes] ready and not over; [0] = no chains
    demand: NDArray[np.float64]  # [classes, resources] that a request takes
    capacity: NDArray[np.float64]  # [nodes, resources]
    used: NDArray[np.float64]  # [nodes, resources] reported, work of others included
    use_reported_s: NDArray[np.float64]  # [nodes] when that was reported; inf = it is current
    link_gib_per_s: NDArray[np.float64]  # [links] into zones, then of nodes; or of the network, by source
    link_active: NDArray[np.int32]  # [links] transfers under way on that link
    link_target: NDArray[np.int32]  # [links] vertex (nodes, zones, switches); [0] = no network
    out_first: NDArray[np.int32]  # [vertices + 1] first link that leaves each
    way_s: NDArray[np.float64]  # [vertices, vertices] least delay; inf = no route
    way_links: NDArray[np.int32]  # [vertices, vertices] links of such a route
    next_link: NDArray[np.int32]  # [vertices, vertices] its first one; -1 = none
    store_vertex: NDArray[np.int32]  # that models come from; [0] = each node has them
    usd_per_s: NDArray[np.float64]  # [types] price of a node
    item_gib: NDArray[np.float64]  # [artifacts]
    held_of_item: NDArray[np.int64]  # [artifacts] of n_held, those that need it
    memory_gib: NDArray[np.float64]  # [types] room of a node for artifacts
    engines: NDArray[np.void]  # [nodes] load by fields, `engines["kv_used"]`; [0] = all serve by slots

    outages: NDArray[np.void]  # OUTAGE [planned outages]: start_s, end_s, node_idx

    memory: Memory  # from the policy's `init`, for this dispatcher
    plan: Plan  # the plan in force

    _view: View

    @classmethod
    def over(cls, view: View, memory: Memory) -> Self:
        """A state over a dispatcher's view."""
        context, nodes, *_ = view
        shown = [name for name in CONTEXT.names or () if name not in OF_REQUEST]
        state: Self = type(cls.__name__, (cls,), {name: _first(context[name]) for name in shown})()
        for name in NODE.names or ():
            setattr(state, name, read_only(nodes[name]))
        for name, array in zip(View._fields, view, strict=True):
            if name not in ("context", "nodes", "changed"):
                setattr(state, name, read_only(array))
        state._view, state.memory = view, memory
        return state

    @property
    def changed(self) -> NDArray[np.int32]:
        """Indices of the nodes that changed since this dispatcher's last decision."""
        return read_only(self._view.changed[: self.n_changed])

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes as objects, for loops over few nodes: columns are faster."""
        kind = type(Node.__name__, (Node,), {n: _cell(self._view.nodes[n]) for n in NODE.names or ()})
        nodes: tuple[Node, ...] = tuple(kind() for _ in range(self.n_nodes))
        for row, node in enumerate(nodes):
            node.row = row
        return nodes

    def can_take(self, request: Request) -> NDArray[np.bool_]:
        """Mask of the nodes that, as seen, are up, have room and serve the request's class, [nodes]."""
        serves = self.fixed_s[request.class_idx].take(self.type_idx) < _INF
        mask: NDArray[np.bool_] = (np.minimum(self.up, self.room) > 0) & serves
        return mask

    def estimate_s(self, request: Request) -> NDArray[np.float64]:
        """Estimated service seconds on each node, without loading, [nodes]; inf = not served there."""
        c = request.class_idx
        seconds: NDArray[np.float64] = (self.fixed_s[c] + self.unit_s[c] * request.units).take(self.type_idx)
        return seconds

    def service_s(self, request: Request) -> NDArray[np.float64]:
        """Estimated service seconds on each node beside what it serves, [nodes]; inf = not served there."""
        seconds = self.estimate_s(request)
        return seconds * self.engines["load_factor"] if len(self.engines) else seconds

    def missing_load_s(self, request: Request) -> NDArray[np.float64]:
        """Estimated seconds of loading before each node can serve the request, [nodes]."""
        seconds = np.zeros(self.n_nodes)
        for i in (request.model_idx, request.adapter_idx):
            if i >= 0:
                seconds += self.load_s[i].take(self.type_idx) * (1 - self.resident[:, i])
        return seconds

    def least(self, values: Any, request: Request) -> int | Hold:
        """The node with the least of `values` [nodes] that can take the request; the first of equal nodes.

        HOLD if no node can take it. Nodes whose value is inf or NaN are left out.
        """
        values = np.asarray(values)
        j = int(values.argmin())
        if values[j] < _INF and self._takes(request, j):  # the common case needs no mask
            return j
        able = (self.can_take(request) & (values < _INF)).nonzero()[0]
        return int(able[values[able].argmin()]) if len(able) else HOLD

    def _takes(self, request: Request, j: int) -> bool:
        serves = self.fixed_s[request.class_idx, self.type_idx[j]] < _INF
        return bool(serves and self.up[j] == 1 and self.room[j] > 0)


Choice: TypeAlias = int | Node | Sequence[int | Node] | NDArray[np.integer[Any]] | Hold | Reject


def read_only(array: Any) -> Any:
    """A read-only view of the same array."""
    view = array.view()
    view.flags.writeable = False
    return view


def _cell(column: Any) -> property:
    """An attribute that reads this column at the object's row. A memoryview returns Python numbers."""
    cells = memoryview(column)
    return property(lambda shown: cells[shown.row])


def _first(column: Any) -> property:
    cells = memoryview(column)
    return property(lambda _: cells[0])
