"""The state of a run before its first event."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from trimtab.compiled.arrays import allocate, zeros
from trimtab.domain.cluster import Cluster
from trimtab.domain.engines import ENGINE_TABLES, ENGINE_TYPE, LANGUAGE_MODEL, SLOTS, Engines
from trimtab.domain.needs import Need
from trimtab.domain.options import FAULT, Options
from trimtab.domain.policy import Decider, Policy, members, name_of
from trimtab.domain.requests import Requests
from trimtab.domain.view import (
    CONTEXT,
    ENGINE_LOAD,
    MAX_RANKED,
    NODE,
    OUTAGE,
    UNLIMITED,
    Memory,
    View,
    memory,
)
from trimtab.engine.layout import BATCH, COPY, GROUP, KEPT, batch_rows, rows_alone, rows_with_runs
from trimtab.engine.lru import CACHED, reuse_arrays
from trimtab.engine.network_state import network_arrays
from trimtab.engine.policy_errors import policy_failure
from trimtab.engine.runs import RECENT
from trimtab.engine.state import (
    AVOIDED,
    BY_CLASS,
    BY_TENANT,
    CONFIG,
    COSTS,
    ENGINE,
    HIDDEN,
    LINK,
    POOL,
    QUEUE,
    QUEUE_NODE,
    REQUEST,
    SEQUENCE,
    SHARES_HELD,
    SHARES_SERVED,
    SIMULATED,
    TREE_SHARES,
    HostMode,
    State,
    n_wanted,
)
from trimtab.errors import PolicyError, TrimtabError

RESOURCE_STEP = 2.0**-20  # resources are counted in steps of this
LOOKED_AT = 4  # held requests examined per compared request, because some suit no free node


def _node_array(cluster: Cluster) -> np.ndarray:
    nodes = zeros(NODE, [cluster.n_nodes])
    nodes["slots"], nodes["type_idx"] = cluster.slots, cluster.type_idx
    nodes["zone_idx"], nodes["group_idx"] = cluster.zone_idx, cluster.group_idx
    nodes["weight"], nodes["up"] = cluster.weight, 1
    nodes["room"] = np.minimum(cluster.queue_max + cluster.slots, UNLIMITED)
    return nodes


def _hidden_array(cluster: Cluster) -> np.ndarray:
    hidden = zeros(HIDDEN, [cluster.n_nodes])
    hidden["speed"], hidden["nic_gib_per_s"] = 1.0, cluster.nic_gib_per_s
    hidden["memory_gib"] = cluster.memory_gib[cluster.type_idx]
    hidden["token_room"] = np.inf
    hidden["queue_max"] = np.minimum(cluster.queue_max, UNLIMITED)
    hidden["first_slot"][1:] = np.cumsum(cluster.slots)[:-1]
    return hidden


def _config_array(
    options: Options, decider: Decider, cluster: Cluster, seed: int, host: HostMode, n_tenants: int
) -> np.ndarray:
    config = np.zeros(1, CONFIG)
    for name in ("telemetry_period_s", "telemetry_delay_s", "dispatchers"):
        config[name] = getattr(options, name)
    for name in ("held_max", "lookahead", "max_retries"):
        config[name] = getattr(options, name)
    config["plan_period_s"], config["seed"] = decider.dispatch.plan_period_s, seed
    config["compares"] = members(decider.dispatch)[0].compares
    first = members(decider.dispatch)[0]
    is_undecided = first.dispatch is Policy.dispatch and not first.chooses()  # an instance may have its own
    config["external"] = is_undecided and not host.completions_from_outside
    config["views"] = 1 if options.telemetry_period_s == 0 else options.dispatchers
    config["order_first"] = int(not decider.has_own_order)
    config["reject_refused"], config["cancel"] = int(options.on_refusal), int(options.cancel)
    config["resume"] = int(options.on_failure)
    for field in fields(HostMode):
        config[field.name] = getattr(host, field.name)
    config["use_from_outside"] |= not options.are_resources_bounds
    config["lanes"] = _n_lanes(options, cluster)
    config["virtual_counters"] = _counter_kind(members(decider.order), options)
    config["lane_by"] = _lane_by(decider)
    config["class_lanes"], config["tenant_lanes"] = _lanes_in_lane(config, cluster, options, n_tenants)
    config["sublanes"] = config["class_lanes"] * config["tenant_lanes"]
    config["loads_ahead"] = _loads_ahead(decider.dispatch, cluster, host)
    most = 0 if cluster.engines is None else int(cluster.engines.types["batch_max"].max())
    config["margin"], config["n_zones"] = 8 + 2 * max(most, int(cluster.slots.max())), len(cluster.zone_names)
    if options.queues is not None:
        config["margin"] += len(options.queues.tree.paths)
        config["guarantees"] = bool(options.queues.tree.guarantee[1:].any())
    return config


def _counter_kind(orders: tuple[Policy, ...], options: Options) -> int:
    if options.queues is not None and any(Need.QUEUES in order.needs for order in orders):
        return TREE_SHARES
    if any(Need.SHARES_HELD in order.needs for order in orders):
        return SHARES_HELD
    if not any(Need.VIRTUAL_COUNTERS in order.needs for order in orders):
        return 0
    return SHARES_SERVED if any(Need.DOMINANT_SHARES in order.needs for order in orders) else COSTS


def _lane_by(decider: Decider) -> int:
    """The key that divides lanes. All candidates of a composite must agree, since queues stay."""
    kinds = {order.lane_by for order in members(decider.order)}
    if len(kinds) > 1:
        raise PolicyError(
            f"policy {decider.label!r}: its candidates divide the central queue by {sorted(kinds)}; "
            "expected orders that all do so alike"
        )
    return {"": 0, "class": BY_CLASS, "tenant": BY_TENANT}[kinds.pop()]


def _lanes_in_lane(config: np.ndarray, cluster: Cluster, options: Options, n_tenants: int) -> tuple[int, int]:
    """By how many classes and how many tenants each lane is divided."""
    by_class = config["lane_by"][0] == BY_CLASS and config["lanes"][0] == 1
    by_tenant = config["lane_by"][0] == BY_TENANT or options.queues is not None
    return len(cluster.class_names) if by_class else 1, n_tenants if by_tenant else 1


def _loads_ahead(policy: Policy, cluster: Cluster, host: HostMode) -> bool:
    wanted = Need.LOADING_AHEAD in policy.all_needs and not host.loads_from_outside
    has_store = cluster.network is not None and cluster.network.store >= 0
    return wanted and (has_store or bool(np.any(cluster.load_s)))


def _looked_at(options: Options, policy: Policy) -> int:
    """Maximum number of failed offers per lane and pass."""
    return max(options.lookahead, *(LOOKED_AT * member.compares for member in members(policy)))


def _n_lanes(options: Options, cluster: Cluster) -> int:
    return len(cluster.class_names) if options.lane_per_class else 1


def _request_array(n: int) -> np.ndarray:
    rows = zeros(REQUEST, [n])
    for name in ("start_s", "service_start_s", "finish_s", "ended_s"):
        rows[name] = np.nan
    for name in ("next", "child", "node_idx"):
        rows[name] = -1
    return rows


def _link_array(cluster: Cluster) -> np.ndarray:
    network, of_nodes = cluster.network, (cluster.zone_gib_per_s, cluster.nic_gib_per_s)
    gib_per_s = np.concatenate(of_nodes) if network is None else network.gib_per_s
    links = np.zeros(len(gib_per_s), LINK)
    links["gib_per_s"] = gib_per_s
    links["due"] = -1
    return links


def _empty_queues(n: int) -> np.ndarray:
    queues = np.zeros(n, QUEUE)
    for name in ("head", "tail", "root"):
        queues[name] = -1
    return queues


def _fault_array(options: Options) -> np.ndarray:
    if options.faults is None:
        return np.zeros(0, FAULT)
    faults = options.faults.copy()
    faults["amount"] = np.floor(faults["amount"] / RESOURCE_STEP) * RESOURCE_STEP
    return faults


def _numbers(array: Any) -> np.ndarray:
    return np.array(array, np.float64, order="C")


def _resources(cluster: Cluster) -> tuple[np.ndarray, np.ndarray]:
    """(demand [classes, resources], capacity [nodes, resources]) in whole steps, so that every sum is exact.

    Demand is rounded down and capacity up, so a request that fits exactly still fits after rounding.
    """
    many = len(cluster.resource_names)
    demand = in_steps(_numbers(cluster.demand))
    capacity = np.ceil(_numbers(cluster.capacity) / RESOURCE_STEP) * RESOURCE_STEP
    return demand.reshape(len(cluster.class_names), many), capacity.reshape(cluster.n_nodes, many)


def in_steps(amounts: np.ndarray) -> np.ndarray:
    """Amounts of resources, rounded down to whole steps."""
    return np.floor(amounts / RESOURCE_STEP) * RESOURCE_STEP


def pooled(cluster: Cluster) -> np.ndarray:
    """The total of each resource over all nodes, and of their slots, [resources + 1].

    A resource that no node has counts as 1, so that no share of it is undefined.
    """
    _, capacity = _resources(cluster)
    total = np.append(capacity.sum(axis=0), float(cluster.slots.sum()))
    return np.where(total > 0.0, total, 1.0)


def _tenant_weight(requests: Requests) -> np.ndarray:
    given = requests.tenant_weight
    return np.ones(len(requests.tenant_names)) if given is None else _numbers(given)


def queue_arrays(options: Options, there: np.ndarray, n_tenants: int) -> dict[str, np.ndarray]:
    """The arrays of hierarchical queues that do not begin as zeros; empty without queues.

    A limit of all that there is bounds nothing: requests may then wait at nodes as without queues.
    """
    queues, shares = options.queues, len(there)
    if queues is None:
        empty = {name: np.zeros((0, shares)) for name in ("tree_guarantee", "tree_limit")}
        return empty | {"tree": np.zeros(0, QUEUE_NODE), "leaf_of": np.zeros(0, "i4")}
    tree = queues.tree
    rows = zeros(QUEUE_NODE, [len(tree.paths)])
    rows["parent"], rows["end"], rows["weight"] = tree.shape.parent, tree.shape.end, tree.shape.weight
    rows["notice_s"], rows["user_limit"], rows["order"] = tree.notice_s, tree.user_limit, tree.order
    rows["max_running"], rows["short_since_s"] = tree.most_running, np.inf
    rows["preemptible"] = tree.preemptible
    amounts = tree.amounts(there)
    leaf_of = np.zeros(n_tenants, "i4")
    leaf_of[: len(queues.leaf_row)] = queues.leaf_row
    is_all = amounts.limit >= there * (1.0 - 1e-9)
    return {
        "tree": rows,
        "leaf_of": leaf_of,
        "tree_guarantee": _numbers(amounts.guarantee),
        "tree_limit": _numbers(np.where(is_all, np.inf, amounts.limit)),
    }


def memory_of(policy: Policy, cluster: Cluster) -> Memory:
    """The memory from a policy's `init`. Raises PolicyError if `init` raises or returns no valid memory."""
    name = name_of(policy)
    try:
        made = policy.init(cluster)
    except TrimtabError:
        raise
    except Exception as error:
        raise policy_failure(name, error, "in init()") from error
    kinds = [(getattr(array, "dtype", None), getattr(array, "ndim", None)) for array in made or ()]
    if not isinstance(made, Memory) or kinds != [(array.dtype, 1) for array in memory()]:
        raise PolicyError(f"policy {name!r}: init() made {made!r}; expected what trimtab.memory(…) makes")
    return made


