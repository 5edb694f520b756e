"""The whole state of a run as arrays, so a run can stop after any event, be copied, and continue.

Each array is declared once, in `State`. `new_state` allocates them, and `bound_state` binds them for kernels.
`HostMode` has the switches for tasks that the host of a run does itself, so that the loop does not do them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.compiled.arrays import ListField, array
from trimtab.domain.chains import EDGE, STAGE_SPEC
from trimtab.domain.engines import ENGINE_TYPE
from trimtab.domain.options import FAULT, Eviction
from trimtab.domain.requests import TRUTH
from trimtab.domain.view import CONTEXT, ENGINE_LOAD, MAX_RANKED, NODE, RANKED, WORK, Memory, View
from trimtab.engine.layout import BATCH, COPY, GROUP, KEPT, RUN, STAGE
from trimtab.engine.lru import CACHE, CACHED


@dataclass(frozen=True, slots=True)
class HostMode:
    """Switches of the loop, each a column of CONFIG of the same name."""

    completions_from_outside: bool = False  # a node that is down continues its work
    rows_reused: bool = False  # requests arrive one by one without end
    placement_terms: bool = False  # requests may be pinned, avoid nodes and take tokens
    deadlines_while_held: bool = False  # the host itself ends work that runs too long
    loads_from_outside: bool = False  # nodes load the items that a plan places on them by themselves
    costs_from_outside: bool = False  # the host adds the true cost of a request
    transfers_from_outside: bool = False  # a request is at its node at once; the host sends its payload
    use_from_outside: bool = False  # the host writes what is in use; no request waits at a node for resources
    records_decision_trace: bool = False


SIMULATED = HostMode()
REPLAYED = HostMode(completions_from_outside=True)  # requests are known, backends serve them
OPEN = HostMode(
    completions_from_outside=True,
    rows_reused=True,
    placement_terms=True,
    deadlines_while_held=True,
    loads_from_outside=True,
    costs_from_outside=True,
    transfers_from_outside=True,
    use_from_outside=True,
    records_decision_trace=True,
)
STAGES = replace(OPEN, deadlines_while_held=False, use_from_outside=False)  # chains whose stages backends run


AVOIDED = 3  # lost nodes that one request can avoid

REQUEST = np.dtype(
    [
        ("start_s", "f8"),  # a slot was taken (last attempt); nan = never
        ("service_start_s", "f8"),  # models are loaded, computing begins
        ("finish_s", "f8"),  # planned while it runs, actual once finished
        ("ended_s", "f8"),  # rejected, cancelled or lost; nan = none of these
        ("key", "f8"),  # queue key; during a transfer the link's `share_gib` at its end
        ("estimate_s", "f8"),  # its part of the node's outstanding_s
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
        ("stale_link", "u1"),  # 1 = cancelled, but its queue still links to its row
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
        ("epoch", "i4"),  # its failures so far
        ("service", "i4"),  # how it serves: SLOTS, SHARED, LANGUAGE_MODEL of `domain.engines`
        # Requests without a model use only the fields above, in the first of two cache lines.
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

ENGINE = np.dtype(
    [
        (
            "begun_s",
            "f8",
        ),  # start of the present run of iterations; shared: up to when service is counted
        ("first_s", "f8"),  # seconds of its first iteration
        ("growth_s", "f8"),  # by which each is longer than the one before
        ("served_s", "f8"),  # shared: service that each request has had since the engine last idled
        ("iteration", "i8"),  # that are over, of all runs
        ("done", "i8"),  # of the present run, counted already
        ("planned", "i8"),  # of the present run, after which it is next looked at
        ("used", "i8"),  # tokens in the KV memory that the batch needs
        ("kept", "i8"),  # tokens of blocks there that no row of the batch needs: cached prefixes
        ("context", "i8"),  # tokens of all decoding rows
        ("peak", "i8"),  # largest `used`
        ("waiting", "i8"),  # tokens of prompts sent here and not read
        ("admitted", "i8"),  # rows so far
        ("place", "i8"),  # its first place in `batch_rows`
        ("version", "i4"),
        ("phase", "i4"),
        ("decoding", "i4"),  # rows
        ("prefilling", "i4"),
        ("is_changed", "i4"),  # 1 = the next iteration takes other seconds than the run under way
        ("adapters", "i4"),  # different ones in the batch
    ],
    align=True,
)
SEQUENCE = np.dtype(
    [
        ("first_token_s", "f8"),  # nan = none yet
        ("joined_s", "f8"),  # the batch
        ("ends_at", "f8"),  # iteration that makes its last token; shared: `served_s` at which it ends
        ("since", "i8"),  # iteration after which it decodes
        ("joined", "i8"),  # number of its admission
        ("prompt", "i4"),  # tokens to read; after a preemption those made before too
        ("left", "i4"),  # tokens to make
        ("read", "i4"),  # of its prompt, cached ones too
        ("place", "i4"),  # in the batch of its node; -1 = none
        ("blocks", "i4"),  # of its prompt in the pool of its node
        ("preempted", "i4"),  # times
    ],
    align=True,
)
POOL = np.dtype(
    [
        ("newest", "i4"),
        ("oldest", "i4"),
        ("length", "i4"),  # entries in use or free
        ("free", "i4"),  # first free entry; -1 = none
        ("begin", "i8"),
    ],
    align=True,
)  # blocks of a node's KV memory, as CACHE
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
NET_LINK = np.dtype(
    [
        ("gib_per_s", "f8"),  # now; 0 = it has failed
        ("whole_gib_per_s", "f8"),  # without congestion and failures
        ("delay_s", "f8"),
        ("peak_gib_per_s", "f8"),  # sum over its flows of what each could have at most
        ("carried_gib", "f8"),  # of flows that have left it
        ("room_gib_per_s", "f8"),  # while rates are computed: not given yet
        ("mark", "i8"),  # `counts.shared` when it was reached last
        ("source", "i4"),  # vertex
        ("cable", "i4"),  # both directions of a link have one number
        ("first", "i4"),  # first place of its list in `flow_link`; -1 = it has no flows
        ("open", "i4"),  # while rates are computed: flows that still grow
    ],
    align=True,
)
FLOW = np.dtype(
    [
        ("gib", "f8"),  # left when it took its present route
        ("left_gib", "f8"),  # at `since_s`
        ("since_s", "f8"),  # when it got its rate
        ("end_s", "f8"),
        ("gib_per_s", "f8"),
        ("fair_gib_per_s", "f8"),  # while rates are computed: the new one; -1 = it still grows
        ("peak_gib_per_s", "f8"),  # capacity of its narrowest link
        ("mark", "i8"),  # as that of NET_LINK
        ("kind", "i4"),  # INPUT, MODEL, RESULT of `flows`; negative = it has ended, its place is free
        ("what", "i4"),  # its row, or the item
        ("source", "i4"),  # vertices
        ("target", "i4"),
        ("links", "i4"),  # of its route; 0 = it waits for one
        ("place", "i4"),  # 1 + position in `flow_heap`; 0 = it does not move
        ("before", "i4"),  # 1 + the flow of the same row before it; 0 = none
        ("after", "i4"),  # the next one; of a free place, the next free one
    ],
    align=True,
)
TRIAL = np.dtype([("least", "f8"), ("link", "i8")], align=True)  # of a search of routes, by depth
EVENT = np.dtype([("time_s", "f8"), ("key", "i8")], align=True)
OWN = np.dtype([("outstanding_s", "f8"), ("tokens", "f8"), ("in_flight", "i8")], align=True)

QUEUE_NODE = np.dtype(
    [
        ("weight", "f8"),
        ("notice_s", "f8"),  # inf = it never preempts
        ("user_limit", "f8"),  # part of the limit of a leaf that one tenant may have
        ("max_running", "i8"),
        ("parent", "i4"),  # -1 = the root
        ("end", "i4"),  # one past its last descendant
        ("order", "i4"),  # of a leaf: QueueOrder
        ("version", "i4"),  # of its PREEMPTION event
        ("preemptible", "i8"),  # of a leaf: 1 = others may take back what it holds above its guarantee
        ("running", "i8"),  # requests at nodes, of all its tenants
        ("held", "i8"),  # requests in central queues
        ("first_serial", "i8"),  # of the held requests that may be sent
        ("is_short", "i8"),  # 1 = its guarantee would take one of these
        ("short_since_s", "f8"),  # inf = it is not short
        ("short_s", "f8"),  # time that it was short, up to `short_since_s`
        ("share", "f8"),  # dominant share of what it holds
        ("share_s", "f8"),  # integral of `share`, up to `since_s`
        ("since_s", "f8"),
        ("compared", "f8"),  # share by weight, as its siblings are compared
        ("preempted", "i8"),  # requests taken back from it
        ("lost_s", "f8"),  # slot-seconds that these had held
    ],
    align=True,
)
PREEMPTED = np.dtype(
    [
        ("lost_s", "f8"),  # slot-seconds of attempts that were taken back
        ("until_s", "f8"),  # live, taken back: it waits so long, in place of its deadline; 0 = it was not
        ("times", "i4"),
        ("is_firm", "u1"),  # 1 = it is not taken back: its host has begun to answer
        ("is_chosen", "u1"),  # 1 = it is counted as gone, while a queue looks for room
    ],
    align=True,
)

COSTS, SHARES_SERVED, SHARES_HELD, TREE_SHARES = 1, 2, 3, 4  # CONFIG.virtual_counters
BY_CLASS, BY_TENANT = 1, 2  # CONFIG.lane_by

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
        ("compares", "i8"),  # of the active policy
        ("order_first", "i8"),  # 1 = the order is another policy's: scores decide only between equal keys
        ("lanes", "i8"),  # per dispatcher: 1, or one per class
        ("lane_by", "i8"),  # what the order divides each lane by: BY_CLASS, BY_TENANT or 0
        ("class_lanes", "i8"),  # of each lane: 1, or one per class
        ("tenant_lanes", "i8"),  # of each of these: 1, or one per tenant
        ("sublanes", "i8"),  # per lane: the product of both
        ("cancel", "i8"),
        ("resume", "i8"),
        ("max_retries", "i8"),
        *((field.name, "i8") for field in fields(HostMode)),
        ("shadows", "i8"),  # 1 = a shadow policy also answers
        ("external", "i8"),  # 1 = the policy has no `dispatch`: the host decides
        (
            "virtual_counters",
            "i8",
        ),  # that the order reads: COSTS, SHARES_SERVED, …; 0 = none
        ("guarantees", "i8"),  # 1 = some queue has a guarantee
        ("token_caps", "i8"),  # 1 = nodes have bounds on tokens in flight
        ("margin", "i8"),  # room that the event heap must have before an event is taken
        ("run_margin", "i8"),  # of it, what the end of a stage may need
        ("n_zones", "i8"),
        ("network", "i8"),  # 1 = what moves takes the graph of `net_links`, and `links` are its links
        ("routing", "i8"),
        ("route_max", "i8"),  # links that a route may have
        ("store_vertex", "i8"),  # that models come from; -1 = each node has them
        ("flow_margin", "i8"),  # room that the flows must have before an event is taken
        ("block_tokens", "f8"),  # of a prompt's block
        ("prefix_blocks", "i8"),  # blocks that a node keeps; 0 = no prefix cache, or no request has blocks
        ("results_max", "i8"),  # results that are kept; 0 = none, or no request may use them
        ("eviction", "i8"),
        ("loads_ahead", "i8"),  # 1 = nodes load models that are asked for into free memory
        ("store_gib", "f8"),  # size of the store of stage results; 0 = none
        ("runs", "i8"),  # 1 = requests may have stages, or be split into parts
        ("batches", "i8"),  # 1 = requests may be served in batches
        ("groups", "i8"),  # of requests that can be served in one batch
        ("engines", "i8"),  # 1 = some nodes serve otherwise than one request a slot
        ("fast_forward", "i8"),  # 1 = one event ends all iterations of a run
        ("serve_c", "i8"),  # addresses of `engine.service.serve`, where it is compiled
        ("serve_jit", "i8"),
    ],
    align=True,
)

COUNTS = np.dtype(
    [
        ("now_s", "f8"),
        ("now_key", "i8"),  # of the event that is handled
        ("moved_gib", "f8"),
        ("loaded_gib", "f8"),  # models, over the network
        ("returned_gib", "f8"),  # results
        ("work", "i8"),  # rows of `work` that exist
        ("arrived", "i8"),  # rows that have arrived
        ("events", "i8"),  # size of the event heap
        ("injected", "i8"),  # events from the host, behind the heap, that the loop has not yet entered
        ("started", "i8"),  # live: requests started and not yet handed to a backend
        ("ended", "i8"),  # reused rows: requests rejected, cancelled or lost, and not yet reported
        ("consulting", "i8"),  # 1 = a call of the shadow policy is in progress
        ("shadow_failures", "i8"),
        ("last_tenant", "i8"),  # whose request was last sent from the central queues
        ("n_flows", "i8"),  # places of `flows` that were used so far
        ("free_flow", "i8"),  # 1 + the first free one of these; 0 = none
        ("n_moving", "i8"),  # flows that have a rate
        ("flow_version", "i8"),  # of the event of the first end
        ("flow_due_s", "f8"),  # its time
        ("shared", "i8"),  # times that rates were computed anew
        ("n_touched_links", "i8"),
        ("n_touched_flows", "i8"),
        ("in_system", "i8"),
        ("in_system_s", "f8"),  # integral of `in_system` over time
        ("in_nodes", "i8"),  # of these, sent to a node
        ("finished", "i8"),
        ("rejected", "i8"),
        ("cancelled", "i8"),
        ("lost", "i8"),
        ("retries", "i8"),
        ("node_failures", "i8"),
        ("ready", "i8"),  # rows that became ready, where there are runs
        ("copies", "i8"),  # copies of outputs that were made
        ("n_held", "i8"),  # rows that the central queues hold, where there are runs
        ("kept", "i8"),  # outputs in the store of stage results
        ("store_gib", "f8"),  # their size
        ("inflation", "f8"),  # credit of the output that the store evicted last
        ("recomputed_s", "f8"),  # service of stages whose outputs were lost
        ("model_loads", "i8"),
        ("adapter_loads", "i8"),
        ("evictions", "i8"),
        ("prompt_tokens", "f8"),  # of requests that took a slot, where nodes have prefix caches
        ("cached_tokens", "f8"),  # of these, in the node's cache
        ("repeatable", "i8"),  # requests that a cached result could answer
        ("result_hits", "i8"),  # of these, answered by one
        ("left_node", "i8"),  # where a slot was free after the node's last change; it may be taken by now
        ("free_node", "i8"),  # where a search found a free slot last
        ("no_slot_free", "i8"),  # 1 = a search found none, and no node with one has changed since
        ("next_to_load", "i8"),  # node whose turn it is to load ahead
        ("replanned", "i8"),  # 1 = nodes have not seen yet what the plan in force places on them
        ("offers_due", "i8"),  # 1 = held requests are to be offered
        ("awaited", "i8"),  # what the host is to answer before it calls again; 0 = nothing
        ("offering", "i8"),  # dispatcher whose queue is being offered
        ("n_passed_over", "i8"),  # requests offered in vain in this pass
        ("best", "i8"),  # 1 + the best request that was compared in this pass; 0 = none
        ("best_score", "f8"),
        ("best_key", "f8"),  # its key in the central queue
        ("offer_key", "f8"),  # of the held request that was found last
        ("bound", "i8"),  # 1 + the node that the plan binds the request on offer to; 0 = none
        ("sample", "i8"),  # telemetry samples taken
        ("shown", "i8"),  # telemetry samples made visible
        ("idle_events", "i8"),  # consecutive events that could have dispatched held requests, but did not
        ("pending_wakeups", "i8"),  # future deadlines and repairs of failed nodes
        ("steps", "i8"),
        ("iterations", "i8"),  # of engines
        ("preemptions", "i8"),  # by engines
        ("preempted", "i8"),  # requests taken back for guarantees of queues
        ("taken_back", "i8"),  # of these, not yet reported to a live host
        ("deciding", "i8"),  # request of the present decision
        ("answer", "i8"),  # the policy's last invalid answer, or the host's
    ],
    align=True,
)


SHOWN = 4  # candidates of a decision that are recorded

DECISION = np.dtype(
    [
        ("estimate_s", "f8"),  # service on the node that it was sent to
        ("shadow_s", "f8"),  # service on the shadow's node
        ("shadow_idx", "i4"),  # node that the shadow policy would choose; -1 = none
        ("n_held", "i4"),  # other requests in the central queue
        ("decisions", "i4"),  # about this request, before this one
        ("node_idx", "i4", SHOWN),  # candidates, best first; -1 = no more
        ("in_flight", "i4", SHOWN),  # other requests there
        ("predicted_s", "f8", SHOWN),  # service there
    ],
    align=True,
)  # the last one about a request


class State(NamedTuple):
    """All arrays of a run. `new_state` sets the lengths of the axes. Arrays of one record hold scalars."""

    config: Annotated[Any, array(CONFIG, "one")]
    counts: Annotated[Any, array(COUNTS, "one")]
    work: Annotated[Any, array(WORK, "rows")]  # the requests' own rows, which a run does not change
    truth: Annotated[Any, array(TRUTH, "rows")]
    requests: Annotated[Any, array(REQUEST, "rows")]
    nodes: Annotated[Any, array(NODE, "nodes")]  # the truth
    hidden: Annotated[Any, array(HIDDEN, "nodes")]
    slots: Annotated[Any, array(SLOT, "slots")]
    queues: Annotated[Any, array(QUEUE, "queues")]
    events: Annotated[Any, array(EVENT, "event_room")]  # a heap
    started: Annotated[Any, array("i8", "started_rows")]  # live: started and not yet handed over
    ended: Annotated[Any, array("i8", "reused_rows")]  # not served, and not reported yet
    avoid: Annotated[Any, array("i4", "reused_rows", "avoided")]  # nodes it lost; -1 = none
    decision_trace: Annotated[Any, array(DECISION, "reused_rows")]
    virtual_counters: Annotated[Any, array("f8", "tenants")]  # weighted service received
    tenant_weight: Annotated[Any, array("f8", "tenants")]  # due share, relative
    pooled: Annotated[Any, array("f8", "shares")]  # of each resource, on all nodes; at the end their slots
    at_nodes: Annotated[
        Any, array("i8", "tenants", "classes")
    ]  # requests sent to nodes, if an order or a limit reads it
    tree: Annotated[Any, array(QUEUE_NODE, "tree_queues")]  # hierarchical queues, in preorder
    leaf_of: Annotated[Any, array("i4", "tree_tenants")]  # row of each tenant's leaf
    tree_guarantee: Annotated[Any, array("f8", "tree_queues", "shares")]
    tree_limit: Annotated[Any, array("f8", "tree_queues", "shares")]
    tree_at_nodes: Annotated[Any, array("i8", "tree_queues", "classes")]  # requests sent to nodes
    tree_held: Annotated[Any, array("f8", "tree_queues", "shares")]  # what these take
    tree_scaled: Annotated[Any, array("f8", "tree_queues", "shares")]  # the same, scaled
    preemptions: Annotated[Any, array(PREEMPTED, "tree_rows")]
    class_is_firm: Annotated[Any, array("u1", "classes")]  # 1 = its requests are not taken back
    taken_back: Annotated[Any, array("i8", "reused_rows")]  # reused rows: taken back and not yet reported
    held_of: Annotated[Any, array("i8", "tenants")]  # requests of each in the central queues
    held_cost: Annotated[Any, array("f8", "tenants")]  # and their cost
    failed_offers: Annotated[Any, array("i8", "lanes")]  # failed offers of the lane in this pass
    fixed_s: Annotated[Any, array("f8", "classes", "types")]
    unit_s: Annotated[Any, array("f8", "classes", "types")]
    load_s: Annotated[Any, array("f8", "items", "types")]
    rtt_s: Annotated[Any, array("f8", "zones", "zones")]
    item_gib: Annotated[Any, array("f8", "items")]
    item_is_adapter: Annotated[Any, array("u1", "items")]
    resident: Annotated[Any, array("u1", "nodes", "items")]  # the truth
    resident_changes: Annotated[Any, array("i8", "nodes")]  # rises whenever that row changes
    items: Annotated[Any, array(ITEM, "nodes", "items")]
    links: Annotated[Any, array(LINK, "links")]
    link_active: Annotated[Any, array("i4", "links")]  # transfers under way
    net_links: Annotated[Any, array(NET_LINK, "net_links")]  # by source; empty = no network
    link_target: Annotated[Any, array("i4", "net_links")]
    out_first: Annotated[Any, array("i4", "net_ends")]  # first link that leaves each vertex
    way_s: Annotated[Any, array("f8", "net_vertices", "net_vertices")]  # least delay; inf = no route
    way_links: Annotated[Any, array("i4", "net_vertices", "net_vertices")]
    next_link: Annotated[Any, array("i4", "net_vertices", "net_vertices")]
    flows: Annotated[Any, array(FLOW, "flow_room")]
    flow_link: Annotated[Any, array("i4", "flow_places")]  # [flows · route_max] links of each route
    flow_next: Annotated[Any, array("i4", "flow_places")]  # place of the link's next flow; -1 = none
    flow_before: Annotated[Any, array("i4", "flow_places")]
    flow_heap: Annotated[Any, array("i4", "flow_room")]  # the first counts.n_moving, by end
    flow_of_row: Annotated[Any, array("i4", "net_rows")]  # 1 + the first flow of each row; 0 = none
    touched_link: Annotated[Any, array("i4", "net_links")]
    touched_flow: Annotated[Any, array("i4", "flow_room")]
    fill_key: Annotated[Any, array("f8", "fill_room")]  # a heap of links and flows by when they are full
    fill_ref: Annotated[Any, array("i4", "fill_room")]  # a link, or -1 - flow
    trial: Annotated[Any, array(TRIAL, "net_depth")]
    from_gib: Annotated[Any, array("f8", "net_vertices")]  # inputs of a row that come from each vertex
    from_vertex: Annotated[Any, array("i4", "net_vertices")]
    result_gib: Annotated[Any, array("f8", "result_rows")]  # to the client; empty = results do not move
    demand: Annotated[Any, array("f8", "classes", "resources")]
    capacity: Annotated[Any, array("f8", "nodes", "resources")]
    used: Annotated[Any, array("f8", "nodes", "resources")]  # by requests with slots; the truth
    used_s: Annotated[Any, array("f8", "nodes", "resources")]  # integral of `used`, of ended occupancies
    faults: Annotated[Any, array(FAULT, "faults")]
    contexts: Annotated[Any, array(CONTEXT, "observers")]
    seen: Annotated[Any, array(NODE, "views", "nodes")]  # fresh: `nodes` itself
    seen_resident: Annotated[Any, array("u1", "nodes", "items")]  # fresh: `resident` itself
    seen_resident_changes: Annotated[Any, array("i8", "nodes")]  # fresh: `resident_changes` itself
    seen_used: Annotated[Any, array("f8", "nodes", "resources")]  # fresh: `used` itself
    seen_link_active: Annotated[Any, array("i4", "links")]  # fresh: `link_active` itself
    own: Annotated[Any, array(OWN, "own_views", "nodes")]  # each dispatcher's own requests in flight
    reports: Annotated[Any, array(NODE, "reports", "nodes")]  # kept samples of telemetry
    report_resident: Annotated[Any, array("u1", "reports", "all_items")]
    report_used: Annotated[Any, array("f8", "reports", "all_resources")]
    report_link_active: Annotated[Any, array("i4", "reports", "links")]
    own_at: Annotated[Any, array(OWN, "report_views", "nodes")]  # `own` when the sample was taken
    report_of: Annotated[Any, array("i8", "one")]  # position of the visible report
    report_s: Annotated[Any, array("f8", "reports")]  # when it was sampled
    use_reported_s: Annotated[Any, array("f8", "nodes")]  # the sample that `seen_used` is of; inf = fresh
    report_noise_frac: Annotated[Any, array("f8", "noisy_resources")]  # empty = reports are exact
    changed: Annotated[Any, array("i4", "observers", "nodes")]
    is_changed: Annotated[Any, array("u1", "observers", "nodes")]
    passed_over: Annotated[Any, array("i8", "passed_over")]
    draws: Annotated[Any, array("f8", "draws")]
    ranking: Annotated[Any, array(RANKED, "ranked")]  # the candidates of the present decision
    prefix_tokens: Annotated[Any, array("f8", "prefix_nodes")]  # of the work of the present decision
    prompt_block: Annotated[Any, array("i4", "blocks")]
    prompt_first: Annotated[Any, array("i8", "prompts")]  # position of each request's first block
    prompt_tokens: Annotated[Any, array("f8", "prompts")]
    prompt_token_units: Annotated[Any, array("f8", "classes")]  # work units that a cached token saves
    prefix_place: Annotated[Any, array("i4", "prefixes", "nodes")]  # see `lru`
    prefix_cache: Annotated[Any, array(CACHE, "nodes")]
    prefix_entry: Annotated[Any, array(CACHED, "entries")]
    content_idx: Annotated[Any, array("i4", "contents")]  # equal = the same request of one tenant
    result_place: Annotated[Any, array("i4", "results", "caches")]
    result_cache: Annotated[Any, array(CACHE, "caches")]
    result_entry: Annotated[Any, array(CACHED, "entries")]
    runs: Annotated[Any, array(RUN, "runs")]
    groups: Annotated[Any, array(GROUP, "groups")]
    stages: Annotated[Any, array(STAGE, "run_rows")]  # of all rows, if there are runs
    stage_specs: Annotated[Any, array(STAGE_SPEC, "specs")]
    successor_edges: Annotated[Any, array(EDGE, "edges")]
    input_edges: Annotated[Any, array(EDGE, "edges")]
    copies: Annotated[Any, array(COPY, "copies")]  # of outputs
    stage_content: Annotated[Any, array("i4", "stored_rows")]  # equal = the same output; -1 = none
    kept: Annotated[Any, array(KEPT, "stage_contents")]
    kept_heap: Annotated[Any, array("i4", "stage_contents")]  # the first counts.kept: a heap by credit
    recent: Annotated[Any, array("i8", "recent")]  # the last rows that became ready, a ring
    held_rows: Annotated[Any, array("i4", "run_rows")]  # the first counts.n_held: rows in central queues
    held_at: Annotated[Any, array("i4", "run_rows")]  # their positions there
    input_gib: Annotated[Any, array("f8", "input_nodes")]  # of the work of the present decision
    class_in_flight: Annotated[Any, array("i8", "run_classes")]
    join_s: Annotated[Any, array("f8", "classes")]  # seconds to join the parts of a request
    batch: Annotated[Any, array(BATCH, "batched_rows")]  # if requests may be batched
    batch_marginal: Annotated[Any, array("f8", "classes")]  # share of service for one more request
    batch_once: Annotated[Any, array("f8", "classes")]  # 1 = a batch takes the fixed seconds once
    engine_types: Annotated[Any, array(ENGINE_TYPE, "engine_types")]  # [0] = all nodes have slots
    dense_s: Annotated[Any, array("f8", "engine_types", "tokens")]
    sequence_s: Annotated[Any, array("f8", "engine_types", "batch_sizes")]
    attention_s: Annotated[Any, array("f8", "engine_types", "batch_sizes")]
    context_s: Annotated[Any, array("f8", "engine_types", "batch_sizes")]
    slowdown: Annotated[Any, array("f8", "engine_types", "batch_sizes")]
    size_at: Annotated[Any, array("f8", "engine_types", "measured_sizes")]
    measured_s: Annotated[Any, array("f8", "engine_types", "measured_places")]  # [types, rows · sizes]
    engines: Annotated[Any, array(ENGINE, "engine_nodes")]
    sequences: Annotated[Any, array(SEQUENCE, "engine_rows")]
    batch_rows: Annotated[Any, array("i4", "batch_places")]  # decoding rows, a heap; then those that are read
    pools: Annotated[Any, array(POOL, "pool_nodes")]
    pool_entry: Annotated[Any, array(CACHED, "pool_entries")]
    pool_users: Annotated[Any, array("i4", "pool_entries")]  # rows of the batch that need the block
    itl_edge_s: Annotated[Any, array("f8", "itl_edges")]  # upper edges of all bins but the last
    itl_count: Annotated[
        Any, array("i8", "engine_types", "itl_bins")
    ]  # tokens by their distance from the last
    engine_load: Annotated[Any, array(ENGINE_LOAD, "engine_nodes")]  # the truth
    usual_step_s: Annotated[Any, array("f8", "reporting_nodes")]  # of real nodes; 0 = they tell none
    seen_engine_load: Annotated[Any, array(ENGINE_LOAD, "views", "engine_nodes")]  # fresh: `engine_load`
    report_engine_load: Annotated[Any, array(ENGINE_LOAD, "reports", "engine_nodes")]
    held_of_item: Annotated[Any, array("i8", "dispatchers", "items")]  # held requests that need it
    views: Annotated[Any, ListField(View)]  # [dispatchers + shadows]
    memories: Annotated[Any, ListField(Memory)]  # [dispatchers + shadows], the policies'
    order_memories: Annotated[Any, ListField(Memory)]  # [dispatchers], the order's


def n_wanted(state: State, work: NDArray[np.void]) -> int:
    """Candidates that the host of these rows of WORK looks at.

    1 where a node refuses nothing that a policy could not have seen: a second candidate is then never asked.
    """
    config = state.config[0]
    is_seen = config["telemetry_period_s"] == 0.0 and not config["placement_terms"]
    is_pinned = config["eviction"] == int(Eviction.PLAN_PINNED)
    if is_seen and not is_pinned and not state.demand.shape[1] and _fit_together(state, work):
        return 1
    return MAX_RANKED


def _fit_together(state: State, work: NDArray[np.void]) -> bool:
    """Whether each model and adapter that a request needs fit every node that serves its class."""
    if not state.item_is_adapter.any():
        return True
    work = work[work["adapter_idx"] >= 0]
    gib = state.item_gib[work["model_idx"]] + state.item_gib[work["adapter_idx"]]
    is_served = state.fixed_s[work["class_idx"]] < np.inf  # [rows, types]
    return not (is_served & (gib[:, None] > state.views[0].memory_gib)).any()
