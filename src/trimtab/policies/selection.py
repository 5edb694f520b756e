"""How policies find nodes that can take a request, and keep the best of them in order."""

from __future__ import annotations

from typing import Any

import numpy as np

from trimtab.domain.kernel import helper
from trimtab.domain.view import MAX_RANKED, View, can_take, plain

NOTES = MAX_RANKED  # in `memory.floats`: where notes begin, one per node


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


def notes_room(n_nodes: int) -> int:
    """Numbers of `memory.floats` that `rank_noted` takes, from its begin on.

    They are MAX_RANKED scores, one note per node from `NOTES` on, and as many places for the nodes that are
    looked at closely.
    """
    return NOTES + 2 * n_nodes


@helper(inline=True)
def rank_noted(floats: Any, ranking: Any, n: int) -> int:
    """Rank the nodes by their notes `floats[NOTES + j]`, least (note, node) first; returns how many.

    A note of inf is no candidate. The notes stay; the candidates' are in the first places of `floats`. For
    policies that look at all n nodes: `rank` in their loop costs a wrong guess of the processor's, and all
    that it did ahead, whenever a node enters the list. Here nodes that can't be among the best are left out
    first, without branches: the best of each of MAX_RANKED lots are that many, so none is worse than the
    worst of these. Of 100 nodes some 20 are left. A node alone has nothing to be compared with.
    """
    if n == 1:
        floats[0] = floats[NOTES]
        ranking[0] = 0
        return 1 if floats[0] < np.inf else 0
    for i in range(MAX_RANKED):
        floats[i] = np.inf
    bound, end = _bound(floats, n), NOTES + n
    for j in range(n):
        floats[plain(end)] = j
        end += 1 if floats[NOTES + j] <= bound else 0
    for k in range(NOTES + n, end):
        j = plain(int(floats[plain(k)]))
        if floats[NOTES + j] < floats[MAX_RANKED - 1]:
            _insert(floats, ranking, j, floats[NOTES + j])
    count = 0
    while count < MAX_RANKED and floats[count] < np.inf:
        count += 1
    return count


@helper(inline=True)
def _bound(floats: Any, n: int) -> float:
    """The largest of the least notes of eight lots, which every eighth node belongs to; inf where n < 8."""
    a = b = c = d = e = f = g = h = np.inf
    for row in range(n >> 3):
        j = plain(NOTES + 8 * row)
        a, b = _less(floats[j], a), _less(floats[j + 1], b)
        c, d = _less(floats[j + 2], c), _less(floats[j + 3], d)
        e, f = _less(floats[j + 4], e), _less(floats[j + 5], f)
        g, h = _less(floats[j + 6], g), _less(floats[j + 7], h)
    return _more(_more(_more(a, b), _more(c, d)), _more(_more(e, f), _more(g, h)))


@helper(inline=True)
def _less(a: float, b: float) -> float:
    """Min, in the one form that is a single instruction."""
    return a if a < b else b


@helper(inline=True)
def _more(a: float, b: float) -> float:
    return b if a < b else a


@helper(inline=True)
def _insert(scores: Any, ranking: Any, j: int, score: float) -> None:
    """Insert a node after those whose scores are as good; the last one falls out. Without branches."""
    here, node = scores[MAX_RANKED - 1], ranking[MAX_RANKED - 1]
    for i in range(MAX_RANKED - 1, 0, -1):
        before, other = scores[i - 1], ranking[i - 1]
        scores[i] = _more(_less(score, here), before)
        found = j if score < here else node
        ranking[i] = other if score < before else found
        here, node = before, other
    scores[0] = _less(score, here)
    ranking[0] = j if score < here else node
