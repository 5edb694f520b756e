"""Throughput, and its cost in loads, moved bytes, accelerators and money."""

from __future__ import annotations

import numpy as np

from trimtab.metrics.distribution import ratio
from trimtab.metrics.outcome import slo_attained
from trimtab.metrics.run_records import NodeRecords, Records, RequestRecords

SECONDS_PER_HOUR = 3600.0


def efficiency_metrics(records: Records) -> dict[str, float]:
    """Throughput, goodput, makespan, counts of costly events, and costs.

    A node is paid for the whole window, failed or not, unless its type says otherwise.
    """
    requests, nodes = records.requests, records.nodes
    finished = int(np.count_nonzero(requests.finished))
    usd_per_hour = float(np.sum(nodes.usd_per_hour * nodes.paid_frac))
    usd = usd_per_hour * records.window_s / SECONDS_PER_HOUR
    attained = int(np.count_nonzero(slo_attained(requests, records.slo_s)))
    return {
        "throughput_per_s": ratio(finished, records.window_s),
        "goodput_per_s": ratio(attained, records.window_s),
        "makespan_s": makespan_s(requests),
        "model_loads": float(records.model_loads),
        "adapter_loads": float(records.adapter_loads),
        "moved_gib": float(records.bytes_moved_gib),
        "retries": float(records.retries),
        "prefix_hit_frac": ratio(records.cached_tokens, records.prompt_tokens),
        "result_hit_frac": ratio(records.result_hits, records.repeatable),
        "accelerator_s_per_1k": ratio(1000.0 * allocated_accelerator_s(nodes), finished),
        "usd_per_hour": usd_per_hour,
        "usd": usd,
        "usd_per_1k": ratio(1000.0 * usd, finished),
    }


def makespan_s(requests: RequestRecords) -> float:
    """Last finish − first arrival, s; nan when nothing finished."""
    finish_s = requests.finish_s[requests.finished]
    return float(finish_s.max() - requests.arrival_s.min()) if finish_s.size else float("nan")


def allocated_accelerator_s(nodes: NodeRecords) -> float:
    """Accelerator-seconds allocated: an occupied slot holds its share of the node's accelerators."""
    per_slot = nodes.accelerators / np.maximum(nodes.slots, 1)
    return float(np.sum(nodes.allocated_slot_s * per_slot))
