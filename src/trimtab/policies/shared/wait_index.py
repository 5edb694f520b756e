"""Index of expected waits: the nodes of least wait without a look at every node, as a scan finds them.

Nodes of a group differ in their wait and in what they hold of the work's model and adapter: a *kind* of
nodes lacks the model (bit 0), the adapter (bit 1), both or neither. Nodes of one group and kind with a free
slot have the same score. For a busy node the key is the backlog's end, what is left now + slots × now. It
stays as it is while all slots work, and grows while some do not, so it is always a lower bound. The key of
an overdue node, whose backlog should be over, is the share of its work that is left then. A busy node
becomes overdue without a change of its own, so a visit checks for it.

A visit takes every node whose key is within a limit, widened by more than rounding can change, and computes
its wait as `expected_wait_s` does. So choices, rankings and scores are those of a scan.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from trimtab.compiled.kernel import helper, plain
from trimtab.compiled.numba_extras import lowest_bit
from trimtab.domain.cluster import Cluster
from trimtab.domain.view import Memory, View, estimate_s
from trimtab.policies.shared.node_words import (
    BUSY,
    CURSOR,
    FREE,
    FULL_OVERDUE,
    OVERDUE,
    any_item,
    bounds_at,
    first_word,
    free_words,
    holders,
    in_state,
    is_overdue,
    key_at,
    least_at,
    left_s,
    n_free,
    n_groups,
    n_words,
    node_of,
    node_words,
    note_node,
    slots_of_group,
    type_of_group,
)
from trimtab.policies.shared.selection import AT_ONCE, rank_best, up_to
from trimtab.policies.shared.waits import expected_wait_s

_WIDER = 1e-12  # share of the numbers of a limit; rounding changes less than 1e-15 of them
_LARGEST = np.finfo(np.float64).max  # bounds of words without such nodes are infinite
FEWEST_NODES, FEWEST_WITH_ITEMS = 32, 1_000  # a scan of fewer is as fast
_BLOCK, _NEAR, _WORD, _BITS, _ITEM = range(CURSOR, CURSOR + 5)
_LEAST, _SCORES = 0, 1  # in `floats`; scores of each kind and group


def is_indexable(cluster: Cluster) -> bool:
    """Whether the waits of this cluster's nodes are worth an index."""
    if cluster.engines is not None:  # their speeds vary by node
        return False
    fewest = FEWEST_WITH_ITEMS if len(cluster.item_gib) else FEWEST_NODES
    return cluster.n_nodes >= fewest


def is_near(cluster: Cluster) -> bool:
    """Whether all nodes are in one place, so that round trips don't matter, now or later."""
    return len(cluster.zone_names) <= 1 and not np.any(cluster.rtt_s)


def wait_index(cluster: Cluster, *, with_full: bool = False) -> Memory:
    """Memory of the index; filled at the first refresh. `with_full`: also of nodes without room."""
    return node_words(cluster, (FULL_OVERDUE if with_full else OVERDUE) + 1)


class Cost(NamedTuple):
    """The addition of a score to the wait, of one group and kind; and the longest wait that counts."""

    own_s: Any
    transfer_s: Any
    w_wait: Any
    extra_s: Any
    price_s: Any
    waited_s: Any
    most_s: Any  # waited and wait


@helper(inline=True)
def completion_cost(own_s: float) -> Cost:
    """The score is the expected completion."""
    return Cost(own_s, 0.0, 0.0, 0.0, 0.0, 0.0, np.inf)


@helper(inline=True)
def score_of(cost: Cost, wait_s: float) -> float:
    """The score of a node where work waits so long."""
    return float(wait_s + cost.own_s + cost.transfer_s + (cost.w_wait * wait_s + cost.extra_s + cost.price_s))


@helper(inline=True)
def n_kinds(work: Any) -> int:
    """How many kinds of nodes there are for this work."""
    if work.adapter_idx >= 0:
        return 4
    return 2 if work.model_idx >= 0 else 1


@helper(inline=True)
def load_of_kind_s(view: View, work: Any, type_idx: int, kind: int) -> float:
    """As `missing_load_s`, of nodes of a type and kind."""
    seconds = 0.0
    if work.model_idx >= 0:
        seconds += view.load_s[work.model_idx, type_idx] * (kind & 1)
    if work.adapter_idx >= 0:
        seconds += view.load_s[work.adapter_idx, type_idx] * (kind >> 1)
    return seconds


