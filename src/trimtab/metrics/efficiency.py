"""Throughput, and its cost in loads, moved bytes, accelerators and money.

Exact time averages per bin, for figures: utilisation of each node, length of the queue.

An interval [from, to) adds a ramp to the running integral: a partial bin where it begins, whole bins after,
the same taken away where it ends. Two sums per event and one cumulative sum over bins give every overlap
exactly, in O(intervals · log bins + nodes · bins).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from trimtab.errors import UsageError
from trimtab.metrics.latency import slo_attained
from trimtab.metrics.run_records import FloatArray, IntArray, NodeRecords, Records, RequestRecords
from trimtab.metrics.statistics import ratio

SECONDS_PER_HOUR = 3600.0


def efficiency_metrics(records: Records) -> dict[str, float]:
    """Throughput, goodput, makespan, counts of costly events, and costs.

    A node is paid for the whole window, failed or not, unless its type says otherwise.
    """
    requests, nodes = records.requests, records.nodes
    finished = int(np.count_nonzero(requests.finished))
    usd_per_hour = float(np.sum(nodes.usd_per_hour * nodes.paid_frac))
    usd = usd_per_hour * records.window_s / SECONDS_PER_HOUR
    attained = int(np.count_nonzero(slo_attained(records)))
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


def utilisation_over_time(
    start_s: FloatArray,
    finish_s: FloatArray,
    node_idx: IntArray,
    slots: npt.NDArray[Any],
    edges_s: FloatArray,
) -> FloatArray:
    """Share of each node's slots in use, averaged over each bin: [nodes, bins], 0..1.

    start_s, finish_s, node_idx [n] are the times that a slot was held and its node (-1: none, left out);
    slots [nodes]; edges_s [bins + 1] increasing. An interval with a nan end is left out: end running
    requests at the horizon. Raises UsageError when edges_s does not increase.
    """
    here = node_idx >= 0
    held_s = _overlap_s(start_s[here], finish_s[here], node_idx[here], len(slots), edges_s)
    frac: FloatArray = held_s / np.multiply.outer(slots, np.diff(edges_s))
    return frac.clip(0.0, 1.0)  # only rounding lies outside, as long as no node holds more than its slots


def queue_length_over_time(arrival_s: FloatArray, start_s: FloatArray, edges_s: FloatArray) -> FloatArray:
    """Requests waiting, averaged over each bin: [bins].

    arrival_s, start_s [n] are when waiting began and ended; edges_s [bins + 1] increasing. A request
    with nan start is left out: end waiting at the horizon. Raises UsageError when edges_s does
    not increase.
    """
    one_queue = np.zeros(len(arrival_s), dtype=np.intp)
    waiting: FloatArray = _overlap_s(arrival_s, start_s, one_queue, 1, edges_s)[0] / np.diff(edges_s)
    return waiting.clip(0.0)  # only rounding lies below


def _overlap_s(
    from_s: FloatArray, to_s: FloatArray, row: IntArray, rows: int, edges_s: FloatArray
) -> FloatArray:
    """Seconds that the intervals [from, to) of each row lie in each bin: [rows, bins]."""
    _check_increasing(edges_s)
    whole = ~(np.isnan(from_s) | np.isnan(to_s))
    row = row[whole]
    begun_s = _ramps_s(from_s[whole], row, rows, edges_s)
    return begun_s - _ramps_s(to_s[whole], row, rows, edges_s)


def _ramps_s(event_s: FloatArray, row: IntArray, rows: int, edges_s: FloatArray) -> FloatArray:
    """Seconds in each bin that lie after each event, summed over a row's events: [rows, bins]."""
    bins = len(edges_s) - 1
    at_s = np.clip(event_s, edges_s[0], edges_s[-1])
    bin_idx = np.minimum(np.searchsorted(edges_s, at_s, side="right") - 1, bins - 1)
    cell = row * bins + bin_idx
    partial_s = np.bincount(cell, weights=edges_s[bin_idx + 1] - at_s, minlength=rows * bins)
    events = np.bincount(cell, minlength=rows * bins).reshape(rows, bins)
    before = np.cumsum(events, axis=1) - events  # events in earlier bins: each adds the whole width
    width_s: FloatArray = np.diff(edges_s)
    return partial_s.reshape(rows, bins) + before * width_s


def _check_increasing(edges_s: FloatArray) -> None:
    if len(edges_s) < 2 or not np.all(np.diff(edges_s) > 0):
        raise UsageError("no bins", field="edges_s", value=edges_s, expected="two or more increasing times")
