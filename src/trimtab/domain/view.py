"""Arguments of a policy's functions: View, Plan, Memory, and the work to decide about.

All of them are arrays, so one kernel runs compiled, interpreted, in the simulator and live. A kernel reads
record arrays by column, `view.nodes.in_flight[j]`. The context and the work are single records,
`work.deadline_s`. A new input becomes a field of one of these records, never a new argument.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated, Any, NamedTuple

import numpy as np

from trimtab.compiled.arrays import RecordField, allocate, array
from trimtab.compiled.kernel import helper, plain

BACKGROUND = -(1 << 20)  # work of this priority or less only fills spare capacity
PINNED_RUNNING = 2  # `pinned` of work that already runs there, when a host continues with another state
MAX_RANKED = 8  # candidates that one decision may name
UNLIMITED = 1 << 30  # "no bound" for queue lengths

CONTEXT = np.dtype(
    [
        ("now_s", "f8"),  # time of this decision
        ("n_nodes", "i8"),
        ("n_changed", "i8"),  # entries of view.changed that are new since this dispatcher's last decision
        ("n_held", "i8"),  # requests in this dispatcher's central queue
        ("n_offered", "i8"),  # of these, the ones compared for a free slot just before this one
        ("n_wanted", "i8"),  # candidates that can make a difference to this host; MAX_RANKED or fewer
        ("dispatcher_idx", "i8"),
        ("n_dispatchers", "i8"),
        ("reported_s", "f8"),  # when the nodes' state was sampled; inf = it is shown as it is now
        ("attempt", "i4"),  # decisions made about this work before this one
        ("retries", "i4"),  # nodes that it has lost
        ("virtual_counter", "f8"),  # service received by its tenant, for an order that reads it
        ("queued_cost", "f8"),  # cost of its tenant's requests that the central queue held before it
        ("prompt_tokens", "f8"),  # of its prompt, where `view.prefix_tokens` is known; 0 = not known
        ("run_left_s", "f8"),  # of a stage's run: estimated service not yet over, its own too; 0 = no chains
        ("run_path_s", "f8"),  # estimated critical path of that run, as it was on arrival; 0 = no chains
        ("run_rest_s", "f8"),  # longest `rank_s` of the run's stages that are ready and not over
        ("output_gib", "f8"),  # declared size of the stage's output
        ("n_runs", "i8"),  # runs and requests that have arrived and are not over; 0 = no chains
        ("job", "i8"),  # of a part, or an instance of a stage: serial of the first of all of them
        ("tasks", "i8"),  # how many there are; 0 = neither a part nor a stage
    ],
    align=True,
)

NODE = np.dtype(
    [
        ("outstanding_s", "f8"),  # estimated seconds of all work in flight here, not aged
        ("backlog_s", "f8"),  # the same at anchor_s, with only the remaining time of running work
        ("anchor_s", "f8"),  # time of the last update of backlog_s
        ("weight", "f8"),  # relative capacity: slots × mean speed
        ("in_flight", "i4"),  # requests sent here and not ended
        ("running", "i4"),  # of these, the ones that hold a slot
        ("room", "i4"),  # requests it would still accept (slots + queue bound − in flight)
        ("up", "i4"),  # 1 = serving, 0 = failed
        ("slots", "i4"),  # requests served at a time
        ("type_idx", "i4"),
        ("zone_idx", "i4"),
        ("group_idx", "i4"),  # nodes of one type and slot count share a group
    ],
    align=True,
)  # 64 bytes: one cache line

WORK = np.dtype(
    [
        ("serial", "i8"),  # position in order of arrival
        ("arrival_s", "f8"),  # of a stage: when its inputs were there
        ("run_arrival_s", "f8"),  # of a stage: arrival of its run; else its own
        ("deadline_s", "f8"),  # absolute; inf = none
        ("units", "f8"),  # estimated work units (not named size: arrays have a size)
        ("estimate_s", "f8"),  # estimated service seconds on the best node type; inf = fits no node
        ("rank_s", "f8"),  # estimated seconds from its start to the end of its run, on the critical path
        ("payload_gib", "f8"),
        ("cost", "f8"),  # added to its tenant's virtual counter when it is sent to a node
        ("key", "i8"),  # affinity key: session, or model and adapter
        ("tokens", "f4"),  # that it takes of a node's memory while it is served
        ("input_tokens", "i4"),  # of its prompt; 0 = no language model's, or not known
        ("output_tokens", "i4"),  # expected
        ("class_idx", "i4"),
        ("model_idx", "i4"),  # item that must be resident; -1 = none
        ("adapter_idx", "i4"),  # a second such item; -1 = none
        ("tenant_idx", "i4"),
        ("zone_idx", "i4"),  # where it comes from
        ("priority", "i4"),  # higher is more urgent
        ("affinity_node_idx", "i4"),  # node where its session lives; -1 = none
        ("pinned", "i2"),  # 1 = no other node can serve it; PINNED_RUNNING
        ("parts_max", "i2"),  # images or tiles that can be served apart; 0 or 1 = it can't be split
        ("next_class_idx", "i4"),  # of the successor on the critical path; -1 = none
    ],
    align=True,
)


ENGINE_LOAD = np.dtype(
    [
        ("load_factor", "f8"),  # service seconds of one more request over its estimate; 1 = as estimated
        ("step_s", "f8"),  # of an iteration of its present batch, without prompts
        ("row_s", "f8"),  # by which one more request in the batch lengthens it
        ("kv_used", "f8"),  # tokens of its KV memory at anchor_s of NODE, cached prefixes not counted
        ("kv_per_s", "f8"),  # by which they grow
        ("kv_tokens", "f8"),  # capacity of its KV memory; 0 = no language model
        ("waiting_tokens", "f8"),  # of prompts sent here that it has neither read nor cached
        ("decoding", "i4"),  # requests that make tokens
        ("batch_max", "i4"),  # requests that it would serve at once; `slots` of NODE is what it serves well
    ],
    align=True,
)  # of a node that serves otherwise than one request a slot


def new_work(n: int) -> np.ndarray:
    """WORK rows [n], all zero except `affinity_node_idx` and `next_class_idx`, which are -1 (none)."""
    work = np.zeros(n, WORK)
    work["affinity_node_idx"] = work["next_class_idx"] = -1
    return work


RANKED = np.dtype(
    [
        ("node_idx", "i8"),  # a candidate; `ranking[i] = j` sets this field alone
        ("score", "f8"),  # by which held requests compete for a free slot, least first
    ],
    align=True,
)

BINDING = np.dtype(
    [
        ("serial", "i8"),  # a held request
        ("node_idx", "i8"),  # that gets the next free place of this node, before other offers
        ("expires_s", "f8"),  # but not later
        ("row_idx", "i8"),  # the request's row in the host; filled in when the plan takes force
    ],
    align=True,
)

OUTAGE = np.dtype([("start_s", "f8"), ("end_s", "f8"), ("node_idx", "i8")])  # planned


class View(NamedTuple):
    """State of the cluster as one dispatcher sees it, with the age of its telemetry."""

    context: Annotated[Any, RecordField(CONTEXT)]
    nodes: Annotated[Any, array(NODE, "nodes")]
    changed: Annotated[Any, array("i4", "nodes")]  # the first context.n_changed of them are new
    resident: Annotated[Any, array("u1", "nodes", "items")]  # 1 = the node holds or loads it
    resident_changes: Annotated[Any, array("i8", "nodes")]  # a count that rises whenever that row changes
    fixed_s: Annotated[Any, array("f8", "classes", "types")]  # inf = can't serve
    unit_s: Annotated[Any, array("f8", "classes", "types")]  # estimated service = fixed_s + unit_s × units
    load_s: Annotated[Any, array("f8", "items", "types")]  # seconds to load a model or adapter
    rtt_s: Annotated[Any, array("f8", "zones", "zones")]
    prefix_tokens: Annotated[Any, array("f8", "nodes")]  # of this prompt in its cache; [0] = not known
    input_gib: Annotated[Any, array("f8", "nodes")]  # of this stage's inputs that it holds; [0] = no chains
    class_in_flight: Annotated[Any, array("i8", "classes")]  # ready and not over; [0] = no chains
    demand: Annotated[Any, array("f8", "classes", "resources")]  # of a request; 0 wide = not modelled
    capacity: Annotated[Any, array("f8", "nodes", "resources")]
    used: Annotated[Any, array("f8", "nodes", "resources")]  # reported, work of others included
    use_reported_s: Annotated[Any, array("f8", "nodes")]  # when `used` was reported; inf = it is current
    link_gib_per_s: Annotated[
        Any, array("f8", "links")
    ]  # into zones, then nodes; or network; inf = not modelled
    link_active: Annotated[Any, array("i4", "links")]  # transfers under way; reported, not in `changed`
    link_target: Annotated[Any, array("i4", "net_links")]  # vertex; [0] = no network: links as above
    out_first: Annotated[Any, array("i4", "net_ends")]  # first link that leaves each vertex
    way_s: Annotated[Any, array("f8", "net_vertices", "net_vertices")]  # least delay; inf = no route
    way_links: Annotated[Any, array("i4", "net_vertices", "net_vertices")]  # links of such a route
    next_link: Annotated[Any, array("i4", "net_vertices", "net_vertices")]  # its first one; -1 = none
    store_vertex: Annotated[Any, array("i4", "stores")]  # that models come from; [0] = nodes have them
    usd_per_s: Annotated[Any, array("f8", "types")]  # price of a node
    item_gib: Annotated[Any, array("f8", "items")]
    memory_gib: Annotated[Any, array("f8", "types")]  # room of a node for items
    outages: Annotated[Any, array(OUTAGE, "outages")]  # the maintenance calendar; past ones too
    engines: Annotated[Any, array(ENGINE_LOAD, "engine_nodes")]  # [0] = all nodes serve a request a slot
    held_of_item: Annotated[Any, array("i8", "items")]  # of context.n_held, those that need it


class Plan(NamedTuple):
    """Instructions of the slow planner for the fast dispatcher and the host. Empty arrays = unused."""

    weights: Annotated[Any, array("f8", "nodes")]
    quota: Annotated[Any, array("f8", "classes", "nodes")]
    price: Annotated[Any, array("f8", "nodes", "resources")]
    eligible: Annotated[Any, array("u1", "classes", "nodes")]
    placement: Annotated[Any, array("u1", "nodes", "items")]  # 1 = keep resident
    binding: Annotated[Any, array(BINDING, "bound")]
    split_max: Annotated[Any, array("i8", "classes")]
    part_weight: Annotated[Any, array("f8", "classes", "parts")]  # relative sizes of parts; empty = all equal
    batch_max: Annotated[Any, array("i8", "classes")]
    batch_window_s: Annotated[Any, array("f8", "classes")]
    params: Annotated[Any, array("f8", "numbers")]  # the policy's own
    active_idx: Annotated[Any, array("i8", "one")]  # active candidate of a composite policy


class Memory(NamedTuple):
    """A policy's own numbers and working arrays, one per dispatcher."""

    params: Annotated[Any, array("f8", "numbers")]  # constants
    ints: Annotated[Any, array("i8", "numbers")]
    floats: Annotated[Any, array("f8", "numbers")]


