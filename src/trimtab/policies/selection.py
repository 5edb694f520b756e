"""How policies find nodes that can take a request, and keep the best of them in order."""

from __future__ import annotations

from typing import Any

from trimtab.domain.kernel import helper
from trimtab.domain.view import MAX_RANKED, View, can_take


@helper(inline=True)
def next_able(view: View, work: Any, start: int) -> int:
    """First node from `start` on, around the cluster, that can take the work; -1 if none can."""
    n = view.host.n_nodes
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
    for j in range(view.host.n_nodes):
        m += 1 if can_take(view, work, j) else 0
    left = int(u * m)
    for j in range(view.host.n_nodes):
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
    scaled = u * view.host.n_nodes
    j = int(scaled)
    return j if can_take(view, work, j) else _able_at(view, work, scaled - j)


@helper(inline=True)
def rank(ranking: Any, scores: Any, count: int, j: int, score: float) -> int:
    """Insert node j among `count` candidates, least (score, node) first; returns how many there are now.

    `scores` holds the candidates' scores in its first MAX_RANKED places; the worst one falls out of a full
    list.
    """
    if count == MAX_RANKED:
        worst = scores[count - 1]
        if score > worst or (score == worst and j > ranking[count - 1]):
            return count
        count -= 1
    i = count
    while i > 0 and (scores[i - 1] > score or (scores[i - 1] == score and ranking[i - 1] > j)):
        scores[i] = scores[i - 1]
        ranking[i] = ranking[i - 1]
        i -= 1
    scores[i] = score
    ranking[i] = j
    return count + 1
