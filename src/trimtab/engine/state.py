"""All state of a run, as arrays: the loop can stop at any event, be copied, and go on."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from trimtab.compiled.tables import Table, TableListType, array_of, table_type
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import FAULT, Options
from trimtab.domain.policy import Policy, members
from trimtab.domain.requests import TRUTH, Requests
from trimtab.domain.view import CONTEXT, MAX_RANKED, MEMORY, NODE, UNLIMITED, VIEW, WORK, Memory, View, memory
from trimtab.engine.caches import reuse_arrays
from trimtab.engine.layout import BATCH, PART, batch_rows, rows_alone, rows_with_parts
from trimtab.engine.lru import CACHE, CACHED
from trimtab.errors import PolicyError, TrimtabError

CACHE_LINE = 64  # bytes
RESOURCE_STEP = 2.0**-20  # resources are counted in steps of this
AVOIDED = 3  # nodes that one request can have lost and avoid
LOOKED_AT = 4  # held requests that are looked at for each that a policy compares: some suit no free node
TRACE_COLUMNS = 20  # numbers that are noted of a decision

REQUEST = np.dtype(
    [
        ("start_s", "f8"),  # a slot was taken (last attempt); nan = never
        ("service_start_s", "f8"),  # models are loaded, computing begins
        ("finish_s", "f8"),  # planned while it runs, actual once finished
        ("ended_s", "f8"),  # rejected, cancelled or lost; nan = not so
        ("key", "f8"),  # queue key, or what is left of its payload's transfer
        ("estimate_s", "f8"),  # what it adds to its node's outstanding_s
        ("left_s", "f8"),  # service seconds left at full speed (a paused request), else its whole service
        ("queued_cost", "f8"),  # cost of its tenant's requests that the central queue held before it
        ("next", "i4"),  # queue links: next in the run, or next sibling
        ("child", "i4"),
        ("node_idx", "i4"),
        ("slot", "i4"),  # position among the node's running requests
        ("attempt", "i4"),  # decisions made about it
        ("retries", "i4"),  # nodes that it has lost
        ("version", "i4"),  # events of older versions are void
        ("status", "u1"),
        ("reason", "u1"),
        ("hop", "u1"),  # next link of its way to the node
        ("stale_link", "u1"),  # 1 = cancelled, and its queue still knows its row
    ],
    align=True,
)

HIDDEN = np.dtype(
    [
        ("speed", "f8"),  # 1 = as specified, less = slowed down
        ("allocated_slot_s", "f8"),  # slot-seconds held by ended occupancies
        ("busy_slot_s", "f8"),  # of these, computing
        ("token_room", "f8"),  # tokens that it would still take
        ("queue_max", "i4"),
        ("reserve", "i4"),  # places kept free of background work
        ("first_slot", "i4"),  # where this node's rows of `slots` begin
        ("down", "i4"),  # failures in force
        ("unplaced", "i4"),  # 1 = it may lack some of what the plan places here
        # What a request without a model needs ends here, in the first of two cache lines.
        ("memory_used_gib", "f8"),
        ("memory_gib_s", "f8"),  # integral of memory used
        ("memory_since_s", "f8"),
        ("down_since_s", "f8"),
        ("down_s", "f8"),
        ("memory_gib", "f8"),
        ("nic_gib_per_s", "f8"),
        ("placed_gib", "f8"),  # of the items that the plan places here
        ("inflation", "f8"),  # credit of what was last evicted (GreedyDual-Size)
    ],
    align=True,
)

SLOT = np.dtype(
    [("since_s", "f8"), ("estimate_s", "f8"), ("estimate_end_s", "f8"), ("request", "i8")], align=True
)
ITEM = np.dtype(
    [
        ("ready_s", "f8"),
        ("used_s", "f8"),
        ("credit", "f8"),  # GreedyDual-Size: the least goes
        ("in_use", "i4"),
        ("placed", "i4"),  # 1 = the plan places it here
    ],
    align=True,
)
QUEUE = np.dtype([("head", "i4"), ("tail", "i4"), ("root", "i4"), ("length", "i4")], align=True)
LINK = np.dtype([("gib_per_s", "f8"), ("share_gib", "f8"), ("since_s", "f8"), ("due", "i4")], align=True)
EVENT = np.dtype([("time_s", "f8"), ("key", "i8")], align=True)
OWN = np.dtype([("outstanding_s", "f8"), ("in_flight", "i8")], align=True)

CONFIG = np.dtype(
    [
        ("telemetry_period_s", "f8"),
        ("telemetry_delay_s", "f8"),
        ("plan_period_s", "f8"),
        ("seed", "i8"),
        ("dispatchers", "i8"),
        ("views", "i8"),  # 1 = all dispatchers see the nodes themselves; else one stale view each
        ("held_max", "i8"),
        ("reject_refused", "i8"),
        ("lookahead", "i8"),
        ("compares", "i8"),  # of the policy in charge
        ("lanes", "i8"),  # per dispatcher: 1, or one per class
        ("cancel", "i8"),
        ("resume", "i8"),
        ("max_retries", "i8"),
        ("live", "i8"),  # 1 = completions come from outside; 2 = all else too, and rows are used again
        ("shadows", "i8"),  # 1 = another policy is asked beside the one in force
        ("virtual_counters", "i8"),  # that the order reads: 1 = of cost, 2 = of shares; 0 = none
        ("token_caps", "i8"),  # 1 = nodes have bounds on tokens in flight
        ("margin", "i8"),  # room that the event heap must have before an event is taken
        ("n_zones", "i8"),
        ("block_tokens", "f8"),  # of a prompt's block
        ("prefix_blocks", "i8"),  # blocks that a node keeps; 0 = no prefix cache, or no request has blocks
        ("results_max", "i8"),  # results that are kept; 0 = none, or no request may use them
        ("eviction", "i8"),
        ("splits", "i8"),  # 1 = requests may be split into parts
        ("batches", "i8"),  # 1 = requests may be served in batches
        ("groups", "i8"),  # of requests that can be served in one batch
    ],
    align=True,
)

COUNTS = np.dtype(
    [
        ("now_s", "f8"),
        ("moved_gib", "f8"),
        ("work", "i8"),  # rows of `work` that exist
        ("arrived", "i8"),  # rows that have arrived
        ("events", "i8"),  # size of the event heap
        ("injected", "i8"),  # events behind it that the host has told and the loop has not entered yet
        ("started", "i8"),  # live: requests started and not yet handed to a backend
        ("ended", "i8"),  # rows used again: requests rejected, cancelled or lost, and not yet told
        ("consulting", "i8"),  # 1 = the shadow is being asked
        ("shadow_failures", "i8"),
        ("last_tenant", "i8"),  # whose request was last sent from the central queues
        ("in_system", "i8"),
        ("in_nodes", "i8"),  # of these, sent to a node
        ("finished", "i8"),
        ("rejected", "i8"),
        ("cancelled", "i8"),
        ("lost", "i8"),
        ("retries", "i8"),
        ("model_loads", "i8"),
        ("adapter_loads", "i8"),
        ("evictions", "i8"),
        ("prompt_tokens", "f8"),  # of requests that took a slot, where nodes have prefix caches
        ("cached_tokens", "f8"),  # of these, in the node's cache
        ("repeatable", "i8"),  # requests that a cached result could answer
        ("result_hits", "i8"),  # of these, answered by one
        ("replanned", "i8"),  # 1 = nodes have not seen yet what the plan in force places on them
        ("offers_due", "i8"),  # 1 = held requests are to be offered
        ("offering", "i8"),  # dispatcher whose queue is being offered
        ("n_passed_over", "i8"),  # requests offered in vain in this pass
        ("best", "i8"),  # 1 + the best request that was compared in this pass; 0 = none
        ("best_score", "f8"),
        ("bound", "i8"),  # 1 + the node that the plan binds the request on offer to; 0 = none
        ("sample", "i8"),  # telemetry samples taken
        ("shown", "i8"),  # telemetry samples made visible
        ("idle_events", "i8"),  # events in a row that could have moved what is held, and did not
        ("pending_wakeups", "i8"),  # deadlines, and repairs of failed nodes, that are still to come
        ("steps", "i8"),
        ("deciding", "i8"),  # request that is being decided about
        ("answer", "i8"),  # what the policy answered when that was no decision
    ],
    align=True,
)


class State(NamedTuple):
    """Every array of a run. One-element record arrays hold the scalars."""

    config: Any  # CONFIG [1]
    counts: Any  # COUNTS [1]
    work: Any  # WORK [requests]; the requests' own rows, which a run does not change
    truth: Any  # TRUTH [requests]
    requests: Any  # REQUEST [requests]
    nodes: Any  # NODE [nodes], the truth
    hidden: Any  # HIDDEN [nodes]
    slots: Any  # SLOT [all slots]
    queues: Any  # QUEUE [nodes + dispatchers × lanes + links]
    events: Any  # EVENT [capacity], a heap
    started: Any  # i8 [requests or 0], live: started and not yet handed over
    ended: Any  # i8 [requests or 0], rows used again: rejected, cancelled or lost, and not yet told
    avoid: Any  # i4 [requests or 0, AVOIDED], rows used again: nodes that the request has lost; -1 = none
    decision_trace: Any  # f8 [requests or 0, TRACE_COLUMNS], rows used again: the last decision
    virtual_counters: Any  # f8 [tenants], what each has been served, by weight
    served_s: Any  # f8 [tenants, resources or 1], seconds of all of a resource that each has been served
    share: Any  # f8 [classes, resources or 1], of all there is, by one request; slots where none is modelled
    held_of: Any  # i8 [tenants], requests of each in the central queues
    held_cost: Any  # f8 [tenants], and their cost
    failed_offers: Any  # i8 [dispatchers × lanes], requests of the lane offered in vain in this pass
    fixed_s: Any  # f8 [classes, types]
    unit_s: Any  # f8 [classes, types]
    load_s: Any  # f8 [items, types]
    rtt_s: Any  # f8 [zones, zones]
    item_gib: Any  # f8 [items]
    item_is_adapter: Any  # u1 [items]
    resident: Any  # u1 [nodes, items], the truth
    items: Any  # list per node of ITEM [items]
    links: Any  # LINK [zones + nodes]
    link_active: Any  # i4 [zones + nodes], transfers under way
    demand: Any  # f8 [classes, resources]
    capacity: Any  # f8 [nodes, resources]
    used: Any  # f8 [nodes, resources], by what holds slots; the truth
    faults: Any  # FAULT [processes]
    contexts: Any  # CONTEXT [dispatchers + shadows]
    seen: Any  # NODE [views, nodes]; fresh: `nodes` itself
    seen_resident: Any  # u1 [nodes, items]; fresh: `resident` itself
    seen_used: Any  # f8 [nodes, resources]; fresh: `used` itself
    seen_link_active: Any  # i4 [zones + nodes]; fresh: `link_active` itself
    own: Any  # OWN [views, nodes], what each dispatcher itself has in flight
    reports: Any  # NODE [samples kept, nodes]
    report_resident: Any  # u1 [samples kept, nodes × items]
    report_used: Any  # f8 [samples kept, nodes × resources]
    report_link_active: Any  # i4 [samples kept, zones + nodes]
    own_at: Any  # OWN [samples kept × views, nodes], `own` when the sample was taken
    report_of: Any  # i8 [1], which report is visible
    changed: Any  # i4 [dispatchers + shadows, nodes]
    is_changed: Any  # u1 [dispatchers + shadows, nodes]
    passed_over: Any  # i8 [lanes × lookahead]
    draws: Any  # f8 [draws per decision]
    ranking: Any  # i8 [MAX_RANKED]
    prefix_tokens: Any  # f8 [nodes or 0], of the work being decided about
    prompt_block: Any  # i4 [blocks of all prompts]
    prompt_first: Any  # i8 [requests + 1 or 0], where each request's blocks begin
    prompt_tokens: Any  # f8 [requests or 0]
    prompt_token_units: Any  # f8 [classes], work units that a cached token saves
    prefix_place: Any  # i4 [blocks, nodes], see `lru`
    prefix_cache: Any  # CACHE [nodes]
    prefix_entry: Any  # CACHED [nodes × blocks kept]
    content_idx: Any  # i4 [requests or 0]; equal = the same request of one tenant
    result_place: Any  # i4 [contents, 1]
    result_cache: Any  # CACHE [1 or 0]
    result_entry: Any  # CACHED [results kept]
    parts: Any  # PART [requests or 0], where requests split
    join_s: Any  # f8 [classes or 0], seconds to join the parts of a request
    batch: Any  # BATCH [requests or 0], where requests are batched
    batch_marginal: Any  # f8 [classes or 0], share of its service that one more of a batch costs; < 0 = none
    views: Any  # list of View [dispatchers + shadows]
    memories: Any  # list of Memory [dispatchers + shadows], the policies'
    order_memories: Any  # list of Memory [dispatchers], the order's


STATE = table_type(
    "State",
    config=array_of(CONFIG),
    counts=array_of(COUNTS),
    work=array_of(WORK),
    truth=array_of(TRUTH),
    requests=array_of(REQUEST),
    nodes=array_of(NODE),
    hidden=array_of(HIDDEN),
    slots=array_of(SLOT),
    queues=array_of(QUEUE),
    events=array_of(EVENT),
    started=array_of("i8"),
    ended=array_of("i8"),
    avoid=array_of("i4", 2),
    decision_trace=array_of("f8", 2),
    virtual_counters=array_of("f8"),
    served_s=array_of("f8", 2),
    share=array_of("f8", 2),
    held_of=array_of("i8"),
    held_cost=array_of("f8"),
    failed_offers=array_of("i8"),
    fixed_s=array_of("f8", 2),
    unit_s=array_of("f8", 2),
    load_s=array_of("f8", 2),
    rtt_s=array_of("f8", 2),
    item_gib=array_of("f8"),
    item_is_adapter=array_of("u1"),
    resident=array_of("u1", 2),
    items=array_of(ITEM, 2),
    links=array_of(LINK),
    link_active=array_of("i4"),
    demand=array_of("f8", 2),
    capacity=array_of("f8", 2),
    used=array_of("f8", 2),
    faults=array_of(FAULT),
    contexts=array_of(CONTEXT),
    seen=array_of(NODE, 2),
    seen_resident=array_of("u1", 2),
    seen_used=array_of("f8", 2),
    seen_link_active=array_of("i4"),
    own=array_of(OWN, 2),
    reports=array_of(NODE, 2),
    report_resident=array_of("u1", 2),
    report_used=array_of("f8", 2),
    report_link_active=array_of("i4", 2),
    own_at=array_of(OWN, 2),
    report_of=array_of("i8"),
    changed=array_of("i4", 2),
    is_changed=array_of("u1", 2),
    passed_over=array_of("i8"),
    draws=array_of("f8"),
    ranking=array_of("i8"),
    prefix_tokens=array_of("f8"),
    prompt_block=array_of("i4"),
    prompt_first=array_of("i8"),
    prompt_tokens=array_of("f8"),
    prompt_token_units=array_of("f8"),
    prefix_place=array_of("i4", 2),
    prefix_cache=array_of(CACHE),
    prefix_entry=array_of(CACHED),
    content_idx=array_of("i4"),
    result_place=array_of("i4", 2),
    result_cache=array_of(CACHE),
    result_entry=array_of(CACHED),
    parts=array_of(PART),
    join_s=array_of("f8"),
    batch=array_of(BATCH),
    batch_marginal=array_of("f8"),
    views=TableListType(VIEW),
    memories=TableListType(MEMORY),
    order_memories=TableListType(MEMORY),
)


MEMORIES = ("memories", "order_memories")


def listed(state: State, name: str) -> Table:
    """A list of memories as kernels take it."""
    return Table(MEMORY, getattr(state, name), listed=True)


def bind(state: State) -> Table:
    """The state as kernels take it."""
    lists = {name: listed(state, name) for name in MEMORIES}
    lists["views"] = Table(VIEW, state.views, listed=True)
    return Table(STATE, [state._replace(**lists)])


def _zeros(n: int, dtype: np.dtype) -> np.ndarray:
    """Records that begin at a cache line, which a NODE then fills: a few per cent at 10,000 nodes."""
    raw = np.zeros(n * dtype.itemsize + CACHE_LINE, "u1")
    begin = -raw.ctypes.data % CACHE_LINE
    return raw[begin : begin + n * dtype.itemsize].view(dtype)


def _node_array(cluster: Cluster) -> np.ndarray:
    nodes = _zeros(cluster.n_nodes, NODE)
    nodes["slots"], nodes["type_idx"] = cluster.slots, cluster.type_idx
    nodes["zone_idx"], nodes["group_idx"] = cluster.zone_idx, cluster.group_idx
    nodes["weight"], nodes["up"] = cluster.weight, 1
    nodes["room"] = np.minimum(cluster.queue_max + cluster.slots, UNLIMITED)
    return nodes


def _hidden_array(cluster: Cluster) -> np.ndarray:
    hidden = _zeros(cluster.n_nodes, HIDDEN)
    hidden["speed"], hidden["nic_gib_per_s"] = 1.0, cluster.nic_gib_per_s
    hidden["memory_gib"] = cluster.memory_gib[cluster.type_idx]
    hidden["token_room"] = np.inf
    hidden["queue_max"] = np.minimum(cluster.queue_max, UNLIMITED)
    hidden["first_slot"][1:] = np.cumsum(cluster.slots)[:-1]
    return hidden


def _config_array(
    options: Options, policy: Policy, order: Policy, cluster: Cluster, seed: int, live: int
) -> np.ndarray:
    config = np.zeros(1, CONFIG)
    for name in ("telemetry_period_s", "telemetry_delay_s", "dispatchers"):
        config[name] = getattr(options, name)
    for name in ("held_max", "lookahead", "max_retries"):
        config[name] = getattr(options, name)
    config["plan_period_s"], config["seed"] = policy.plan_period_s, seed
    config["compares"] = members(policy)[0].compares
    config["views"] = 1 if options.telemetry_period_s == 0 else options.dispatchers
    config["reject_refused"], config["cancel"] = int(options.on_refusal), int(options.cancel)
    config["resume"], config["live"] = int(options.on_failure), live
    config["lanes"] = _n_lanes(options, cluster)
    config["virtual_counters"] = _counter_kind(members(order), live)
    config["margin"], config["n_zones"] = 8 + 2 * int(cluster.slots.max()), len(cluster.zone_names)
    return config


def _counter_kind(orders: tuple[Policy, ...], live: int) -> int:
    if not any(order.reads_virtual_counters for order in orders):
        return 0
    return 2 if live != 2 and any(order.counts_dominant_shares for order in orders) else 1


def _looked_at(options: Options, policy: Policy) -> int:
    """How many held requests of a lane one pass may offer in vain, at most."""
    return max(options.lookahead, *(LOOKED_AT * member.compares for member in members(policy)))


def _n_lanes(options: Options, cluster: Cluster) -> int:
    return len(cluster.class_names) if options.lane_per_class else 1


def _request_array(n: int) -> np.ndarray:
    rows = _zeros(n, REQUEST)
    for name in ("start_s", "service_start_s", "finish_s", "ended_s"):
        rows[name] = np.nan
    for name in ("next", "child", "node_idx"):
        rows[name] = -1
    return rows


def _link_array(cluster: Cluster) -> np.ndarray:
    links = np.zeros(len(cluster.zone_names) + cluster.n_nodes, LINK)
    links["gib_per_s"] = np.concatenate([cluster.zone_gib_per_s, cluster.nic_gib_per_s])
    links["due"] = -1
    return links


def _empty_queues(n: int) -> np.ndarray:
    queues = np.zeros(n, QUEUE)
    for name in ("head", "tail", "root"):
        queues[name] = -1
    return queues


def _fault_array(options: Options) -> np.ndarray:
    return np.zeros(0, FAULT) if options.faults is None else options.faults.copy()


def _numbers(array: Any) -> np.ndarray:
    return np.array(array, np.float64, order="C")


def _resources(cluster: Cluster) -> tuple[np.ndarray, np.ndarray]:
    """(demand [classes, resources], capacity [nodes, resources]) in whole steps, so that every sum is exact.

    Demand is rounded down and capacity up: what fits on paper fits.
    """
    many = len(cluster.resource_names)
    demand = np.floor(_numbers(cluster.demand) / RESOURCE_STEP) * RESOURCE_STEP
    capacity = np.ceil(_numbers(cluster.capacity) / RESOURCE_STEP) * RESOURCE_STEP
    return demand.reshape(len(cluster.class_names), many), capacity.reshape(cluster.n_nodes, many)


def _shares(cluster: Cluster, demand: np.ndarray, capacity: np.ndarray) -> np.ndarray:
    """What a request holds of all that the nodes have, [classes, resources]; of slots where these are all."""
    if not cluster.resource_names:
        return np.full((len(cluster.class_names), 1), 1.0 / cluster.slots.sum())
    total = capacity.sum(axis=0)
    return np.divide(demand, total, out=np.zeros(demand.shape), where=total > 0)


def memory_of(policy: Policy, cluster: Cluster) -> Memory:
    """What `init` makes. Raises PolicyError where it raises, or makes no memory that kernels can read."""
    name = policy.name or type(policy).__name__
    try:
        made = policy.init(cluster)
    except TrimtabError:
        raise
    except Exception as error:
        raise PolicyError(f"policy {name!r} raised {error!r} in init()") from error
    kinds = [(getattr(array, "dtype", None), getattr(array, "ndim", None)) for array in made or ()]
    if not isinstance(made, Memory) or kinds != [(array.dtype, 1) for array in memory()]:
        raise PolicyError(f"policy {name!r}: init() made {made!r}; expected what trimtab.memory(…) makes")
    return made


def new_state(
    cluster: Cluster,
    requests: Requests,
    options: Options,
    policy: Policy,
    order: Policy,
    seed: int,
    *,
    live: int = 0,
    shadow: Policy | None = None,
) -> State:
    """State before the first event. `requests` may be longer than what has arrived when the host is live."""
    n, d, items, n_requests = cluster.n_nodes, options.dispatchers, len(cluster.item_names), len(requests)
    rows_again = n_requests if live == 2 else 0
    policies = [policy] * d + ([] if shadow is None else [shadow])
    everyone = [m for p in {id(p): p for p in policies}.values() for m in members(p)]
    logs, lanes = len(policies), _n_lanes(options, cluster)
    nodes, resident = _node_array(cluster), np.zeros((n, items), "u1")
    stale = options.telemetry_period_s > 0
    kept = 1 + int(np.ceil(options.telemetry_delay_s / options.telemetry_period_s)) + 1 if stale else 0
    views = d if stale else 1
    contexts = np.zeros(logs, CONTEXT)
    contexts["n_nodes"], contexts["dispatcher_idx"] = n, np.arange(logs) % d
    config = _config_array(options, policy, order, cluster, seed, live)
    config["shadows"] = logs - d
    splits, batches = options.join_s is not None, options.batch_marginal_frac is not None
    rows = rows_with_parts(requests, d) if splits else rows_alone(requests)
    work = rows.requests.work.copy() if live == 1 else rows.requests.work  # that host notes when each came
    batch, groups = batch_rows(work) if batches else (np.zeros(0, BATCH), 0)
    config["splits"], config["batches"], config["groups"] = splits, batches, groups
    if splits:  # as many parts arrive, or leave and let others start, in one event
        config["margin"] += int(work["parts_max"].max(initial=0)) * (2 + int(cluster.slots.max()))
    prefix_tokens = np.zeros(n if any(m.reads_prefix for m in everyone) else 0)
    counts = np.zeros(1, COUNTS)
    counts["work"] = 0 if live else n_requests
    config["eviction"] = int(options.eviction)
    faults, links = _fault_array(options), _link_array(cluster)
    link_active, link_gib_per_s = np.zeros(len(links), "i4"), _numbers(links["gib_per_s"])
    demand, capacity = _resources(cluster)
    share = _shares(cluster, demand, capacity)
    used, usd_per_s = np.zeros(capacity.shape), _numbers(cluster.usd_per_s)
    item_gib = _numbers(cluster.item_gib)
    seen = np.tile(nodes, (views, 1)) if stale else nodes.reshape(1, n)
    seen_resident = resident.copy() if stale else resident
    seen_used, seen_link_active = (a.copy() if stale else a for a in (used, link_active))
    changed = np.zeros((logs, n), "i4")
    fixed_s, unit_s = _numbers(cluster.fixed_s), _numbers(cluster.unit_s)
    load_s, rtt_s = _numbers(cluster.load_s), _numbers(cluster.rtt_s)
    return State(
        config=config,
        counts=counts,
        work=work,
        truth=rows.requests.truth,
        requests=_request_array(len(work)),
        nodes=nodes,
        hidden=_hidden_array(cluster),
        slots=_zeros(int(cluster.slots.sum()), SLOT),
        queues=_empty_queues(n + d * lanes + len(links) + n * groups),
        events=_zeros(int(cluster.slots.sum()) * 2 + 4 * len(faults) + 1024, EVENT),
        started=np.zeros(len(work) if live else 0, "i8"),
        ended=np.zeros(rows_again, "i8"),
        avoid=np.full((rows_again, AVOIDED), -1, "i4"),
        decision_trace=np.full((rows_again, TRACE_COLUMNS), -1.0),
        virtual_counters=np.zeros(len(requests.tenant_names)),
        served_s=np.zeros((len(requests.tenant_names), share.shape[1])),
        share=share,
        held_of=np.zeros(len(requests.tenant_names), "i8"),
        held_cost=np.zeros(len(requests.tenant_names)),
        failed_offers=np.zeros(d * lanes, "i8"),
        fixed_s=fixed_s,
        unit_s=unit_s,
        load_s=load_s,
        rtt_s=rtt_s,
        item_gib=item_gib,
        item_is_adapter=cluster.item_is_adapter.astype("u1"),
        resident=resident,
        items=np.zeros((n, items), ITEM),
        links=links,
        link_active=link_active,
        demand=demand,
        capacity=capacity,
        used=used,
        faults=faults,
        contexts=contexts,
        seen=seen,
        seen_resident=seen_resident,
        seen_used=seen_used,
        seen_link_active=seen_link_active,
        own=np.zeros((views if stale else 0, n), OWN),
        reports=np.zeros((kept, n), NODE),
        report_resident=np.zeros((kept, n * items), "u1"),
        report_used=np.zeros((kept, used.size)),
        report_link_active=np.zeros((kept, len(links)), "i4"),
        own_at=np.zeros((kept * views, n), OWN),
        report_of=np.zeros(1, "i8"),
        changed=changed,
        is_changed=np.zeros((logs, n), "u1"),
        passed_over=np.zeros(lanes * _looked_at(options, policy), "i8"),
        draws=np.zeros(max(members(p)[0].draws for p in policies)),
        ranking=np.zeros(MAX_RANKED, "i8"),
        prefix_tokens=prefix_tokens,
        **reuse_arrays(cluster, rows.requests, options, config),
        parts=rows.parts,
        join_s=_numbers(() if options.join_s is None else options.join_s),
        batch=batch,
        batch_marginal=_numbers(() if options.batch_marginal_frac is None else options.batch_marginal_frac),
        views=[
            View(
                contexts[i : i + 1],
                seen[min(i, views - 1)],
                changed[i],
                seen_resident,
                fixed_s,
                unit_s,
                load_s,
                rtt_s,
                prefix_tokens,
                demand,
                capacity,
                seen_used,
                link_gib_per_s,
                seen_link_active,
                usd_per_s,
                item_gib,
            )
            for i in range(logs)
        ],
        memories=[memory_of(p, cluster) for p in policies],
        order_memories=[memory_of(order, cluster) for _ in range(d)],
    )
