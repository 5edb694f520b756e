"""Results that are kept: which requests they answer, at once, and which they never do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from support.builders import cluster, requests
from support.by_hand import asked, count, finishes, played
from support.mini_policies import Emptiest
from support.plain_caches import PlainLru
from support.same_state import differences
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Cancel, Options
from trimtab.domain.policy import Decider
from trimtab.domain.requests import Requests
from trimtab.engine.simulator import run


def repeated(r: Requests, content_idx: list[int]) -> Requests:
    return replace(r, content_idx=np.array(content_idx, np.int32))


def test_an_equal_request_is_answered_at_once_when_the_first_is_finished() -> None:
    c = cluster(1)
    r = repeated(asked(c, [0, 1, 10], 2.0), [0, 0, 0])
    d = played(c, r, Options(results_max=5))
    assert finishes(d) == [2.0, 4.0, 10.0]  # at 1 s there was no result yet
    assert d.state.requests["node_idx"].tolist() == [0, 0, -1]
    assert (count(d, "repeatable"), count(d, "result_hits"), count(d, "finished")) == (3, 1, 3)
    assert count(d, "in_system") == 0


def test_what_is_not_repeatable_is_always_served() -> None:
    c = cluster(1)
    d = played(c, repeated(asked(c, [0, 10], 2.0), [-1, -1]), Options(results_max=5))
    assert finishes(d) == [2.0, 12.0]
    assert count(d, "repeatable") == 0


def test_the_result_used_longest_ago_goes() -> None:
    c = cluster(1)
    r = repeated(asked(c, [0, 10, 20, 30, 40, 50], 2.0), [0, 1, 0, 2, 1, 0])
    d = played(c, r, Options(results_max=2))
    assert finishes(d) == [2.0, 12.0, 20.0, 32.0, 42.0, 52.0]  # 2 drops 1, then 1 drops 0


def test_a_cancelled_request_leaves_no_result() -> None:
    c = cluster(1)
    r = repeated(asked(c, [0, 10], 5.0, deadline_s=[3.0, np.inf]), [0, 0])
    assert finishes(played(c, r, Options(results_max=2, cancel=Cancel.ALWAYS)))[1] == 15.0


def _popular(n: int = 400) -> tuple[Cluster, Requests]:
    c = cluster(4, slots=2)
    pick = np.random.default_rng(5)
    content = np.minimum(pick.zipf(1.3, n) - 1, 60)
    return c, repeated(requests(c, n, load=0.7), np.where(pick.random(n) < 0.8, content, -1).tolist())


def test_hits_are_those_of_a_plain_cache() -> None:
    c, r = _popular()
    d = run(c, r, Options(results_max=10), Decider.of(Emptiest()), mode="interpreted")
    rows, served = d.state.requests, d.state.requests["node_idx"] >= 0
    assert r.content_idx is not None
    moments = [(t, 0, i) for i, t in enumerate(rows["finish_s"]) if served[i]]
    moments += [(t, 1, i) for i, t in enumerate(r.work["arrival_s"])]
    lru = PlainLru(10)
    for _, is_arrival, i in sorted(moments):
        content = int(r.content_idx[i])
        if content >= 0 and is_arrival:
            assert (content in lru) == (not served[i])
        if content >= 0 and (not is_arrival or content in lru):
            lru.use(content)
    assert 0 < count(d, "result_hits") == np.count_nonzero(~served)


def test_compiled_and_interpreted_results_agree() -> None:
    c, r = _popular()
    compiled = run(c, r, Options(results_max=10), Decider.of(Emptiest()), mode="compiled").state
    plain = run(c, r, Options(results_max=10), Decider.of(Emptiest()), mode="interpreted").state
    assert differences(compiled, plain) == []


def test_without_room_results_change_nothing() -> None:
    c, r = _popular()
    off = run(c, r, Options(), Decider.of(Emptiest()), mode="interpreted")
    plain = run(
        c, replace(r, content_idx=None), Options(results_max=9), Decider.of(Emptiest()), mode="interpreted"
    )
    assert finishes(off) == pytest.approx(finishes(plain), abs=0.0)