@helper(inline=True)
def own_of_kind_s(view: View, memory: Memory, work: Any, g: int, kind: int) -> float:
    """As `own_s`, of nodes of a group and kind."""
    t = type_of_group(memory, g)
    return load_of_kind_s(view, work, t, kind) + estimate_s(view, work, t)


@helper(inline=True)
def _of_kind(memory: Memory, work: Any, kind: int, word: int) -> int:
    """The nodes of a word that are of this kind."""
    mask = -1
    if work.model_idx >= 0:
        here = holders(memory, work.model_idx, word)
        mask &= ~here if kind & 1 != 0 else here
    if work.adapter_idx >= 0:
        here = holders(memory, work.adapter_idx, word)
        mask &= ~here if kind & 2 != 0 else here
    return mask


@helper(inline=True)
def may_be_free(memory: Memory, work: Any, g: int, kind: int) -> bool:
    """False if the counts say that no node of this group and kind is free."""
    every = n_free(memory, any_item(memory), g)
    if every == 0:
        return False
    if work.model_idx >= 0:
        here = n_free(memory, work.model_idx, g)
        if (every - here if kind & 1 != 0 else here) == 0:
            return False
    if work.adapter_idx >= 0:
        here = n_free(memory, work.adapter_idx, g)
        if (every - here if kind & 2 != 0 else here) == 0:
            return False
    return True