def memory(params: Any = (), ints: Any = 0, floats: Any = 0) -> Memory:
    """A policy's memory; `ints` and `floats` are initial values, or numbers of zeros."""

    def made(given: Any, dtype: str) -> np.ndarray:
        return np.zeros(given, dtype) if isinstance(given, int) else np.array(given, dtype).reshape(-1)

    return Memory(made(list(params), "f8"), made(ints, "i8"), made(floats, "f8"))


def empty_plan() -> Plan:
    """The plan of a policy that does not plan."""
    return allocate(Plan, defaultdict(int, one=1), {})


class Needs(NamedTuple):
    """The fields of the work that scores read, read once: for a compiler any store may change a record.

    Functions of nodes that take a WORK record accept this too.
    """

    class_idx: Any
    model_idx: Any
    adapter_idx: Any
    zone_idx: Any
    units: Any
    estimate_s: Any
    payload_gib: Any


@helper(inline=True)
def report_age_s(view: View, j: int) -> float:
    """Age of what node j reported of the use of its resources; 0 = it is current."""
    return float(max(0.0, view.context.now_s - view.use_reported_s[j]))


@helper(inline=True)
def type_of_node(view: View, j: int) -> int:
    """Node type of node j."""
    return plain(view.nodes.type_idx[j])


