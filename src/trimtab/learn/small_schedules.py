"""Small scheduling instances, drawn as the family of generated clusters is, and their optimal schedules.

Requests that wait, slots that become free at known times, service that depends on both, and models that a
slot has to load before the first request that needs them. A schedule gives each slot a sequence of requests;
its cost is the sum of their completions. Without loads the optimum is a matching (W. A. Horn: "Minimizing
average flow time with parallel machines", Operations Research 21(3), 1973). With them it is found by dynamic
programming over sets of requests (Michael Held, Richard Karp: "A dynamic programming approach to sequencing
problems", Journal of SIAM 10(1), 1962): what a set takes on a slot does not depend on its order, so

    cost(set) = min over its last request of cost(set without it) + seconds(set),

and the slots divide all requests among them in the same way, set by set.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np

from trimtab.compiled.elementwise import elementwise
from trimtab.compiled.kernel import kernel
from trimtab.domain.cluster import Floats, Ints
from trimtab.policies.shared.plan_features import Window, window

MOST: Final = 10  # requests of an instance
_BASE_S: Final = 10.0  # median service


class Schedule(NamedTuple):
    """The choices of a schedule in the order of their starts, and the sum of completions."""

    requests: Ints  # [requests]
    slots: Ints  # [requests]
    total_s: float


def drawn_window(draw: np.random.Generator, n: int, m: int) -> Window:
    """An instance of n requests and m slots of a node each."""
    n_types, n_classes = int(draw.integers(1, 5)), int(draw.integers(1, 5))
    fast, apart = draw.normal(0.0, 0.35, n_types), 0.3 * draw.random()
    logs = fast + draw.normal(0.0, apart, (n_classes, n_types))
    speed = _exp(logs)
    base_s = _BASE_S * _exp(draw.normal(0.0, 0.7, n_classes))
    cv, share = draw.uniform(0.1, 1.2), 1.0 / (1.0 + np.arange(n_classes))
    class_idx = draw.choice(n_classes, n, p=share / share.sum())
    spread = math.sqrt(math.log1p(cv * cv))
    size = _exp(draw.normal(-spread * spread / 2.0, spread, n))
    type_idx = draw.integers(0, n_types, m)
    service_s = (base_s[class_idx] * size)[:, None] / speed[class_idx][:, type_idx]
    best_s = (base_s[class_idx] * size) / speed.max(axis=1)[class_idx]
    load_s, item = np.zeros((n, m)), np.full(n, -1)
    if draw.random() < 0.85:  # as of generated clusters
        models = int(draw.integers(1, 6))
        item = class_idx * models + draw.integers(0, models, n)
        of_item_s = base_s.repeat(models) * _exp(draw.normal(0.0, 0.8, n_classes * models))
        lacks = draw.random((n_classes * models, m)) < draw.uniform(0.2, 0.9)
        load_s = of_item_s[item][:, None] * lacks[item]
    usual_s = float(best_s.mean())
    free_s = np.where(draw.random(m) < 0.4, 0.0, draw.exponential(usual_s, m))
    waited_s = np.sort(draw.exponential(2.0 * usual_s, n))[::-1]  # in order of arrival
    return window(service_s, load_s, free_s, best_s, waited_s, item, np.arange(m))


def _exp(values: Floats) -> Floats:
    return elementwise(math.exp, values)


@kernel
def _cost_sets(w: Window, j: int, costs: Any, last: Any) -> None:
    """Cost of each set of requests on slot j, in its best order, and which is last in it."""
    n = len(w.best_s)
    costs[j, 0] = 0.0
    for chosen in range(1, 1 << n):
        end_s = w.free_s[j]
        for i in range(n):
            if chosen >> i & 1:
                end_s += w.service_s[i, j]
                is_first = True
                for k in range(i):
                    if chosen >> k & 1 and w.item[k] == w.item[i] and w.item[i] >= 0:
                        is_first = False
                if is_first:
                    end_s += w.load_s[i, j]
        costs[j, chosen] = np.inf
        for i in range(n):
            if chosen >> i & 1:
                cost = costs[j, chosen ^ (1 << i)] + end_s
                if cost < costs[j, chosen]:
                    costs[j, chosen] = cost
                    last[j, chosen] = i


@kernel
def _divide_sets(costs: Any, best: Any, part: Any) -> None:
    """Least cost of each set on the slots up to j, and the part of it that slot j has."""
    m, many = costs.shape
    for chosen in range(many):
        best[0, chosen], part[0, chosen] = costs[0, chosen], chosen
    for j in range(1, m):
        for chosen in range(many):
            best[j, chosen], own = np.inf, chosen
            while True:
                cost = best[j - 1, chosen ^ own] + costs[j, own]
                if cost < best[j, chosen]:
                    best[j, chosen], part[j, chosen] = cost, own
                if own == 0:
                    break
                own = (own - 1) & chosen


def optimal_schedule(w: Window) -> Schedule:
    """The schedule with the least sum of completions, of at most `MOST` requests on slots of a node each."""
    n, m = len(w.best_s), len(w.free_s)
    costs, last = np.full((m, 1 << n), np.inf), np.zeros((m, 1 << n), np.int64)
    for j in range(m):
        _cost_sets(w, j, costs, last)
    best, part = np.empty_like(costs), np.zeros_like(last)
    _divide_sets(costs, best, part)
    left, sequences = (1 << n) - 1, []
    for j in reversed(range(m)):
        own, sequence = int(part[j, left]), list[int]()
        left ^= own
        while own:
            sequence.append(int(last[j, own]))
            own ^= 1 << sequence[-1]
        sequences.append((j, sequence[::-1]))
    pairs = [(i, j) for j, sequence in sequences for i in sequence]
    starts = starts_s(w, pairs)
    order = sorted(range(n), key=lambda k: (starts[k][0], pairs[k][1]))
    requests, slots = np.array([pairs[k] for k in order]).reshape(-1, 2).T
    return Schedule(requests, slots, sum(end_s for _, end_s in starts))


def starts_s(w: Window, pairs: list[tuple[int, int]]) -> list[tuple[float, float]]:
    """Start and completion of each pair of a sequence."""
    free_s, loaded, found = w.free_s.tolist(), set[tuple[int, int]](), []
    for i, j in pairs:
        begin_s, key = free_s[j], (int(w.item[i]), int(w.node[j]))
        free_s[j] += float(w.service_s[i, j]) + (0.0 if key in loaded else float(w.load_s[i, j]))
        if w.item[i] >= 0:
            loaded.add(key)
        found.append((begin_s, free_s[j]))
    return found


def total_s(w: Window, requests: Ints, slots: Ints) -> float:
    """Sum of completions of a sequence of choices."""
    pairs = list(zip(requests.tolist(), slots.tolist(), strict=True))
    return sum(end_s for _, end_s in starts_s(w, pairs))


def copied(w: Window) -> Window:
    """A window whose schedule another can make: making one changes it."""
    return Window(*(array.copy() for array in w))  # type: ignore[arg-type]