@helper(inline=True)
def _next_free_word(memory: Memory, g: int, word: int) -> int:
    """The first word of a group from this one on that has free nodes; -1 if none has."""
    end = first_word(memory, g) + n_words(memory, g)
    while word < end:
        bits = free_words(memory, word // AT_ONCE) >> (word % AT_ONCE)
        if bits != 0:
            word += lowest_bit(bits)
            return word if word < end else -1
        word += AT_ONCE - word % AT_ONCE
    return -1


@helper(inline=True)
def has_free(memory: Memory, work: Any, g: int, kind: int) -> bool:
    """Whether a node of this group and kind has a free slot and takes work."""
    if not may_be_free(memory, work, g, kind):
        return False
    if work.adapter_idx < 0:
        return True
    word = _next_free_word(memory, g, first_word(memory, g))
    while word >= 0:
        if in_state(memory, FREE, word) & _of_kind(memory, work, kind, word) != 0:
            return True
        word = _next_free_word(memory, g, word + 1)
    return False


@helper
def _rank_free(
    view: View, memory: Memory, work: Any, ranking: Any, count: int, g: int, kind: int, score: float
) -> int:
    """Rank the first nodes of this group and kind that have a free slot, all with this score."""
    most = left = view.context.n_wanted
    word = _next_free_word(memory, g, first_word(memory, g))
    while word >= 0:
        bits = in_state(memory, FREE, word) & _of_kind(memory, work, kind, word)
        while bits != 0:
            count = rank_best(ranking, count, most, node_of(memory, word, lowest_bit(bits)), score)
            bits &= bits - 1
            left -= 1
            if left == 0:
                return count
        word = _next_free_word(memory, g, word + 1)
    return count


@helper(inline=True)
def score_free(memory: Memory, g: int, kind: int, score: float) -> None:
    """Set what free nodes of a group and kind score, for `rank_free`; inf = there are none to rank."""
    memory.floats[plain(_SCORES + kind * n_groups(memory) + g)] = score


@helper(inline=True)
def add_to_free(memory: Memory, g: int, kind: int, seconds: float) -> None:
    """Add to what free nodes of a group and kind score."""
    memory.floats[plain(_SCORES + kind * n_groups(memory) + g)] += seconds


@helper
def rank_free(view: View, memory: Memory, work: Any, ranking: Any) -> int:
    """Rank the best nodes that have a free slot, by the scores of their group and kind."""
    floats, count, groups = memory.floats, 0, n_groups(memory)
    while True:
        best, least = -1, ranking.score[count - 1] if count == view.context.n_wanted else _LARGEST
        for i in range(groups * n_kinds(work)):
            score = floats[plain(_SCORES + i)]
            if score <= least:
                best, least = i, score
        if best < 0:
            return count
        floats[plain(_SCORES + best)] = np.inf
        count = _rank_free(view, memory, work, ranking, count, best % groups, best // groups, least)


@helper
def rank_free_by_own(view: View, memory: Memory, work: Any, ranking: Any) -> int:
    """Rank the best nodes that have a free slot, by the seconds that the work itself takes there."""
    for g in range(n_groups(memory)):
        for kind in range(n_kinds(work)):
            is_any = may_be_free(memory, work, g, kind)
            own_s = own_of_kind_s(view, memory, work, g, kind)
            score_free(memory, g, kind, own_s if is_any else np.inf)
    return int(rank_free(view, memory, work, ranking))


@helper(inline=True)
def _limit(view: View, wait_s: float, size_s: float, slots: int, state: int) -> float:
    """The largest key that a node may have whose wait is at most `wait_s`, or a little more.

    `size_s`: the numbers that `wait_s` was computed from.
    """
    now_s = 0.0 if is_overdue(state) else view.context.now_s
    limit = slots * (now_s + wait_s) + _WIDER * slots * (now_s + abs(wait_s) + size_s)
    return min(limit, _LARGEST)


@helper(inline=True)
def _limit_of_cost(view: View, ranking: Any, count: int, cost: Cost, slots: int, state: int) -> float:
    most_s = cost.most_s - cost.waited_s
    size_s = cost.own_s + cost.transfer_s + abs(cost.extra_s) + abs(cost.price_s)
    if count == view.context.n_wanted and cost.w_wait >= -0.5:  # else less wait may be no better
        rest_s = ranking.score[count - 1] - cost.own_s - cost.transfer_s - cost.extra_s - cost.price_s
        most_s = min(most_s, rest_s / (1.0 + cost.w_wait))
    return _limit(view, most_s, 2.0 * (size_s + cost.waited_s), slots, state)


@helper(inline=True)
def _items_of(memory: Memory, work: Any, kind: int) -> Any:
    """The two items that all nodes of a kind hold; or one twice, or whatever they hold."""
    one = two = any_item(memory)
    if work.adapter_idx >= 0 and kind & 2 == 0:
        one = two = int(work.adapter_idx)
    if work.model_idx >= 0 and kind & 1 == 0:
        one = int(work.model_idx)
        two = one if two == any_item(memory) else two
    return one, two


@helper(inline=True)
def _begin(memory: Memory, work: Any, g: int, kind: int, state: int, limit: float) -> bool:
    """Put the cursor before the nodes of a group, kind and state. False if all keys are above the limit."""
    ints, floats = memory.ints, memory.floats
    one, two = _items_of(memory, work, kind)
    if max(floats[least_at(memory, state, one, g)], floats[least_at(memory, state, two, g)]) > limit:
        return False
    ints[_BLOCK], ints[_NEAR], ints[_WORD], ints[_BITS] = first_word(memory, g) - AT_ONCE, 0, -1, 0
    return True


@helper(inline=True)
def _next_word(memory: Memory, g: int, state: int, one: int, two: int, limit: float) -> int:
    """Move the cursor to the next word that may hold nodes within the limit; -1 if there is none."""
    ints, floats = memory.ints, memory.floats
    at_one, at_two = bounds_at(memory, state, one), bounds_at(memory, state, two)
    end = first_word(memory, g) + n_words(memory, g)
    while True:
        while ints[_NEAR] != 0:
            word = plain(ints[_BLOCK] + lowest_bit(ints[_NEAR]))
            ints[_NEAR] &= ints[_NEAR] - 1
            if max(floats[plain(at_one + word)], floats[plain(at_two + word)]) <= limit:
                return word
        ints[_BLOCK] += AT_ONCE
        block = ints[_BLOCK]
        if block >= end:
            return -1
        many = min(AT_ONCE, end - block)
        ints[_NEAR] = up_to(limit, floats, plain(at_one + block), many)
        if two != one:
            ints[_NEAR] &= up_to(limit, floats, plain(at_two + block), many)


@helper(inline=True)
def _least_of(floats: Any, at: int, many: int) -> float:
    least = np.inf
    for i in range(many):
        least = min(least, floats[plain(at + i)])
    return float(least)


@helper
def _next_busy(view: View, memory: Memory, work: Any, g: int, kind: int, state: int, limit: float) -> int:
    """Move the cursor to the next node of a group, kind and state whose key is within the limit.

    -1 at the end. Limits may fall between calls. Every word that was visited to its end gets its bound
    anew.
    """
    ints, floats, nodes = memory.ints, memory.floats, view.nodes
    one, two = _items_of(memory, work, kind)
    slots, now_s = slots_of_group(memory, g), view.context.now_s
    soon = -np.inf if is_overdue(state) else slots * now_s * (1.0 + _WIDER)
    while True:
        word, bits, least = ints[_WORD], ints[_BITS], floats[_LEAST]
        mask = _of_kind(memory, work, kind, plain(word)) if bits != 0 else 0
        while bits != 0:
            b = lowest_bit(bits)
            bits &= bits - 1
            key = floats[key_at(memory, word, b)]
            is_within = key <= limit and (mask >> b) & 1 != 0
            if is_within or key <= soon:
                j = node_of(memory, word, b)
                if not is_overdue(state) and left_s(view, j) <= 0.0:
                    note_node(view, memory, j)  # visited with the overdue ones
                    continue
                if not is_overdue(state) and nodes.running[j] != slots:
                    key = left_s(view, j) + slots * now_s
                    floats[key_at(memory, word, b)] = key
                if is_within:
                    ints[_BITS], floats[_LEAST] = bits, min(least, key)
                    return j
            least = min(least, key)
        if word >= 0:
            floats[plain(bounds_at(memory, state, ints[_ITEM]) + word)] = least
        word = _next_word(memory, g, state, one, two, limit)
        ints[_WORD], ints[_BITS], floats[_LEAST] = word, 0, np.inf
        if word < 0:
            first, many = first_word(memory, g), n_words(memory, g)
            floats[least_at(memory, state, one, g)] = _least_of(
                floats, bounds_at(memory, state, one) + first, many
            )
            return -1
        at_one, at_two = (
            plain(bounds_at(memory, state, one) + word),
            plain(bounds_at(memory, state, two) + word),
        )
        item = one if floats[at_one] >= floats[at_two] else two
        ints[_ITEM], ints[_BITS] = item, in_state(memory, state, word)
        if item != any_item(memory):
            ints[_BITS] &= holders(memory, item, word)


@helper
def rank_busy(
    view: View, memory: Memory, work: Any, ranking: Any, count: int, g: int, kind: int, state: int, cost: Cost
) -> int:
    """Rank the nodes of a group, kind and state by what they cost."""
    slots = slots_of_group(memory, g)
    if not _begin(memory, work, g, kind, state, _limit_of_cost(view, ranking, count, cost, slots, state)):
        return count
    while True:
        limit = _limit_of_cost(view, ranking, count, cost, slots, state)
        j = _next_busy(view, memory, work, g, kind, state, limit)
        if j < 0:
            return count
        wait_s = expected_wait_s(view, j)
        if cost.waited_s + wait_s <= cost.most_s:
            count = rank_best(ranking, count, view.context.n_wanted, j, score_of(cost, wait_s))


@helper
def rank_waiting(
    view: View, memory: Memory, work: Any, ranking: Any, count: int, g: int, kind: int, cost: Cost
) -> int:
    """Rank the nodes of a group and kind that are busy and have room by what they cost."""
    count = rank_busy(view, memory, work, ranking, count, g, kind, BUSY, cost)
    return int(rank_busy(view, memory, work, ranking, count, g, kind, OVERDUE, cost))


@helper
def _first_sooner(
    view: View, memory: Memory, work: Any, g: int, kind: int, state: int, rivals: float, gained_s: float
) -> int:
    limit = _limit(view, gained_s / rivals, 0.0, slots_of_group(memory, g), state)
    if not _begin(memory, work, g, kind, state, limit):
        return -1
    while True:
        j = _next_busy(view, memory, work, g, kind, state, limit)
        if j < 0 or rivals * expected_wait_s(view, j) < gained_s:
            return int(j)


@helper
def first_sooner(
    view: View, memory: Memory, work: Any, g: int, kind: int, rivals: float, gained_s: float
) -> int:
    """A busy node of a group and kind that is free so soon that `rivals` waits are less than `gained_s`.

    -1 if there is none.
    """
    j = _first_sooner(view, memory, work, g, kind, BUSY, rivals, gained_s)
    return int(j) if j >= 0 else int(_first_sooner(view, memory, work, g, kind, OVERDUE, rivals, gained_s))
