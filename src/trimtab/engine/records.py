"""Converts the state of a run to the records that metrics, tables and figures read."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.domain.chains import Chains
from trimtab.domain.cluster import Cluster
from trimtab.domain.policy import Policy, members, name_of
from trimtab.domain.requests import Requests, Status, true_service_on_s
from trimtab.domain.stage_graph import best_seconds, critical_paths_s, latest_inputs
from trimtab.engine.bound_state import python_state
from trimtab.engine.driver import Driver
from trimtab.engine.service import settle_engines
from trimtab.metrics import (
    LinkRecords,
    NodeRecords,
    QueueRecords,
    Records,
    RequestRecords,
    ResourceRecords,
    StageRecords,
    TokenRecords,
    TokenTargets,
)
from trimtab.validation.named_classes import label_of

Floats = NDArray[np.float64]


def records_of(
    driver: Driver,
    cluster: Cluster,
    requests: Requests,
    slo_s: Floats,
    token_slos: TokenTargets | None = None,
) -> Records:
    """Records of a run, simulated or live."""
    counts = driver.state.counts[0]
    rows = _request_records(driver, cluster, requests)
    start_s = float(rows.arrival_s[0])
    end_s = _window_end_s(driver, rows)
    return Records(
        requests=rows,
        nodes=_node_records(driver, cluster, start_s, end_s),
        start_s=start_s,
        end_s=end_s,
        slo_s=slo_s,
        model_loads=int(counts["model_loads"]),
        adapter_loads=int(counts["adapter_loads"]),
        bytes_moved_gib=float(counts["moved_gib"]),
        retries=int(counts["retries"]),
        prompt_tokens=float(counts["prompt_tokens"]),
        cached_tokens=float(counts["cached_tokens"]),
        repeatable=int(counts["repeatable"]),
        result_hits=int(counts["result_hits"]),
        recomputed_s=float(counts["recomputed_s"]),
        stages=None if requests.chains is None else stage_records(driver, cluster, requests.chains),
        tokens=_token_records(driver, cluster, end_s),
        token_slos=token_slos,
        queues=_queue_records(driver, end_s),
        links=_link_records(driver, cluster, end_s),
        resources=_resource_records(driver, cluster, end_s),
        switches=tuple((at_s, _candidate(driver.policy, k)) for at_s, k in driver.switches),
    )


def _queue_records(driver: Driver, end_s: float) -> QueueRecords | None:
    state, queues = driver.state, driver.options.queues
    if queues is None:
        return None
    tree, short = state.tree, state.tree["short_since_s"]
    return QueueRecords(
        paths=queues.tree.paths,
        end=tree["end"],
        leaf_of=state.leaf_of,
        guarantee_frac=(state.tree_guarantee / state.pooled).max(axis=1),
        limit_frac=np.minimum(state.tree_limit / state.pooled, 1.0).min(axis=1),
        share_s=tree["share_s"] + tree["share"] * np.maximum(0.0, end_s - tree["since_s"]),
        short_s=tree["short_s"] + np.where(np.isfinite(short), np.maximum(0.0, end_s - short), 0.0),
        preempted=tree["preempted"],
        lost_s=tree["lost_s"],
    )


def _token_records(driver: Driver, cluster: Cluster, end_s: float) -> TokenRecords | None:
    if cluster.engines is None:
        return None
    state, n = driver.state, driver.n_requests
    settle_engines(python_state(state), end_s)
    sequences, kv_tokens = state.sequences[:n], state.engine_load["kv_tokens"]
    first_s, preempted = sequences["first_token_s"].copy(), sequences["preempted"].copy()
    output = state.truth["output_tokens"][:n]
    if len(state.stages):  # the first token of a disaggregated request is its first stage's
        rows = np.flatnonzero((state.stages["run"] >= 0) & ~np.isnan(state.sequences["first_token_s"]))
        run = state.stages["run"][rows]
        np.fmin.at(first_s, run, state.sequences["first_token_s"][rows])
        np.add.at(preempted, run, state.sequences["preempted"][rows])
    peak = np.where(kv_tokens > 0.0, state.engines["peak"] / np.maximum(kv_tokens, 1.0), np.nan)
    return TokenRecords(
        first_token_s=np.where(output > 0, first_s, np.nan),
        output_tokens=np.where(np.isnan(first_s), 0, output),
        preempted=preempted,
        itl_edge_s=state.itl_edge_s,
        itl_count=state.itl_count,
        kv_peak_frac=peak,
    )


def _candidate(policy: Policy, k: int) -> str:
    candidate = members(policy)[k]
    return label_of(name_of(candidate), candidate)


def _window_end_s(driver: Driver, rows: RequestRecords) -> float:
    """End of the last request; the horizon if it cut the run short; the last event if no request ended."""
    ended_s = rows.ended_s[~np.isnan(rows.ended_s)]
    if len(ended_s) < len(rows.ended_s) and np.isfinite(driver.options.horizon_s):
        return max(float(driver.options.horizon_s), float(rows.arrival_s[0]))
    return float(ended_s.max()) if len(ended_s) else max(driver.now_s, float(rows.arrival_s[0]))


def _request_records(driver: Driver, cluster: Cluster, requests: Requests) -> RequestRecords:
    """Records of requests. They share the state's columns: copies of long runs need too much memory."""
    n = len(requests)  # the rows of stages follow
    rows, work = driver.state.requests[:n], driver.state.work[:n]
    status, service_start_s = rows["status"], rows["service_start_s"]
    is_finished = status == Status.FINISHED
    if cluster.network is not None:  # results may be on their way, and models for requests in slots
        is_finished &= ~np.isnan(rows["finish_s"])
        status = np.where((status == Status.FINISHED) & ~is_finished, Status.TRANSFER, status).astype("u1")
        service_start_s = np.where(np.isinf(service_start_s), np.nan, service_start_s)
    work_s, best_work_s = _work_s(cluster, requests, rows["node_idx"])
    _add_stages(driver, cluster, requests, work_s, best_work_s)
    return RequestRecords(
        arrival_s=work["arrival_s"],
        start_s=rows["start_s"],
        service_start_s=service_start_s,
        finish_s=np.where(is_finished, rows["finish_s"], np.nan),
        ended_s=np.where(is_finished, rows["finish_s"], rows["ended_s"]),
        node_idx=rows["node_idx"],
        status=status,
        reason=rows["reason"],
        tenant_idx=work["tenant_idx"],
        class_idx=work["class_idx"],
        priority=work["priority"],
        deadline_s=work["deadline_s"],
        attempts=1 + rows["retries"],
        work_s=work_s,
        best_work_s=best_work_s,
    )