@helper(inline=True)
def zone_of_node(view: View, j: int) -> int:
    """Zone of node j."""
    return plain(view.nodes.zone_idx[j])


@helper(inline=True)
def needs_of(work: Any) -> Needs:
    """The needs of this work, for policies that look at every node."""
    return Needs(
        plain(work.class_idx),
        work.model_idx,
        work.adapter_idx,
        plain(work.zone_idx),
        work.units,
        work.estimate_s,
        work.payload_gib,
    )


@helper(inline=True)
def estimate_s(view: View, work: Any, type_idx: int) -> float:
    """Estimated service seconds of this work on a node type, without loading; inf = can't be served."""
    c = work.class_idx
    return view.fixed_s[c, type_idx] + view.unit_s[c, type_idx] * work.units


@helper(inline=True)
def service_s(view: View, work: Any, j: int) -> float:
    """Estimated service seconds of this work on node j beside what it serves, without loading."""
    seconds = estimate_s(view, work, type_of_node(view, j))
    if len(view.engines.load_factor) > 0:
        seconds *= view.engines.load_factor[j]
    return seconds


@helper(inline=True)
def missing_load_s(view: View, work: Any, j: int) -> float:
    """Seconds of loading that node j needs before it can serve this work."""
    wait_s, g = 0.0, type_of_node(view, j)
    if work.model_idx >= 0:  # a product, because a branch would be unpredictable
        wait_s += view.load_s[work.model_idx, g] * (1 - view.resident[j, work.model_idx])
    if work.adapter_idx >= 0:
        wait_s += view.load_s[work.adapter_idx, g] * (1 - view.resident[j, work.adapter_idx])
    return wait_s


@helper(inline=True)
def own_s(view: View, work: Any, j: int) -> float:
    """Seconds of a slot of node j that this work itself would take: estimated loading and service."""
    return missing_load_s(view, work, j) + service_s(view, work, j)


def estimates_s(view: View, work: Any, node_idx: Any) -> Any:
    """`estimate_s` of each row of WORK on its node, [rows]; inf = can't be served there."""
    at = work["class_idx"], view.nodes.type_idx[node_idx]
    return view.fixed_s[at] + view.unit_s[at] * work["units"]


@helper(inline=True)
def can_take(view: View, work: Any, j: int) -> bool:
    """Whether node j, as seen, is up, has room, and serves this class."""
    nodes, fixed_s = view.nodes, view.fixed_s[work.class_idx, type_of_node(view, j)]
    return bool((nodes.up[j] == 1) & (nodes.room[j] > 0) & (fixed_s < np.inf))  # without branches