def new_state(
    cluster: Cluster,
    requests: Requests,
    options: Options,
    decider: Decider,
    seed: int,
    *,
    host: HostMode = SIMULATED,
    shadow: Policy | None = None,
) -> State:
    """State before the first event. In live runs `requests` also has rows for requests yet to come."""
    policy, order = decider
    dispatchers = options.dispatchers
    policies = [policy] * dispatchers + ([] if shadow is None else [shadow])
    config = _config_array(options, decider, cluster, seed, host, len(requests.tenant_names))
    config["shadows"], config["eviction"] = len(policies) - dispatchers, int(options.eviction)
    given: dict[str, Any] = {"config": config, **_cluster_arrays(cluster), "faults": _fault_array(options)}
    given |= _row_arrays(cluster, requests, options, config, host)
    given |= network_arrays(cluster, requests, config, len(given["work"]))
    given |= _engine_arrays(cluster, options, given)
    if host.completions_from_outside:  # nodes may report what their engines hold
        given["engine_load"] = zeros(ENGINE_LOAD, [cluster.n_nodes])
        given["engine_load"]["load_factor"], given["engine_load"]["batch_max"] = 1.0, cluster.slots
    given |= _seen_arrays(options, given)
    given["contexts"] = contexts = np.zeros(len(policies), CONTEXT)
    contexts["n_nodes"], contexts["dispatcher_idx"] = cluster.n_nodes, np.arange(len(policies)) % dispatchers
    contexts["n_dispatchers"], contexts["reported_s"] = dispatchers, np.inf
    given["changed"] = np.zeros((len(policies), cluster.n_nodes), "i4")
    reads_prefix = any(Need.PREFIX in p.all_needs for p in {id(p): p for p in policies}.values())
    given["tenant_weight"] = _tenant_weight(requests)
    given |= queue_arrays(options, given["pooled"], len(requests.tenant_names))
    given["itl_edge_s"] = ITL_EDGES_S
    given["use_reported_s"] = np.full(cluster.n_nodes, np.inf)
    given["report_noise_frac"] = _numbers(
        () if options.report_noise_frac is None else options.report_noise_frac
    )
    given["prefix_tokens"] = np.zeros(cluster.n_nodes if reads_prefix else 0)
    reads_inputs = any(Need.LINKS in member.all_needs for p in policies for member in members(p))
    has_inputs = requests.chains is not None and reads_inputs
    given["input_gib"] = np.zeros(cluster.n_nodes if has_inputs else 0)
    given["held_of_item"] = np.zeros((dispatchers, len(cluster.item_names)), np.int64)
    given["views"] = _views(cluster, options, given)
    given["memories"] = [memory_of(p, cluster) for p in policies]
    given["order_memories"] = [memory_of(order, cluster) for _ in range(dispatchers)]
    lengths = _lengths(cluster, requests, options, given, host)
    lengths["observers"] = len(policies)
    lengths["passed_over"] = int(config["lanes"][0]) * _looked_at(options, policy)
    lengths["draws"] = max(members(p)[0].draws for p in policies)
    state = allocate(State, lengths, given)
    state.ranking["node_idx"] = -1  # so that the loop detects a policy that writes no node
    if host.rows_reused:
        state.avoid[...] = -1
        state.decision_trace[...] = -1
    if options.queues is not None and options.queues.is_firm is not None:
        state.class_is_firm[: len(options.queues.is_firm)] = options.queues.is_firm
    state.contexts["n_wanted"] = n_wanted(state, state.work)
    state.counts["work"] = 0 if host.completions_from_outside else len(requests)
    return state