def _work_s(cluster: Cluster, requests: Requests, node_idx: NDArray[np.int32]) -> tuple[Floats, Floats]:
    """True service seconds on the serving node (nan = none) and on the best type, [requests] each."""
    type_idx = np.where(node_idx >= 0, cluster.type_idx[node_idx], -1)
    work_s, best_s = np.full(len(node_idx), np.nan), np.full(len(node_idx), np.inf)
    for g in range(cluster.n_types):
        served_s = true_service_on_s(cluster, requests, g)
        np.copyto(work_s, served_s, where=type_idx == g)
        np.minimum(best_s, served_s, out=best_s)
    return work_s, best_s


def _add_stages(
    driver: Driver, cluster: Cluster, requests: Requests, work_s: Floats, best_work_s: Floats
) -> None:
    """Set the work of runs, in place: the sum of their finished stages, each on its own node.

    The best work of a run of a chain is its critical path on the best types.
    """
    stages = driver.state.stages
    if len(stages) == 0:
        return
    n, rows = len(requests), driver.state.requests
    is_run = driver.state.runs["started"] == 1
    done = np.flatnonzero((stages["run"] >= 0) & (rows["status"] == Status.FINISHED))
    served = Requests(driver.state.work[done], driver.state.truth[done])
    stage_s, _ = _work_s(cluster, served, rows["node_idx"][done])
    total_s = np.bincount(stages["run"][done], np.nan_to_num(stage_s), n)
    work_s[is_run] = np.where(total_s[is_run] > 0.0, total_s[is_run], np.nan)
    if requests.chains is not None:
        paths_s = critical_paths_s(cluster, requests.chains)
        best_work_s[requests.chains.template_idx >= 0] = paths_s


