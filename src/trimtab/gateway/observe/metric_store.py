"""The values of all metrics: plain numbers in plain containers.

A row is a list of numbers. Its writer keeps a reference to the row, so that an event needs no look-up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from trimtab.gateway.nodes.node_resources import ResourceUse
from trimtab.gateway.observe.window import SECONDS_KEPT, Second
from trimtab.gateway.stalled_streams import GAP_BOUNDS_S
from trimtab.live.metric_family import Family, Row, Table, counter, gauge, histogram
from trimtab.metrics.definitions import METRICS, RESOURCE_METRIC_NAMES

BALANCE: Final = (
    "utilisation_allocated_mean_frac",
    "utilisation_allocated_var",
    "utilisation_allocated_cv",
    "idle_frac",
    "idle_node_frac",
    "completion_mean_s",
    "completion_var_s2",
    "queueing_mean_s",
    "rejected_frac",
    *(
        figure.format(name)
        for name in RESOURCE_METRIC_NAMES
        for figure in ("utilisation_{}_frac", "utilisation_{}_var", "idle_{}_frac")
    ),
)
"""Metrics of runs that the gateway derives from the last minute, by the same names."""

BALANCE_FAMILIES: Final = {name: "trimtab_" + re.sub(r"_s(2?)$", r"_seconds\1", name) for name in BALANCE}
"""Their families: Prometheus wants units without abbreviation."""


def explained(name: str) -> str:
    """Definition and formula of a metric."""
    return f"{METRICS[name].definition} {METRICS[name].formula}."


ERROR_BOUNDS: Final = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0)

_ALL = (
    counter(
        "trimtab_requests_total",
        "Requests that ended, by how; code_class is the status' first digit, 0xx = none was sent.",
        "model",
        "kind",
        "outcome",
        "code_class",
    ),
    histogram(
        "trimtab_request_duration_seconds",
        "From the whole request to the last byte of its answer; refused ones left out.",
        "model",
        "kind",
    ),
    histogram(
        "trimtab_time_to_first_byte_seconds",
        "From the whole request to the first body byte of its answer.",
        "model",
        "kind",
    ),
    histogram(
        "trimtab_queue_seconds",
        "From the whole request to its first node.",
        "model",
        "kind",
    ),
    histogram(
        "trimtab_inter_token_latency_seconds",
        "Between chunks of a stream; those that came together count with the mean of their answer's rest.",
        "model",
        "kind",
        bounds=GAP_BOUNDS_S,
    ),
    gauge("trimtab_queue_length", "Requests held in the central queue."),
    gauge("trimtab_model_queue_length", "Requests held in the central queue, by model.", "model"),
    gauge("trimtab_in_flight", "Attempts under way on a node.", "node"),
    gauge("trimtab_node_capacity", "Requests that a node takes at once.", "node"),
    gauge("trimtab_node_up", "1 = gets work: up or suspect; 0 = not.", "node"),
    counter("trimtab_node_served_total", "Answers that a node gave whole.", "node"),
    counter("trimtab_node_failed_total", "Attempts that a node lost.", "node"),
    gauge(
        "trimtab_node_reported",
        "What a node says of itself.",
        "node",
        "figure",
    ),
    gauge(
        "trimtab_node_resource_capacity",
        "Capacity of a node, declared or reported; the resource's name has the unit.",
        "node",
        "resource",
    ),
    gauge(
        "trimtab_node_resource_used",
        "Of the capacity, in use by this gateway's requests and by others, as policies see it.",
        "node",
        "resource",
    ),
    gauge("trimtab_node_report_age_seconds", "Age of the last report of a node.", "node", "source"),
    gauge("trimtab_node_round_trip_seconds", "Shortest of the last health checks of a node.", "node"),
    gauge(
        "trimtab_node_link_gib_per_second",
        "Bandwidth of the link to a node, declared or measured on large bodies.",
        "node",
    ),
    gauge("trimtab_node_foreign_requests", "Requests that others sent to a node, as it reports.", "node"),
    gauge("trimtab_node_usd_per_hour", "Price of a node.", "node"),
    gauge(
        "trimtab_class_demand",
        "What one request of a class takes of a resource, declared or learned.",
        "class",
        "resource",
    ),
    counter(
        "trimtab_loads_total",
        "Calls that load or unload a model or adapter, by outcome: done, failed, timeout, lost.",
        "node",
        "action",
        "outcome",
    ),
    gauge(
        "trimtab_item_load_seconds",
        "Learned time to load a model or adapter on nodes of a type.",
        "item",
        "type",
    ),
    gauge(
        "trimtab_node_item_resident",
        "1 = the node is known to hold the model or adapter.",
        "node",
        "item",
    ),
    gauge(
        "trimtab_node_utilisation_ratio", "Slot-seconds in use ÷ slot-seconds, over the last minute.", "node"
    ),
    gauge(
        "trimtab_node_busy_ratio",
        "Share of the last minute with work in flight.",
        "node",
    ),
    *(
        gauge(shown, f"{name}: {explained(name)} Over the last minute.")
        for name, shown in BALANCE_FAMILIES.items()
    ),
    counter("trimtab_attempts_lost_total", "Attempts that were lost, by cause.", "cause"),
    counter("trimtab_retries_total", "Further attempts, by the cause that lost the one before.", "cause"),
    counter("trimtab_hedges_total", "Second attempts beside a first that still ran."),
    counter("trimtab_refusals_total", "Requests answered without a node, by code.", "code"),
    counter("trimtab_tokens_total", "Tokens that backends reported.", "tenant", "direction"),
    counter(
        "trimtab_uncounted_answers_total",
        "Answers whose tokens are not known: coding (not readable), not_reported, broken_off.",
        "node",
        "reason",
    ),
    counter("trimtab_tenant_requests_total", "Requests that ended, by tenant.", "tenant"),
    counter("trimtab_tenant_failed_total", "Failed requests of a private tenant, with noise.", "tenant"),
    counter("trimtab_tenant_service_seconds_total", "Service of a private tenant, with noise.", "tenant"),
    gauge("trimtab_tenant_epsilon", "What today's figures of a private tenant have cost in ε.", "tenant"),
    gauge("trimtab_tenant_queue_held", "Requests of a queue of tenants that wait.", "queue"),
    gauge("trimtab_tenant_queue_at_nodes", "Requests of a queue of tenants at nodes.", "queue"),
    gauge("trimtab_tenant_queue_share_ratio", "Dominant share of what all nodes have, of these.", "queue"),
    gauge("trimtab_tenant_queue_guarantee_ratio", "The share that is guaranteed to it.", "queue"),
    gauge("trimtab_tenant_queue_limit_ratio", "The share that it is limited to.", "queue"),
    counter(
        "trimtab_tenant_queue_preempted_total",
        "Requests of a queue of tenants that were taken back from nodes for the guarantees of others.",
        "queue",
    ),
    counter("trimtab_response_bytes_total", "Body bytes sent to clients."),
    counter("trimtab_stream_chunks_total", "Chunks of streams sent to clients."),
    histogram(
        "trimtab_prediction_error_ratio",
        "|actual - predicted| ÷ actual service time, of whole answers.",
        "class",
        bounds=ERROR_BOUNDS,
    ),
    counter("trimtab_predicted_seconds_total", "Predicted service time of whole answers.", "class"),
    counter("trimtab_actual_seconds_total", "Actual service time of whole answers.", "class"),
    counter("trimtab_policy_failures_total", "Decisions that fell back to least connections.", "policy"),
    counter(
        "trimtab_plans_total",
        "Plans by what came of them (made, late, raised, invalid), for the policy in charge or its shadow.",
        "role",
        "outcome",
    ),
    counter("trimtab_shadow_decisions_total", "Decisions that the shadow policy made too."),
    counter("trimtab_shadow_disagreements_total", "Of these, those for another node than the live one."),
    counter(
        "trimtab_result_cache_requests_total",
        "Deterministic requests of routes with a cache, by whether it had the answer.",
        "result",
    ),
    gauge("trimtab_result_cache_entries", "Answers in the result cache."),
    gauge("trimtab_result_cache_bytes", "Memory of the result cache."),
    counter("trimtab_recorder_dropped_total", "Events that the recorder could not write."),
    gauge("trimtab_jobs", "Long jobs, by state.", "state"),
    gauge("trimtab_build_info", "Always 1; the labels say what runs.", "version", "python"),
)

FAMILIES: Final[Mapping[str, Family]] = {family.name: family for family in _ALL}


Use = list[float]  # per node: used slot-seconds, seconds with requests in flight, available slot-seconds

ResourceSums = list[float]  # per node and resource: sums of what is used, and of what there is

SAMPLE_S: Final = 5  # between two samples of resources
SPAN_S: Final = 10  # length of the spans of node use
SPANS_KEPT: Final = 6


@dataclass(slots=True)
class MetricStore:
    """Rows by metric family, the latest seconds, and the use of nodes in the last minute."""

    tables: dict[str, Table] = field(default_factory=dict)
    seconds: dict[int, Second] = field(default_factory=dict)  # by second of the clock
    use: dict[int, dict[str, Use]] = field(default_factory=dict)  # by SPAN_S of the clock, then by node

    resources: dict[int, dict[tuple[str, str], ResourceSums]] = field(default_factory=dict)  # as `use`

    def sample(self, span: int, uses: Iterable[ResourceUse]) -> None:
        """Add a sample of the nodes' resources."""
        sums = self.resources.setdefault(span, {})
        for one in uses:
            row = sums.setdefault((one.resource, one.node), [0.0, 0.0])
            row[0] += one.used
            row[1] += one.capacity

    def table(self, name: str) -> Table:
        """The rows of a metric family, by the values of their labels."""
        if name not in FAMILIES:
            raise KeyError(name)
        return self.tables.setdefault(name, {})

    def row(self, name: str, *labels: str) -> Row:
        """The row with these labels; a new one is all zeros."""
        table = self.table(name)
        found = table.get(labels)
        if found is None:
            found = table[labels] = [0.0] * FAMILIES[name].width
        return found

    def set(self, name: str, value: float, *labels: str) -> None:
        """Set a gauge, or a counter that another part maintains."""
        self.row(name, *labels)[0] = value

    def forget(self, now_s: float) -> None:
        """Drop old seconds and spans."""
        for at in [at for at in self.seconds if at <= now_s - SECONDS_KEPT]:
            del self.seconds[at]
        oldest = now_s // SPAN_S - SPANS_KEPT
        for at in [at for at in self.use if at <= oldest]:
            del self.use[at]
        for at in [at for at in self.resources if at <= oldest]:
            del self.resources[at]
