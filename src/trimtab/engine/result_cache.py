"""Exact results: a request that was served before, and may be answered from then, ends as it arrives.

Requests of equal `content_idx` are one request of one tenant, asked again; −1 is never answered from the
cache. It keeps the results of finished requests, as many as it has room for, and drops the one used longest
ago.
"""

from __future__ import annotations

from trimtab.compiled.kernel import helper
from trimtab.domain.decision import Status
from trimtab.engine.lru import use
from trimtab.engine.state import State

_FINISHED = int(Status.FINISHED)
_ONLY = 0  # there is one cache


@helper(inline=True)
def has_results(s: State) -> bool:
    """Whether there is a cache of results, and requests that may use it."""
    return s.config.results_max[0] > 0


@helper
def answer(s: State, r: int, now_s: float) -> bool:
    """Whether request r, which has just arrived, is answered from the cache: it has ended then."""
    content = s.content_idx[r]
    if content < 0:
        return False
    s.counts.repeatable[0] += 1
    if s.result_place[content, _ONLY] == 0:
        return False
    use(s.result_place, s.result_cache, s.result_entry, _ONLY, content)
    s.counts.result_hits[0] += 1
    s.counts.finished[0] += 1
    s.counts.in_system[0] -= 1
    s.requests.status[r] = _FINISHED
    s.requests.start_s[r] = now_s
    s.requests.service_start_s[r] = now_s
    s.requests.finish_s[r] = now_s
    return True


@helper
def keep_result(s: State, r: int) -> None:
    """Request r has been served: its result is kept if it may be used again."""
    content = s.content_idx[r]
    if content >= 0:
        use(s.result_place, s.result_cache, s.result_entry, _ONLY, content)