def stage_records(driver: Driver, cluster: Cluster, chains: Chains) -> StageRecords:
    """Records of the stages of runs. Parts of split requests have none."""
    first = len(driver.state.runs)
    rows = slice(first, first + len(chains.work))
    state, templates = driver.state, chains.templates
    requests, stages = state.requests[rows], state.stages[rows]
    is_over = requests["status"] == Status.FINISHED
    arrived = requests["status"] != Status.PENDING
    names = [
        f"{chain}.{stage}"
        for k, chain in enumerate(templates.template_names)
        for stage in templates.stage_names[templates.first[k] : templates.first[k + 1]]
    ]
    finish_s = np.where(is_over, requests["finish_s"], np.nan)
    return StageRecords(
        names=tuple(names),
        is_last=templates.stages["successor_first"] == templates.stages["successor_end"],
        stage_idx=state.groups["spec"][stages["group"]] - 1,
        run_idx=stages["run"],
        ready_s=np.where(arrived, state.work["arrival_s"][rows], np.nan),
        start_s=requests["start_s"],
        service_start_s=requests["service_start_s"],
        finish_s=finish_s,
        node_idx=requests["node_idx"],
        moved_gib=stages["moving_gib"],
        best_work_s=best_seconds(cluster, chains),
        waited_for=latest_inputs(chains, finish_s),
    )


def _node_records(driver: Driver, cluster: Cluster, start_s: float, end_s: float) -> NodeRecords:
    hidden, nodes, kind = driver.state.hidden, driver.state.nodes, cluster.type_idx
    allocated_s, busy_s = _running_slot_s(driver, end_s)
    up_s = np.clip(end_s - start_s - _down_s(hidden, nodes["up"] == 1, start_s, end_s), 0.0, None)
    if cluster.engines is not None:
        more_s = _engine_slot_s(driver, end_s)
        allocated_s, busy_s = allocated_s + more_s, busy_s + more_s
    still_gib_s = hidden["memory_used_gib"] * np.maximum(0.0, end_s - hidden["memory_since_s"])
    return NodeRecords(
        slots=cluster.slots,
        type_idx=kind,
        accelerators=cluster.accelerators[kind],
        usd_per_hour=cluster.usd_per_hour[kind],
        memory_gib=cluster.memory_gib[kind],
        memory_used_gib_s=hidden["memory_gib_s"] + still_gib_s,
        allocated_slot_s=hidden["allocated_slot_s"] + allocated_s,
        busy_slot_s=hidden["busy_slot_s"] + busy_s,
        up_s=up_s,
        paid_frac=_paid_frac(cluster, up_s, end_s - start_s),
    )


def _paid_frac(cluster: Cluster, up_s: Floats, window_s: float) -> Floats:
    if cluster.is_paid_down is None or window_s == 0.0:
        return np.ones(cluster.n_nodes)
    frac: Floats = np.where(cluster.is_paid_down[cluster.type_idx], 1.0, up_s / window_s)
    return frac


