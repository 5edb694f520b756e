"""The store of stage results: a deterministic stage of equal content is not served again.

Rows of equal `stage_content` give equal outputs; −1 marks a stage that is never answered. The store holds
outputs up to a size. It evicts by worth per byte, GreedyDual-Size: an output's credit is the store's
inflation + service seconds ÷ GiB, set again at each use; the output of least credit goes, and its credit
becomes the inflation.

Source: Pei Cao, Sandy Irani, "Cost-aware WWW proxy caching algorithms", USITS 1997.
"""

from __future__ import annotations

from trimtab.compiled.kernel import helper
from trimtab.engine.state import State

LEAST_GIB = 1e-9  # size that an output counts as at least


@helper(inline=True)
def has_store(s: State) -> bool:
    """Whether the run has a store and stages that may use it."""
    return s.config.store_gib[0] > 0.0


@helper
def is_answered(s: State, r: int) -> bool:
    """Whether the store has the output of row r."""
    c = s.stage_content[r]
    if c < 0:
        return False
    s.counts.repeatable[0] += 1
    if s.kept.place[c] == 0:
        return False
    s.counts.result_hits[0] += 1
    s.kept.credit[c] = s.counts.inflation[0] + s.kept.service_s[c] / s.kept.gib[c]
    _sift_down(s, s.kept.place[c] - 1)
    return True


@helper
def keep_output(s: State, r: int) -> None:
    """Put the output of served row r into the store, if it may be used again and fits."""
    c = s.stage_content[r]
    gib = max(LEAST_GIB, s.stages.output_gib[r])
    if c < 0 or s.kept.place[c] != 0 or gib > s.config.store_gib[0]:
        return
    while s.counts.store_gib[0] + gib > s.config.store_gib[0] and s.counts.kept[0] > 0:
        _evict(s)
    s.kept.gib[c] = gib
    s.kept.service_s[c] = s.requests.finish_s[r] - s.requests.service_start_s[r]
    s.kept.credit[c] = s.counts.inflation[0] + s.kept.service_s[c] / gib
    s.counts.store_gib[0] += gib
    s.kept_heap[s.counts.kept[0]] = c
    s.counts.kept[0] += 1
    _sift_up(s, s.counts.kept[0] - 1)


@helper
def _evict(s: State) -> None:
    first = s.kept_heap[0]
    s.counts.inflation[0] = s.kept.credit[first]
    s.counts.store_gib[0] -= s.kept.gib[first]
    s.kept.place[first] = 0
    s.counts.kept[0] -= 1
    last = s.counts.kept[0]
    if last == 0:
        s.counts.store_gib[0] = 0.0
        return
    s.kept_heap[0] = s.kept_heap[last]
    _sift_down(s, 0)


@helper(inline=True)
def _goes_before(s: State, a: int, b: int) -> bool:
    """Whether content a is evicted before content b; ties by number."""
    return s.kept.credit[a] < s.kept.credit[b] or (s.kept.credit[a] == s.kept.credit[b] and a < b)


@helper
def _sift_up(s: State, i: int) -> None:
    c = s.kept_heap[i]
    while i > 0:
        above = (i - 1) // 2
        if not _goes_before(s, c, s.kept_heap[above]):
            break
        s.kept_heap[i] = s.kept_heap[above]
        s.kept.place[s.kept_heap[i]] = i + 1
        i = above
    s.kept_heap[i] = c
    s.kept.place[c] = i + 1


@helper
def _sift_down(s: State, i: int) -> None:
    c, n = s.kept_heap[i], s.counts.kept[0]
    while 2 * i + 1 < n:
        child = 2 * i + 1
        if child + 1 < n and _goes_before(s, s.kept_heap[child + 1], s.kept_heap[child]):
            child += 1
        if not _goes_before(s, s.kept_heap[child], c):
            break
        s.kept_heap[i] = s.kept_heap[child]
        s.kept.place[s.kept_heap[i]] = i + 1
        i = child
    s.kept_heap[i] = c
    s.kept.place[c] = i + 1
