"""Schedules by a search that knows true sizes and what comes: what a policy could do that sees all.

Requests, some of which come later, are put on slots one by one, each where it completes first. Then random
moves of a request to another place, and exchanges of two, are kept where the sum of completions falls (a
descent; Emile Aarts, Jan Karel Lenstra: "Local search in combinatorial optimization", 1997). A slot loads a
model before its first request that needs it, and keeps it. The result is not proven to be optimal.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.cluster import Floats, Ints
from trimtab.policies.shared.plan_features import Window

_MOVES: Final = 60  # tried for each request


@helper
def _slot_cost_s(w: Window, arrival_s: Any, j: int, sequence: Any, many: int) -> float:
    """Sum of completions of a slot's sequence."""
    now_s, total_s = w.free_s[j], 0.0
    for p in range(many):
        i = sequence[p]
        now_s = max(now_s, arrival_s[i]) + w.service_s[i, j]
        load_s = w.load_s[i, j]
        if load_s > 0.0:
            for q in range(p):
                if w.item[sequence[q]] == w.item[i]:
                    load_s = 0.0
        now_s += load_s
        total_s += now_s
    return total_s


@helper
def _insert(sequence: Any, many: int, place: int, i: int) -> None:
    for p in range(many, place, -1):
        sequence[p] = sequence[p - 1]
    sequence[place] = i


@helper
def _remove(sequence: Any, many: int, place: int) -> None:
    for p in range(place, many - 1):
        sequence[p] = sequence[p + 1]


@helper
def _place_of(sequence: Any, many: int, i: int) -> int:
    for p in range(many):
        if sequence[p] == i:
            return p
    return 0


@helper
def _begin(w: Window, arrival_s: Any, sequences: Any, many: Any, costs: Any, slot: Any) -> None:
    """Append each request where that adds least to the sum of completions."""
    for i in range(len(w.best_s)):
        best_s, chosen = np.inf, -1
        for j in range(len(w.free_s)):
            if w.service_s[i, j] < np.inf:
                sequences[j, many[j]] = i
                added_s = _slot_cost_s(w, arrival_s, j, sequences[j], many[j] + 1) - costs[j]
                if added_s < best_s:
                    best_s, chosen = added_s, j
        slot[i] = chosen
        if chosen >= 0:
            sequences[chosen, many[chosen]] = i
            many[chosen] += 1
            costs[chosen] += best_s


@kernel
def improve(w: Window, arrival_s: Any, draws: Any, sequences: Any, many: Any, costs: Any, slot: Any) -> float:
    """Write the sequences of slots [slots, requests], how many each has, and the slot of each request.

    draws [moves, 3] are uniform numbers; -1 = a request that no slot can serve. Returns the sum of
    completions.
    """
    n, m = len(w.best_s), len(w.free_s)
    _begin(w, arrival_s, sequences, many, costs, slot)
    for k in range(len(draws)):
        i, j = int(draws[k, 0] * n), int(draws[k, 1] * m)
        old = slot[i]
        if old < 0 or not w.service_s[i, j] < np.inf:
            continue
        place = _place_of(sequences[old], many[old], i)
        if j == old:  # to another place there
            _remove(sequences[old], many[old], place)
            new = int(draws[k, 2] * many[old])
            _insert(sequences[old], many[old] - 1, new, i)
            cost_s = _slot_cost_s(w, arrival_s, old, sequences[old], many[old])
            if cost_s < costs[old]:
                costs[old] = cost_s
            else:
                _remove(sequences[old], many[old], new)
                _insert(sequences[old], many[old] - 1, place, i)
            continue
        new = int(draws[k, 2] * (many[j] + 1))
        other = sequences[j, new] if new < many[j] and k % 2 == 1 else -1
        if other >= 0 and w.service_s[other, old] < np.inf:  # an exchange
            sequences[j, new], sequences[old, place] = i, other
            from_s = _slot_cost_s(w, arrival_s, old, sequences[old], many[old])
            to_s = _slot_cost_s(w, arrival_s, j, sequences[j], many[j])
            if from_s + to_s < costs[old] + costs[j]:
                costs[old], costs[j], slot[i], slot[other] = from_s, to_s, j, old
            else:
                sequences[j, new], sequences[old, place] = other, i
            continue
        _remove(sequences[old], many[old], place)
        _insert(sequences[j], many[j], new, i)
        from_s = _slot_cost_s(w, arrival_s, old, sequences[old], many[old] - 1)
        to_s = _slot_cost_s(w, arrival_s, j, sequences[j], many[j] + 1)
        if from_s + to_s < costs[old] + costs[j]:
            costs[old], costs[j], slot[i] = from_s, to_s, j
            many[old] -= 1
            many[j] += 1
        else:
            _remove(sequences[j], many[j] + 1, new)
            _insert(sequences[old], many[old] - 1, place, i)
    total_s = 0.0
    for j in range(m):
        total_s += costs[j]
    return total_s


def clairvoyant_schedule(w: Window, arrival_s: Floats, seed: int) -> tuple[Ints, float]:
    """The first request of each slot [slots], -1 = none, and the sum of completions.

    The window has true seconds, and also the requests that come at `arrival_s` [requests], in seconds from
    now.
    """
    n, m = len(w.best_s), len(w.free_s)
    draws = np.random.default_rng(seed).random((_MOVES * n, 3))
    sequences, many, costs = np.zeros((m, n + 1), np.int64), np.zeros(m, np.int64), np.zeros(m)
    total_s = improve(w, arrival_s, draws, sequences, many, costs, np.zeros(n, np.int64))
    return np.where(many > 0, sequences[:, 0], -1), total_s
