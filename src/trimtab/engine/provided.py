"""The needs of policies that the simulator meets: by the scenario, and by the loop itself."""

from __future__ import annotations

from typing import Final

import numpy as np

from trimtab.domain.cluster import Cluster
from trimtab.domain.engines import LANGUAGE_MODEL, SHARED, SLOTS
from trimtab.domain.needs import Degraded, Host, Need
from trimtab.domain.options import Options
from trimtab.domain.policy import Decider
from trimtab.domain.requests import Requests
from trimtab.domain.view import UNLIMITED

SIMULATOR: Final = Host(
    "simulator",
    {
        Need.RESOURCES: "`resources` of node types and `demand` of classes",
        Need.REPORTED_LOAD: "`resources` of node types",
        Need.STALE_REPORTS: "`serving.telemetry.period_s` and several `serving.dispatchers`",
        Need.ZONES: "`cluster.rtt_s` between zones, or delays of `cluster.network`",
        Need.LINKS: "`nic_gib_per_s` of nodes, `ingress_gib_per_s` of zones or `cluster.network`, and "
        "`workload.payload_gib`",
        Need.RESIDENCY: "`models` or `adapters` with `load_s`",
        Need.PLACEMENT: "`models` or `adapters` with `load_s`",
        Need.LOADING_AHEAD: "`models` with `load_s`",
        Need.PRICES: "`usd_per_hour` of node types",
        Need.PREFIX: "`serving.prefix_cache.blocks`, or node types with `service: {kind: llm}`, and prompts",
        Need.TOKENS: "node types with `service: {kind: llm}`, and a workload with token counts",
        Need.ENGINE_LOAD: "node types with `service: {kind: llm}`",
        Need.DEADLINES: "`workload.deadline`",
        Need.PRIORITIES: "`workload.priorities`",
        Need.VIRTUAL_COUNTERS: "`workload.tenants`, several",
        Need.DOMINANT_SHARES: "`resources` of node types and `demand` of classes",
        Need.SHARES_HELD: "`workload.tenants`, several",
        Need.QUEUES: "`queues`",
        Need.FULL_SPEED: (
            "node types that serve a request a slot: `service: {kind: llm}` and `kind: table` serve each "
            "slower the more there are, so a policy that packs fills one node while others idle"
        ),
        Need.HOLDING: "",
        Need.CENTRAL_QUEUE: "`queue_max` of nodes",
        Need.HELD_COMPARISON: "",
        Need.ROLLOUT: "",
        Need.SPLITTING: "`split` of classes",
        Need.BATCHING: "`batch` of classes",
        Need.CHAINS: "`workload.chains`",
        Need.RESULT_CACHE: "`serving.result_cache.entries`",
    },
)
LIVE_RUN: Final = Host("live run", SIMULATOR.provides)


def provided_by(cluster: Cluster, requests: Requests, options: Options) -> frozenset[Need]:
    """The needs that these inputs meet."""
    work, marginal = requests.work, options.batch_marginal_frac
    has_demand = bool(np.any(cluster.demand)) and bool(cluster.resource_names)
    is_used_by_others = options.faults is not None and bool(options.faults["resource"].any())
    chains = requests.chains
    has_pools = requests.prefixes is not None and cluster.engines is not None
    payload_gib = work["payload_gib"].any() or (chains is not None and chains.output_gib.any())
    network = cluster.network
    has_store = network is not None and network.store >= 0
    of_nodes = (cluster.nic_gib_per_s, cluster.zone_gib_per_s)
    has_links = network is not None or any(np.isfinite(gib_per_s).any() for gib_per_s in of_nodes)
    has_loads = has_store or bool(np.any(cluster.load_s))
    has_models = cluster.engines is not None and (cluster.engines.types["service"] == LANGUAGE_MODEL).any()
    met = {
        Need.RESOURCES: has_demand or is_used_by_others,
        Need.REPORTED_LOAD: bool(cluster.resource_names),
        Need.STALE_REPORTS: options.telemetry_period_s > 0.0 and options.dispatchers > 1,
        Need.ZONES: np.any(cluster.rtt_s),
        Need.LINKS: has_links and (has_store or bool(payload_gib)),
        Need.RESIDENCY: has_loads,
        Need.PLACEMENT: has_loads,
        Need.LOADING_AHEAD: has_loads,
        Need.PRICES: np.any(cluster.usd_per_hour),
        Need.PREFIX: options.prefix_blocks > 0 or has_pools,
        Need.TOKENS: work["input_tokens"].any(),
        Need.ENGINE_LOAD: has_models,
        Need.DEADLINES: np.isfinite(work["deadline_s"]).any(),
        Need.PRIORITIES: np.ptp(work["priority"]) > 0 if len(work) else False,
        Need.VIRTUAL_COUNTERS: len(requests.tenant_names) > 1,
        Need.DOMINANT_SHARES: has_demand,
        Need.SHARES_HELD: len(requests.tenant_names) > 1,
        Need.QUEUES: options.queues is not None,
        Need.FULL_SPEED: _is_full_speed(cluster),
        Need.CENTRAL_QUEUE: np.any(cluster.queue_max < UNLIMITED),
        Need.CHAINS: chains is not None,
        Need.SPLITTING: options.join_s is not None,
        Need.BATCHING: marginal is not None and np.any(marginal >= 0.0),
        Need.RESULT_CACHE: options.results_max > 0,
    }
    return SIMULATOR.always() | {need for need, is_met in met.items() if is_met}


def _is_full_speed(cluster: Cluster) -> bool:
    """Whether all nodes serve as many requests as they have slots, each as fast as one alone."""
    if cluster.engines is None:
        return True
    kinds = cluster.engines.types[cluster.type_idx]
    served = np.where(kinds["service"] == SHARED, np.minimum(cluster.slots, kinds["batch_max"]), 1)
    slowdown = cluster.engines.slowdown[cluster.type_idx]
    at_slots = np.take_along_axis(slowdown, served[:, None], axis=1)[:, 0]
    is_shared_well = (kinds["service"] == SHARED) & (at_slots <= slowdown[:, 1])
    return bool((is_shared_well | (kinds["service"] == SLOTS)).all())


def degraded(
    decider: Decider, cluster: Cluster, requests: Requests, options: Options, host: Host = SIMULATOR
) -> tuple[Degraded, ...]:
    """The effects of unmet needs of a policy. Raises UsageError for a need that it can't do without."""
    return decider.degraded(host, provided_by(cluster, requests, options))