def _down_s(hidden: Any, is_up: NDArray[np.bool_], start_s: float, end_s: float) -> Floats:
    """Seconds of the window that each node was down, [nodes].

    The state holds the sum of all outages and the start of the last one. If the last outage began within the
    window, all earlier outages count too. If it began and ended before the window, the outages can't reach
    further than its start plus the sum. So the result is exact except for nodes that failed more than once,
    at least once of these before the first arrival. For those nodes it may be too large, never too small.
    """
    since_s, past_s = hidden["down_since_s"], hidden["down_s"]
    began_before = since_s < start_s
    running_s = np.where(is_up, 0.0, np.maximum(0.0, end_s - np.maximum(since_s, start_s)))
    latest_s = np.where(began_before & is_up, np.clip(since_s + past_s - start_s, 0.0, past_s), past_s)
    down_s: Floats = running_s + np.where(began_before & ~is_up, 0.0, latest_s)
    return down_s


def _link_records(driver: Driver, cluster: Cluster, end_s: float) -> LinkRecords | None:
    """What each link carried, with what the flows under way have moved by the end of the window."""
    network, state = cluster.network, driver.state
    if network is None:
        return None
    carried_gib = state.net_links["carried_gib"].copy()
    moving = state.flow_heap[: int(state.counts["n_moving"][0])]
    flows = state.flows[moving]
    left_gib = flows["left_gib"] - flows["gib_per_s"] * np.maximum(0.0, end_s - flows["since_s"])
    moved_gib = flows["gib"] - np.maximum(0.0, left_gib)
    first = moving.astype(np.int64) * int(state.config["route_max"][0])
    for k in range(int(flows["links"].max(initial=0))):
        has = np.flatnonzero(flows["links"] > k)
        np.add.at(carried_gib, state.flow_link[first[has] + k], moved_gib[has])
    return LinkRecords(
        names=network.link_names,
        gib_per_s=network.gib_per_s,
        carried_gib=carried_gib,
        models_gib=float(state.counts["loaded_gib"][0]),
        results_gib=float(state.counts["returned_gib"][0]),
    )


def _resource_records(driver: Driver, cluster: Cluster, end_s: float) -> ResourceRecords:
    state = driver.state
    used_s = state.used_s.copy()
    running, since_s = _running(driver)
    taken = state.demand[state.work["class_idx"][running]]
    np.add.at(used_s, state.requests["node_idx"][running], taken * np.maximum(0.0, end_s - since_s)[:, None])
    return ResourceRecords(cluster.resource_names, state.capacity, used_s)


def _running(driver: Driver) -> tuple[NDArray[np.int64], Floats]:
    """Rows of the requests that hold a slot of a node that is up, and since when, [running] each."""
    rows = driver.state.requests
    running = np.flatnonzero((rows["status"] == Status.RUNNING) & (rows["slot"] >= 0))  # others share one
    running = running[driver.state.nodes["up"][rows["node_idx"][running]] == 1]
    slot = driver.state.hidden["first_slot"][rows["node_idx"][running]] + rows["slot"][running]
    return running, driver.state.slots["since_s"][slot]


def _engine_slot_s(driver: Driver, end_s: float) -> Floats:
    """Slot-seconds of engines at work at the end of the window that are not counted yet, [nodes]."""
    state = driver.state
    at_work = (state.nodes["running"] > 0) & (state.hidden["service"] > 0)
    since_s = np.where(at_work, state.engines["begun_s"], end_s)
    slot_s: Floats = np.maximum(0.0, end_s - since_s) * state.nodes["slots"]
    return slot_s


def _running_slot_s(driver: Driver, end_s: float) -> tuple[Floats, Floats]:
    """Slot-seconds, allocated and busy, of requests that still run at the end of the window, [nodes] each."""
    at, since_s = _running(driver)
    running, n = driver.state.requests[at], len(driver.state.nodes)
    busy_s = np.maximum(0.0, end_s - np.maximum(since_s, running["service_start_s"]))
    allocated_s = np.maximum(0.0, end_s - since_s)
    per_node = [np.zeros(n), np.zeros(n)]
    for total_s, each_s in zip(per_node, (allocated_s, busy_s), strict=True):
        np.add.at(total_s, running["node_idx"], each_s)
    return per_node[0], per_node[1]
