"""The metrics by name: unit, definition, formula and direction, for tables, JSON and docs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from trimtab.metrics.metric_formulas import FORMULAS, RESOURCE_FORMULAS

Better: TypeAlias = Literal["lower", "higher"] | None


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of a run, and how to read it."""

    name: str
    unit: str  # "1" for a plain number, "frac" for 0..1
    definition: str  # one line
    better: Better  # None: says something, but neither direction is a merit by itself
    headline: bool = False  # in the table that compare prints by default
    is_timed: bool = False  # by the clock of the machine, so that no two runs agree
    formula: str = ""  # in the symbols of GLOSSARY.md; empty = the definition says it all


_COMPLETION = (
    Metric("completion_mean_s", "s", "Mean completion time of finished requests.", "lower", headline=True),
    Metric("completion_p50_s", "s", "Median completion time.", "lower"),
    Metric("completion_p90_s", "s", "90th percentile of completion time.", "lower"),
    Metric("completion_p99_s", "s", "99th percentile of completion time.", "lower", headline=True),
    Metric("completion_var_s2", "s²", "Population variance of completion time.", "lower", headline=True),
    Metric("completion_cv", "1", "Coefficient of variation of completion time.", "lower"),
)
_QUEUEING = (
    Metric(
        "queueing_mean_s", "s", "Mean queueing time of requests that took a slot.", "lower", headline=True
    ),
    Metric("queueing_p50_s", "s", "Median queueing time.", "lower"),
    Metric("queueing_p90_s", "s", "90th percentile of queueing time.", "lower"),
    Metric("queueing_p99_s", "s", "99th percentile of queueing time.", "lower"),
)
_SLOWDOWN = (
    Metric("slowdown_mean", "1", "Mean bounded slowdown of finished requests.", "lower"),
    Metric("slowdown_p50", "1", "Median bounded slowdown.", "lower"),
    Metric("slowdown_p99", "1", "99th percentile of bounded slowdown.", "lower"),
)
_IMBALANCE = (
    Metric("utilisation_mean_frac", "frac", "Mean over nodes of busy utilisation.", "higher"),
    Metric(
        "utilisation_var",
        "1",
        "Population variance over nodes of busy utilisation.",
        "lower",
        headline=True,
    ),
    Metric("utilisation_cv", "1", "Coefficient of variation over nodes of busy utilisation.", "lower"),
    Metric("utilisation_allocated_mean_frac", "frac", "Mean over nodes of allocated utilisation.", "higher"),
    Metric(
        "utilisation_allocated_var", "1", "Population variance over nodes of allocated utilisation.", "lower"
    ),
    Metric(
        "utilisation_allocated_cv",
        "1",
        "Coefficient of variation over nodes of allocated utilisation.",
        "lower",
    ),
    Metric("idle_frac", "frac", "Idle slots over all slots, in slot-seconds.", "lower", headline=True),
    Metric("idle_node_frac", "frac", "Mean over nodes of the share of slots idle.", "lower"),
)

MODEL_MEMORY = "gpu_memory"
SHORT_NAMES: dict[str, str] = {  # of `trimtab.domain.cluster.RESOURCES`, in names of metrics
    "cpu_cores": "cpu",
    "ram_gib": "ram",
    "io_gib_per_s": "io",
    "network_gib_per_s": "network",
    "gpu_milli": "gpu",
    "gpu_gib": MODEL_MEMORY,
}
_RESOURCE_WORDS = {
    "cpu": "CPU cores",
    "ram": "main memory",
    "io": "I/O bandwidth",
    "network": "network bandwidth",
    "gpu": "GPU shares",
    MODEL_MEMORY: "GPU memory that classes demand, else that models take",
}
RESOURCE_METRIC_NAMES = tuple(_RESOURCE_WORDS)


def _resource_metrics(name: str, words: str) -> tuple[Metric, ...]:
    total, spread, idle = (formula.format(name) for formula in RESOURCE_FORMULAS)
    used = f"Used over total {words}, of all nodes."
    uneven = f"Population variance over nodes of used {words}."
    return (
        Metric(f"utilisation_{name}_frac", "frac", used, None, formula=total),
        Metric(f"utilisation_{name}_var", "1", uneven, "lower", formula=spread),
        Metric(f"idle_{name}_frac", "frac", f"Idle over total {words}, of all nodes.", None, formula=idle),
    )