def _cluster_arrays(cluster: Cluster) -> dict[str, Any]:
    """The arrays of nodes, classes, models and links."""
    demand, capacity = _resources(cluster)
    return {
        "nodes": _node_array(cluster),
        "hidden": _hidden_array(cluster),
        "fixed_s": _numbers(cluster.fixed_s),
        "unit_s": _numbers(cluster.unit_s),
        "load_s": _numbers(cluster.load_s),
        "rtt_s": _numbers(cluster.rtt_s),
        "item_gib": _numbers(cluster.item_gib),
        "item_is_adapter": cluster.item_is_adapter.astype("u1"),
        "links": _link_array(cluster),
        "demand": demand,
        "capacity": capacity,
        "pooled": pooled(cluster),
    }


def _row_arrays(
    cluster: Cluster, requests: Requests, options: Options, config: np.ndarray, host: HostMode
) -> dict[str, Any]:
    """The arrays of requests, parts and batches. Switches on in `config` the features that they need."""
    marginal_frac, once = options.batch_marginal_frac, options.batch_fixed_once
    splits, batches = options.join_s is not None, marginal_frac is not None
    has_runs = splits or requests.chains is not None
    rows = rows_with_runs(requests, cluster.n_nodes, splits=splits) if has_runs else rows_alone(requests)
    work = rows.requests.work
    if host.completions_from_outside and not host.rows_reused:
        work = work.copy()  # the host writes each request's arrival time
    batch, groups = batch_rows(rows.requests) if batches else (np.zeros(0, BATCH), 0)
    config["runs"], config["batches"], config["groups"] = has_runs, batches, groups
    if has_runs:  # in one event all stages of a run may become ready, or leave and let other requests start
        most = len(work) if host.rows_reused else rows.most
        config["run_margin"] = most * (2 + int(cluster.slots.max()))
        config["margin"] += config["run_margin"]
    n_links = len(_link_array(cluster))
    n_central = options.dispatchers * int(config["lanes"][0]) * int(config["sublanes"][0])
    return {
        "work": work,
        "truth": rows.requests.truth,
        "requests": _request_array(len(work)),
        "queues": _empty_queues(cluster.n_nodes + n_central + n_links + cluster.n_nodes * groups),
        **reuse_arrays(cluster, rows.requests, options, config),
        "runs": rows.runs,
        "groups": np.zeros(len(work), GROUP) if host.rows_reused else rows.groups,  # filled in as runs enter
        "stages": rows.stages,
        "stage_specs": rows.specs,
        "successor_edges": rows.successors,
        "input_edges": rows.inputs,
        "copies": np.zeros(rows.n_copies, COPY),
        **_store_arrays(requests, len(work), options, config),
        "class_in_flight": np.zeros(len(cluster.class_names) if has_runs else 0, np.int64),
        "join_s": _numbers(np.zeros(len(cluster.class_names)) if options.join_s is None else options.join_s),
        "batch": batch,
        "batch_marginal": _numbers(() if marginal_frac is None else marginal_frac),
        "batch_once": _numbers(np.zeros(len(cluster.class_names)) if once is None else once),
    }


