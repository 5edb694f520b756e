"""The cache of exact results: a repeated request with a cached result ends on arrival.

Requests with equal `content_idx` repeat one request of one tenant. −1 marks a request that the cache never
answers. The cache keeps a bounded number of results of finished requests and evicts the least recently used.
"""

from __future__ import annotations

from trimtab.compiled.kernel import helper
from trimtab.domain.requests import Status
from trimtab.engine.lru import use
from trimtab.engine.state import State

_FINISHED = int(Status.FINISHED)
_ONLY = 0  # there is one cache


@helper(inline=True)
def has_results(s: State) -> bool:
    """Whether the run has a result cache and requests that may use it."""
    return s.config.results_max[0] > 0


@helper
def answer(s: State, r: int, now_s: float) -> bool:
    """Whether the cache answers request r, which has just arrived. If so, the request has ended."""
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
    """Keep the result of served request r if it may be reused."""
    content = s.content_idx[r]
    if content >= 0:
        use(s.result_place, s.result_cache, s.result_entry, _ONLY, content)
