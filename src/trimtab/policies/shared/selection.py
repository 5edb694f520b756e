"""How policies find nodes that can take a request, and keep the best of them in order."""

from __future__ import annotations

from typing import Any

import numpy as np

from trimtab.compiled.kernel import helper, plain
from trimtab.compiled.numba_extras import lowest_bit
from trimtab.domain.cluster import Cluster
from trimtab.domain.policy import Policy
from trimtab.domain.view import MAX_RANKED, Memory, View, can_take, memory

NOTES = 0  # in `memory.floats`: where notes begin, one per node
AT_ONCE = 60  # numbers compared with a bound at once: one bit each of an integer


@helper(inline=True)
def next_able(view: View, work: Any, start: int) -> int:
    """First node from `start` on, around the cluster, that can take the work; -1 if none can."""
    n = view.context.n_nodes
    for step in range(n):
        j = start + step
        if j >= n:
            j -= n
        if can_take(view, work, j):
            return j
    return -1


@helper
def _able_at(view: View, work: Any, u: float) -> int:
    """The ⌊u·m⌋-th of the m nodes that can take the work; -1 if none can."""
    m = 0
    for j in range(view.context.n_nodes):
        m += 1 if can_take(view, work, j) else 0
    left = int(u * m)
    for j in range(view.context.n_nodes):
        if can_take(view, work, j):
            if left == 0:
                return j
            left -= 1
    return -1


@helper(inline=True)
def uniform_able(view: View, work: Any, u: float) -> int:
    """A node that can take the work, uniformly among these for u uniform in [0, 1); -1 if none can.

    O(1) where the first try succeeds. Where it fails, the digits of u that it did not use are uniform still
    and choose among the able ones, so one number is enough: P(j) = 1/n + (1 − m/n)/m = 1/m.
    """
    scaled = u * view.context.n_nodes
    j = int(scaled)
    return j if can_take(view, work, j) else _able_at(view, work, scaled - j)


@helper(inline=True)
def rank_from(view: View, work: Any, ranking: Any, j: int) -> int:
    """Rank node j, and after it the next one that can take the work; returns how many. j = -1: none."""
    if j < 0:
        return 0
    ranking[0] = j
    ranking[1] = next_able(view, work, j + 1)
    return 2


@helper(inline=True)
def rank(ranking: Any, count: int, j: int, score: float) -> int:
    """Insert node j among `count` candidates, least (score, node) first; returns how many there are now.

    The worst one falls out of a full list.
    """
    return int(rank_best(ranking, count, MAX_RANKED, j, score))


@helper(inline=True)
def rank_best(ranking: Any, count: int, most: int, j: int, score: float) -> int:
    """As `rank`, of at most so many candidates."""
    nodes, scores = ranking.node_idx, ranking.score
    if count == most:
        worst = scores[count - 1]
        if score > worst or (score == worst and j > nodes[count - 1]):
            return count
        count -= 1
    i = count
    while i > 0 and (scores[i - 1] > score or (scores[i - 1] == score and nodes[i - 1] > j)):
        scores[i] = scores[i - 1]
        nodes[i] = nodes[i - 1]
        i -= 1
    scores[i] = score
    nodes[i] = j
    return count + 1


def notes_room(n_nodes: int) -> int:
    """Numbers of `memory.floats` that `rank_noted` takes, from its begin on: one per node."""
    return NOTES + n_nodes


class NotingPolicy(Policy):
    """Base of policies whose memory is the notes of the nodes."""

    def init(self, cluster: Cluster) -> Memory:
        """Notes of the nodes."""
        return memory(floats=notes_room(cluster.n_nodes))


@helper(inline=True)
def rank_noted(floats: Any, ranking: Any, n: int) -> int:
    """Rank the nodes by their notes `floats[NOTES + j]`, least (note, node) first; returns how many.

    A node with note inf is no candidate. The notes stay; they are the candidates' scores. The function is for
    policies that look at all n nodes: `rank` in their loop would cost a branch misprediction whenever a node
    enters the list. Here a bound first excludes most nodes, without branches and several at a time. A single
    node needs no comparison.
    """
    scores = ranking.score
    if n == 1:
        scores[0] = floats[NOTES]
        ranking.node_idx[0] = 0
        return 1 if scores[0] < np.inf else 0
    for i in range(MAX_RANKED):
        scores[i] = np.inf
    bound = _bound(floats, n)
    for first in range(0, n, AT_ONCE):
        near = up_to(bound, floats, NOTES + first, min(n - first, AT_ONCE))
        while near != 0:
            j = plain(first + lowest_bit(near))
            near &= near - 1
            if floats[NOTES + j] < scores[MAX_RANKED - 1]:
                _insert(ranking, j, floats[NOTES + j])
    count = 0
    while count < MAX_RANKED and scores[count] < np.inf:
        count += 1
    return count


@helper(inline=True)
def _bound(floats: Any, n: int) -> float:
    """The largest of the two least notes of each of four lots, which are MAX_RANKED; inf where n < 8.

    Every fourth node belongs to a lot. As many notes are no larger, so neither are those of the best.
    """
    a = b = c = d = next_a = next_b = next_c = next_d = np.inf
    for row in range(n >> 2):
        j = plain(NOTES + 4 * row)
        at_a, at_b, at_c, at_d = floats[j], floats[j + 1], floats[j + 2], floats[j + 3]
        next_a, next_b = _less(_more(at_a, a), next_a), _less(_more(at_b, b), next_b)
        next_c, next_d = _less(_more(at_c, c), next_c), _less(_more(at_d, d), next_d)
        a, b, c, d = _less(at_a, a), _less(at_b, b), _less(at_c, c), _less(at_d, d)
    return _more(_more(next_a, next_b), _more(next_c, next_d))


@helper(inline=True)
def up_to(bound: float, floats: Any, at: int, count: int) -> int:
    """Bit k is set where `floats[at + k]` is no larger than the bound, for k < count ≤ AT_ONCE."""
    bits = 0
    for k in range(count):
        bits |= (1 if floats[plain(at + k)] <= bound else 0) << k
    return bits


@helper(inline=True)
def _less(a: float, b: float) -> float:
    """Min, in the one form that is a single instruction."""
    return a if a < b else b


@helper(inline=True)
def _more(a: float, b: float) -> float:
    return b if a < b else a


@helper(inline=True)
def _insert(ranking: Any, j: int, score: float) -> None:
    """Insert a node after those whose scores are as good; the last one falls out. Without branches."""
    nodes, scores = ranking.node_idx, ranking.score
    here, node = scores[MAX_RANKED - 1], nodes[MAX_RANKED - 1]
    for i in range(MAX_RANKED - 1, 0, -1):
        before, other = scores[i - 1], nodes[i - 1]
        scores[i] = _more(_less(score, here), before)
        found = j if score < here else node
        nodes[i] = other if score < before else found
        here, node = before, other
    scores[0] = _less(score, here)
    nodes[0] = j if score < here else node