ITL_EDGES_S = 1e-4 * 10.0 ** (np.arange(1, 128) / 20.0)  # 20 bins for each power of ten


def _engine_arrays(cluster: Cluster, options: Options, given: dict[str, Any]) -> dict[str, Any]:
    """The arrays of nodes that serve otherwise than one request a slot; empty if there are none."""
    engines, kind = cluster.engines, cluster.type_idx
    if engines is None:
        return {name: np.zeros((0, 1)) for name in ENGINE_TABLES} | {
            "engine_types": np.zeros(0, ENGINE_TYPE),
            "engines": np.zeros(0, ENGINE),
            "sequences": np.zeros(0, SEQUENCE),
            "batch_rows": np.zeros(0, "i4"),
            "pools": np.zeros(0, POOL),
            "pool_entry": np.zeros(0, CACHED),
            "pool_users": np.zeros(0, "i4"),
            "engine_load": np.zeros(0, ENGINE_LOAD),
        }
    given["config"]["engines"], given["config"]["fast_forward"] = 1, options.fast_forward
    of_node = engines.types[kind]
    given["hidden"]["service"] = of_node["service"]
    nodes = zeros(ENGINE, [cluster.n_nodes])
    places = of_node["batch_max"] + 1
    nodes["place"] = np.cumsum(places) - places
    rows = zeros(SEQUENCE, [len(given["work"])])
    rows["first_token_s"], rows["place"] = np.nan, -1
    load = zeros(ENGINE_LOAD, [cluster.n_nodes])
    load["load_factor"] = np.where(of_node["service"] == SLOTS, 1.0, engines.slowdown[kind, 1])
    idle_s = [engines.decode_s(g, 0, 0.0) for g in kind]
    load["step_s"] = np.where(of_node["service"] == LANGUAGE_MODEL, idle_s, 0.0)
    load["kv_tokens"], load["batch_max"] = of_node["kv_tokens"], of_node["batch_max"]
    load["row_s"] = _row_s(engines)[kind]
    return {
        "engine_types": engines.types,
        **{name: _numbers(getattr(engines, name)).reshape(len(engines.types), -1) for name in ENGINE_TABLES},
        "engines": nodes,
        "sequences": rows,
        "batch_rows": np.full(int(places.sum()), -1, "i4"),
        "engine_load": load,
        **_pool_arrays(of_node["kv_tokens"], given),
    }