_RESOURCES = tuple(
    metric for name, words in _RESOURCE_WORDS.items() for metric in _resource_metrics(name, words)
)
_OUTCOME = (
    Metric("finished_frac", "frac", "Share of requests that finished.", "higher"),
    Metric("rejected_frac", "frac", "Share of requests rejected, for any reason.", "lower", headline=True),
    Metric("rejected_fits_no_node_frac", "frac", "Share rejected because no node can serve them.", "lower"),
    Metric("rejected_refused_frac", "frac", "Share rejected because all candidates refused.", "lower"),
    Metric("rejected_queue_full_frac", "frac", "Share rejected because the central queue was full.", "lower"),
    Metric("rejected_policy_frac", "frac", "Share rejected by the policy, for reasons of its own.", "lower"),
    Metric("cancelled_frac", "frac", "Share of requests cancelled at their deadline.", "lower"),
    Metric("lost_frac", "frac", "Share of requests lost to node failures.", "lower"),
    Metric("unfinished_frac", "frac", "Share of requests in flight when the window closed.", "lower"),
)
_TARGETS = (
    Metric(
        "slo_attained_frac",
        "frac",
        "Share of requests that finished within SLO and deadline.",
        "higher",
        headline=True,
    ),
    Metric(
        "deadline_satisfied_frac", "frac", "Of requests with a deadline, the share finished by it.", "higher"
    ),
)
_FAIRNESS = (
    Metric("jain_tenants", "1", "Jain's index over tenants of mean relative speed.", "higher"),
    Metric("jain_nodes", "1", "Jain's index over nodes of busy utilisation.", "higher"),
    Metric(
        "starvation_max_s", "s", "Longest wait of a request during which none of its tenant's began.", "lower"
    ),
)
_EFFICIENCY = (
    Metric("throughput_per_s", "1/s", "Finished requests per second of the window.", "higher"),
    Metric("goodput_per_s", "1/s", "Requests that attained their SLO per second of the window.", "higher"),
    Metric("makespan_s", "s", "Last finish minus first arrival.", "lower"),
    Metric("model_loads", "1", "Number of times a model was loaded on a node.", "lower"),
    Metric("adapter_loads", "1", "Number of times an adapter was loaded on a node.", "lower"),
    Metric("moved_gib", "GiB", "Payload data moved over links to nodes.", "lower"),
    Metric("retries", "1", "Number of attempts repeated after a node failed.", "lower"),
    Metric("prefix_hit_frac", "frac", "Share of prompt tokens found in the prefix cache.", "higher"),
    Metric("result_hit_frac", "frac", "Share of repeatable requests answered by a cached result.", "higher"),
    Metric(
        "accelerator_s_per_1k", "s", "Accelerator-seconds allocated per 1,000 finished requests.", "lower"
    ),
    Metric(
        "usd_per_hour",
        "USD/h",
        "Price of the fleet; a node that is down is paid too, unless its type says otherwise.",
        "lower",
    ),
    Metric("usd", "USD", "That price over the window.", "lower"),
    Metric("usd_per_1k", "USD", "Price of the whole fleet per 1,000 finished requests.", "lower"),
)

_LINKS = (
    Metric("utilisation_links_frac", "frac", "Carried over what all links of the network could carry.", None),
    Metric("utilisation_links_var", "1", "Population variance over links of their utilisation.", "lower"),
    Metric("utilisation_links_max_frac", "frac", "Utilisation of the fullest link of the network.", "lower"),
    Metric("fetched_gib", "GiB", "Models and adapters that nodes fetched over the network.", "lower"),
    Metric("returned_gib", "GiB", "Results that clients received over the network.", None),
)
LINK_METRIC_NAMES = tuple(metric.name for metric in _LINKS)

_CHAINS = (
    Metric("stretch_mean", "1", "Mean of completion over critical path, of finished runs.", "lower"),
    Metric("stretch_p99", "1", "99th percentile of completion over critical path.", "lower"),
    Metric("first_output_mean_s", "s", "Mean time to the first output of a run's last stage.", "lower"),
    Metric("stage_queueing_mean_s", "s", "Mean time from a stage's inputs to its slot.", "lower"),
    Metric("stage_queueing_p99_s", "s", "99th percentile of that.", "lower"),
    Metric("recomputed_s", "s", "Service of stages that ran again because their outputs were lost.", "lower"),
)

_TOKENS = (
    Metric("ttft_mean_s", "s", "Mean time to first token (TTFT).", "lower"),
    Metric("ttft_p50_s", "s", "Median TTFT.", "lower"),
    Metric("ttft_p99_s", "s", "99th percentile of TTFT.", "lower"),
    Metric("tpot_mean_s", "s", "Mean time per output token after the first (TPOT).", "lower"),
    Metric("tpot_p50_s", "s", "Median TPOT.", "lower"),
    Metric("tpot_p99_s", "s", "99th percentile of TPOT.", "lower"),
    Metric("itl_p50_s", "s", "Median time between two tokens of a request (ITL).", "lower"),
    Metric("itl_p99_s", "s", "99th percentile of ITL.", "lower"),
    Metric("kv_peak_frac", "frac", "Mean over engines of the largest use of KV memory.", None),
    Metric(
        "preemptions", "1", "Number of times a request lost its KV memory, to be computed again.", "lower"
    ),
)

_QUEUES = (
    Metric("preempted", "1", "Number of times a request was taken back for a guarantee of a queue.", "lower"),
    Metric(
        "preempted_lost_s", "s", "Slot-seconds that requests had held when they were taken back.", "lower"
    ),
    Metric("queue_short_max_s", "s", "Longest time that a queue with work was below its guarantee.", "lower"),
    Metric("jain_queues", "1", "Jain's index over leaf queues of mean relative speed.", "higher"),
)

TOKEN_HEADLINE = ("ttft_p99_s", "tpot_p99_s")
"""Shown first where engines of language models serve."""

METRICS: dict[str, Metric] = {
    metric.name: replace(metric, formula=FORMULAS.get(metric.name, metric.formula))
    for metric in (
        *_COMPLETION,
        *_QUEUEING,
        *_SLOWDOWN,
        *_IMBALANCE,
        *_RESOURCES,
        *_OUTCOME,
        *_TARGETS,
        *_FAIRNESS,
        *_EFFICIENCY,
        *_LINKS,
        *_CHAINS,
        *_TOKENS,
        *_QUEUES,
    )
}
