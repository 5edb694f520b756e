"""Nodes whose seconds were measured by the number of requests and their size: by hand, and by definition."""

from __future__ import annotations

import numpy as np
import pytest

from support.engines import engine_cluster, finished, measured_type, shared_type, token_requests
from trimtab.domain.options import OnRefusal
from trimtab.domain.requests import Requests, Status, true_service_s
from trimtab.engine.driver import Driver

SIZES = (1.0, 3.0)
SECONDS = ((1.0, 1.0), (2.0, 6.0), (3.0, 12.0))  # among 0, 1 and 2; size 2: 4 and 7.5 s


def _run(arrival_s: list[float], size: list[int], **options: object) -> Driver:
    cluster = engine_cluster([measured_type(SIZES, SECONDS)], [0])
    return finished(cluster, token_requests(cluster, arrival_s, 1, size), **options)


def test_sizes_slow_each_other_differently() -> None:
    """The large one has done 1/6 at 1 s. Among two it takes 12 s in all, and the small one 3 s, until 4 s.

    The large one has done 3/12 more by then, and 7/12 of 6 s are left.
    """
    assert _run([0.0, 1.0], [3, 1]).state.requests["finish_s"] == pytest.approx([7.5, 4.0])


def test_seconds_are_linear_between_sizes_and_held_below_the_least() -> None:
    """Alone 4 s, then among two 7.5 s each; 2 s alone, as for the least size."""
    run = _run([0.0, 10.0, 10.0, 30.0], [2, 2, 2, 1])
    assert run.state.requests["finish_s"] == pytest.approx([4.0, 17.5, 17.5, 32.0])
    below = engine_cluster([measured_type((2.0, 3.0), SECONDS)], [0])
    requests = token_requests(below, [0.0], 1, [1])
    assert finished(below, requests).state.requests["finish_s"] == pytest.approx([2.0])


def test_more_than_were_measured_wait() -> None:
    """Two of size 1 end at 3 s; the third takes 2 s alone."""
    run = _run([0.0, 0.0, 1.0], [1, 1, 1])
    assert run.state.requests["finish_s"] == pytest.approx([3.0, 3.0, 5.0])
    assert run.state.requests["start_s"][2] == 3.0


def test_a_larger_one_than_was_measured_is_refused() -> None:
    run = _run([0.0, 0.0], [4, 3], on_refusal=OnRefusal.REJECT)
    assert run.state.requests["status"].tolist() == [Status.REJECTED, Status.FINISHED]


def test_seconds_in_proportion_to_the_size_are_a_shared_processor() -> None:
    g, slowdown = np.random.default_rng(3), np.maximum(1.0, np.arange(9) / 2)
    kinds = [shared_type(slowdown), measured_type((1.0, 30.0), np.outer(slowdown, 0.5 * np.array([1, 30])))]
    arrival_s, size = np.cumsum(g.exponential(4.0, 500)), g.integers(1, 31, 500)
    ends_s = []
    for kind in kinds:
        cluster = engine_cluster([kind], [0])
        ends_s.append(
            finished(cluster, token_requests(cluster, arrival_s, 1, size)).state.requests["finish_s"]
        )
    assert ends_s[1] == pytest.approx(ends_s[0], rel=1e-9)


def _by_definition(requests: Requests, size_at: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Ends of requests that are served first come first served: each goes on by dt ÷ its seconds."""
    arrival_s, size = requests.work["arrival_s"], requests.truth["units"]
    left, ends_s = np.ones(len(size)), np.full(len(size), np.nan)
    batch: list[int] = []
    now_s, come = 0.0, 0
    queue: list[int] = []
    while come < len(size) or batch:
        whole_s = np.array([np.interp(size[r], size_at, seconds[len(batch)]) for r in batch])
        end_s = now_s + left[batch] * whole_s
        next_s = min(end_s.min(initial=np.inf), arrival_s[come] if come < len(size) else np.inf)
        left[batch] -= (next_s - now_s) / whole_s
        now_s = next_s
        for r in [r for r, at in zip(batch, end_s, strict=True) if at <= now_s]:
            batch.remove(r)
            ends_s[r] = now_s
        while come < len(size) and arrival_s[come] <= now_s:
            queue.append(come)
            come += 1
        while queue and len(batch) < len(seconds) - 1:
            batch.append(queue.pop(0))
    return ends_s


@pytest.mark.parametrize("mode", ["interpreted", "compiled"])
def test_random_tables_by_definition(mode: str) -> None:
    g = np.random.default_rng(11)
    for _ in range(5):
        size_at = np.array([1.0, 4.0, 9.0, 20.0])
        seconds = np.cumsum(np.cumsum(g.random((6, 4)), axis=1), axis=0)
        cluster = engine_cluster([measured_type(size_at, seconds)], [0])
        requests = token_requests(cluster, np.cumsum(g.exponential(3.0, 200)), 1, g.integers(1, 21, 200))
        run = finished(cluster, requests, mode=mode)
        assert run.state.requests["finish_s"] == pytest.approx(_by_definition(requests, size_at, seconds))
        alone_s = [np.interp(x, size_at, seconds[1]) for x in requests.truth["units"]]
        assert true_service_s(cluster, requests)[:, 0] == pytest.approx(alone_s)