def _row_s(engines: Engines) -> np.ndarray:
    """Seconds by which a row lengthens an iteration, [types]; 0 = no language model."""
    kinds = enumerate(engines.types["service"])
    return np.array([engines.row_s(g) if kind == LANGUAGE_MODEL else 0.0 for g, kind in kinds])


def _pool_arrays(kv_tokens: np.ndarray, given: dict[str, Any]) -> dict[str, Any]:
    """Room for the blocks of prompts in the memory of each engine; none if no prompt has blocks."""
    block_tokens = float(given["config"]["block_tokens"][0])
    kv_tokens = kv_tokens if block_tokens > 0.0 else kv_tokens[:0]
    capacity = (kv_tokens // max(block_tokens, 1.0)).astype(np.int64) + 1
    pools = np.zeros(len(kv_tokens), POOL)
    pools["newest"] = pools["oldest"] = pools["free"] = -1
    pools["begin"] = np.cumsum(capacity) - capacity
    many = int(capacity.sum())
    return {"pools": pools, "pool_entry": np.zeros(many, CACHED), "pool_users": np.zeros(many, "i4")}


def _store_arrays(
    requests: Requests, n_rows: int, options: Options, config: np.ndarray
) -> dict[str, np.ndarray]:
    """The store of stage results; empty if there is none, or no stage may use it."""
    content_idx = None if requests.chains is None else requests.chains.content_idx
    if options.stage_results_gib == 0.0 or content_idx is None or content_idx.max(initial=-1) < 0:
        return {name: np.zeros(0, kind) for name, kind in (("stage_content", "i4"), ("kept", KEPT))} | {
            "kept_heap": np.zeros(0, "i4")
        }
    config["store_gib"] = options.stage_results_gib
    contents, n, many = np.full(n_rows, -1, np.int32), len(requests), int(content_idx.max()) + 1
    contents[n : n + len(content_idx)] = content_idx
    return {"stage_content": contents, "kept": np.zeros(many, KEPT), "kept_heap": np.zeros(many, "i4")}


def _seen_arrays(options: Options, given: dict[str, Any]) -> dict[str, Any]:
    """The arrays that dispatchers see: the true arrays, or copies that telemetry updates."""
    nodes = given["nodes"]
    true = {
        "resident": np.zeros((len(nodes), len(given["item_gib"])), "u1"),
        "resident_changes": np.zeros(len(nodes), "i8"),
        "used": np.zeros(given["capacity"].shape),
        "link_active": np.zeros(len(given["links"]), "i4"),
    }
    is_stale = options.telemetry_period_s > 0
    seen = {f"seen_{name}": array.copy() if is_stale else array for name, array in true.items()}
    load = given["engine_load"]
    many = options.dispatchers if is_stale else 1
    seen["seen_engine_load"] = np.tile(load, (many, 1)) if is_stale else load.reshape(1, len(load))
    seen["seen"] = np.tile(nodes, (options.dispatchers, 1)) if is_stale else nodes.reshape(1, len(nodes))
    return true | seen


def _seen_load_s(cluster: Cluster, given: dict[str, Any]) -> np.ndarray:
    """Seconds that policies expect of a load, [items, types]: of a store, over an idle network too."""
    network, load_s = cluster.network, given["load_s"]
    if network is None or given["config"]["store_vertex"][0] < 0:
        return load_s
    gib_per_s = network.least_gib_per_s(network.store)
    least = np.full(cluster.n_types, np.inf)
    np.minimum.at(least, cluster.type_idx, gib_per_s[: cluster.n_nodes])
    return load_s + cluster.item_gib[:, None] / least


def _views(cluster: Cluster, options: Options, given: dict[str, Any]) -> list[View]:
    """One view for each dispatcher and for the shadow."""
    shared = {name: given[name] for name in View._fields if name in given}
    shared |= {
        "resident": given["seen_resident"],
        "resident_changes": given["seen_resident_changes"],
        "used": given["seen_used"],
        "link_active": given["seen_link_active"],
        "link_gib_per_s": _numbers(given["links"]["gib_per_s"]),
        "load_s": _seen_load_s(cluster, given),
        "store_vertex": given["config"]["store_vertex"][given["config"]["store_vertex"] >= 0].astype("i4"),
        "usd_per_s": _numbers(cluster.usd_per_s),
        "memory_gib": _numbers(cluster.memory_gib),
        "outages": np.zeros(0, OUTAGE) if options.outages is None else options.outages,
    }
    contexts, seen, loads = given["contexts"], given["seen"], given["seen_engine_load"]
    return [
        View(
            **shared
            | {
                "context": contexts[i : i + 1],
                "nodes": seen[min(i, len(seen) - 1)],
                "engines": loads[min(i, len(loads) - 1)],
                "changed": given["changed"][i],
                "held_of_item": given["held_of_item"][i % options.dispatchers],
            }
        )
        for i in range(len(contexts))
    ]


def _lengths(
    cluster: Cluster, requests: Requests, options: Options, given: dict[str, Any], host: HostMode
) -> dict[str, int]:
    """Lengths of the axes of the arrays that begin as zeros."""
    n, rows, n_views = cluster.n_nodes, len(given["work"]), len(given["seen"])
    config = given["config"]
    is_stale = options.telemetry_period_s > 0
    reports = 2 + int(np.ceil(options.telemetry_delay_s / options.telemetry_period_s)) if is_stale else 0
    n_types = len(given["engine_types"])
    n_slots, n_items, reused = int(cluster.slots.sum()), len(cluster.item_names), rows * host.rows_reused
    return {
        "one": 1,
        "nodes": n,
        "slots": n_slots,
        "items": n_items,
        "all_items": n * n_items,
        "resources": given["used"].shape[1],
        "all_resources": given["used"].size,
        "links": len(given["links"]),
        "tenants": len(requests.tenant_names),
        "tree_queues": len(given["tree"]),
        "tree_rows": rows if len(given["tree"]) else 0,
        "classes": len(cluster.class_names),
        "shares": len(given["pooled"]),
        "event_room": (n_slots + len(given["batch_rows"])) * 2 + 4 * len(given["faults"]) + 1024,
        "started_rows": rows * host.completions_from_outside,
        "reporting_nodes": n * host.completions_from_outside,
        "reused_rows": reused,
        "avoided": AVOIDED,
        "lanes": options.dispatchers * _n_lanes(options, cluster),
        "own_views": n_views if is_stale else 0,
        "reports": reports,
        "report_views": reports * n_views,
        "ranked": MAX_RANKED,
        "run_rows": len(given["stages"]),
        "recent": RECENT if config["runs"][0] else 0,
        "engine_nodes": len(given["engine_load"]),
        "engine_types": n_types,
        "itl_bins": (len(ITL_EDGES_S) + 1) if n_types else 0,
    }
