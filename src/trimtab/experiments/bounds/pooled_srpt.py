"""B2: the pooled machine under shortest remaining processing time, a bound that survives preemption.

Idea: for any weights s_g > 0 give request r the work w_r = min_g p_rg s_g and pool all slots into one machine
of speed Σ_g m_g s_g. Serving r on g uses at least w_r pooled units, so that the pooled preemptive machine
mimics any schedule interval by interval and finishes nothing later. There SRPT is optimal.
Any k requests: SRPT has completed the most requests at every moment (Schrage), so the j-th of any k
completions is no earlier than SRPT's j-th; their arrivals sum to at most the k latest ones. Hence the k
requests take at least Σ of the k first SRPT completions − Σ of the k latest arrivals.

Source: Schrage, Operations Research 16(3), 1968 (SRPT is optimal); Eastman, Even and Isaacs, Management
Science 11(2), 1964 (one fast machine in place of many).
Deviations: weights for unrelated nodes. Three are tried: equal, by mean speed, and those that make the pooled
work of all requests the largest share of the pool, by a multiplicative-weights climb (the dual of the fluid
capacity programme; it is what counts near overload).
Cost: O(requests · log requests) a candidate.
"""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np

from trimtab.compiled.kernel import kernel
from trimtab.experiments.bounds.instance import FloatArray, Instance

BALANCING_ROUNDS = 40


def pooled_totals_s(instance: Instance) -> FloatArray:
    """Least total completion of any k requests, k = 0 … requests, by the best candidate weights for each."""
    release_s = instance.release_s.min(axis=1)
    order = np.argsort(release_s, kind="stable")
    bounds = []
    for weights in candidate_weights(instance):
        work_s = pooled_work_s(instance, weights)
        finish_s = srpt_completions_s(release_s[order], work_s[order])
        bounds.append(_subset_totals_s(finish_s, instance.arrival_s))
    best_s: FloatArray = np.max(bounds, axis=0)
    return best_s


def _subset_totals_s(finish_s: FloatArray, arrival_s: FloatArray) -> FloatArray:
    """Totals for k = 0 … requests; both arrays ascend, so the latest arrivals come last."""
    return np.append(0.0, np.cumsum(finish_s) - np.cumsum(arrival_s[::-1]))


def pooled_work_s(instance: Instance, weights: FloatArray) -> FloatArray:
    """Seconds that each request takes when the whole pool serves it, shape [requests]."""
    units: FloatArray = np.min(instance.service_s * weights, axis=1)
    return units / float((instance.slots * weights).sum())


def candidate_weights(instance: Instance) -> list[FloatArray]:
    """Pooled units per slot-second, shape [groups]: equal, by mean speed, and balanced."""
    equal = np.ones(instance.slots.size)
    served = np.isfinite(instance.service_s)
    mean_service_s = np.mean(instance.service_s, axis=0, where=served)
    if instance.slots.size == 1 or not (mean_service_s > 0).all():
        return [equal]
    by_speed = mean_service_s.min() / mean_service_s
    return [equal, by_speed, balanced_weights(instance, by_speed)]


def balanced_weights(instance: Instance, start: FloatArray) -> FloatArray:
    """Raise the weight of groups with more than their share of the work while the bound improves."""
    best, best_s, weights = start, 0.0, start
    for step in range(BALANCING_ROUNDS):
        pooled_s = float(pooled_work_s(instance, weights).sum())
        if pooled_s > best_s:
            best, best_s = weights, pooled_s
        load = _chosen_load_s(instance, weights)
        weights = weights * (load / load.max() + 1e-3) ** (1 / (step + 2))
    return best


def _chosen_load_s(instance: Instance, weights: FloatArray) -> FloatArray:
    """Seconds of service per slot of each group when every request goes where its pooled work is least."""
    group = np.argmin(instance.service_s * weights, axis=1)
    service_s = np.take_along_axis(instance.service_s, group[:, None], axis=1)[:, 0]
    load_s = np.bincount(group, weights=service_s, minlength=weights.size)
    return np.asarray(load_s / instance.slots, dtype=np.float64)


@kernel
def srpt_completions_s(release_s: Any, work_s: Any) -> Any:
    """Completion instants, ascending, of one preemptive machine under SRPT; `release_s` [n] ascends."""
    requests = release_s.size
    finish_s = np.empty(requests)
    remaining_s = [work_s[0]]  # a heap: which request it is does not matter
    now_s, arrived, done = release_s[0], 1, 0
    while done < requests:
        next_s = release_s[arrived] if arrived < requests else np.inf
        if len(remaining_s) == 0:
            now_s = next_s
            heapq.heappush(remaining_s, work_s[arrived])
            arrived += 1
        elif now_s + remaining_s[0] <= next_s:
            now_s += heapq.heappop(remaining_s)
            finish_s[done] = now_s
            done += 1
        else:
            heapq.heapreplace(remaining_s, remaining_s[0] - (next_s - now_s))
            now_s = next_s
            heapq.heappush(remaining_s, work_s[arrived])
            arrived += 1
    return finish_s
