"""Bounds for runs of chains, against all schedules of tiny problems and against cases by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from support.builders import cluster
from support.by_hand import asked
from support.chains import Stage, after, chained, first_alone
from trimtab.domain.chains import Flow, OnStageFailure
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Options
from trimtab.domain.requests import Requests, true_service_s
from trimtab.experiments.bounds import bound_of
from trimtab.experiments.bounds.bound import Bound

EACH = Flow.EACH


def bound(c: Cluster, r: Requests) -> Bound:
    found = bound_of(c, r, Options())
    assert found is not None
    return found


def least_totals_s(c: Cluster, r: Requests, before: list[list[int]]) -> list[float]:
    """Least total completion of any k runs, over all orders in which rows are put on slots.

    `before[i]` lists the rows of the same run that row i of a run reads.
    """
    assert r.chains is not None
    n, per_run = len(r), len(before)
    service_s = true_service_s(c, Requests(r.chains.work, r.chains.truth))
    slot_type = np.repeat(c.type_idx, c.slots).tolist()
    arrival_s = r.work["arrival_s"].tolist()
    least = [0.0] + [np.inf] * n

    def note(end_s: list[float]) -> None:
        whole = sorted(
            end - arrival_s[k]
            for k, end in enumerate(max(end_s[k * per_run : (k + 1) * per_run]) for k in range(n))
            if end < np.inf
        )
        for count in range(1, len(whole) + 1):
            least[count] = min(least[count], sum(whole[:count]))

    def extend(end_s: list[float], free_s: list[float]) -> None:
        note(end_s)
        for row in range(n * per_run):
            run, first = row // per_run, row // per_run * per_run
            inputs = [end_s[first + i] for i in before[row % per_run]]
            if end_s[row] < np.inf or max(inputs, default=0.0) == np.inf:
                continue
            for slot, g in enumerate(slot_type):
                end = max(arrival_s[run], free_s[slot], *inputs, 0.0) + service_s[row, g]
                if end < np.inf:
                    extend([*end_s[:row], end, *end_s[row + 1 :]], [*free_s[:slot], end, *free_s[slot + 1 :]])

    extend([np.inf] * (n * per_run), [0.0] * len(slot_type))
    return least


SHAPES: dict[str, tuple[dict[str, Any], list[list[int]]]] = {
    "line": ({"a": {}, "b": after("a")}, [[], [0]]),
    "fan": ({"a": {}, "b": after("a"), "c": after("a")}, [[], [0], [0]]),
    "join": ({"a": {}, "b": {}, "c": after("a", "b")}, [[], [], [0, 1]]),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(6))
def test_no_schedule_beats_the_bound(shape: str, seed: int) -> None:
    edges, before = SHAPES[shape]
    rng = np.random.default_rng(seed)
    c = cluster(2, types=2, classes=2, speeds=[1.0, rng.uniform(1, 3)], unserved=[(1, 0)] if seed % 2 else [])
    stages = {
        name: Stage(rng.lognormal(0, 1), after=feeds, class_idx=int(rng.integers(2)))
        for name, feeds in edges.items()
    }
    r = chained(c, asked(c, np.sort(rng.uniform(0, 2, 2)).tolist()), stages)
    assert r.chains is not None
    r.chains.truth["factor"] = rng.lognormal(0, 0.5, len(r.chains.truth))
    found, least_s = bound(c, r), least_totals_s(c, r, before)
    for k in (1, 2):
        assert 0.0 < found.totals_s[k] <= least_s[k] + 1e-9
    assert found.mean_for(2) >= 0.4 * least_s[2] / 2  # near enough to be of use


def test_one_run_on_one_slot_takes_its_work() -> None:
    c = cluster(1)
    r = chained(c, asked(c, [5.0]), {"a": Stage([1.0, 2.0, 3.0]), "b": Stage(4.0, after("a"))})
    assert bound(c, r).total_s == pytest.approx(10.0)
    assert bound(c, r).method == "B2 pooled SRPT"


def test_one_run_on_many_slots_takes_its_critical_path() -> None:
    c = cluster(8)
    r = chained(c, asked(c, [5.0]), {"a": Stage([1.0, 2.0, 3.0]), "b": Stage([4.0] * 3, {"a": EACH})})
    assert bound(c, r).total_s == pytest.approx(7.0)
    assert bound(c, r).method == "critical paths"


def test_runs_at_once_on_one_slot_are_bounded_by_shortest_first() -> None:
    """Three runs of 2, 3 and 4 s at once on one slot: ends at 2, 5 and 9."""
    c = cluster(1)
    r = chained(c, asked(c, [0.0] * 3), {"a": Stage(1.0), "b": Stage(1.0, after("a"))})
    assert r.chains is not None
    r.chains.truth["units"] = [1, 1, 1, 2, 2, 2]
    assert bound(c, r).totals_s.tolist() == pytest.approx([0, 2, 7, 16])


def test_work_that_only_one_type_takes_is_over_the_capacity_of_that_type() -> None:
    """Four runs at once, each 2 s of a class that only one of ten nodes serves: ends at 2, 4, 6, 8."""
    c = replace(cluster(10, types=2, classes=2, unserved=[(1, 1)]), type_idx=np.array([0] + [1] * 9))
    r = chained(c, asked(c, [0.0] * 4), {"a": Stage(1.0, class_idx=1)})
    assert r.chains is not None
    service_s = true_service_s(c, Requests(r.chains.work, r.chains.truth))[0, 0]
    assert bound(c, r).total_s == pytest.approx(service_s * (1 + 2 + 3 + 4))


@pytest.mark.parametrize("on_failure", [OnStageFailure.SKIP, OnStageFailure.DEFAULT])
def test_stages_that_a_run_can_do_without_do_not_count(on_failure: OnStageFailure) -> None:
    c = cluster(1)
    r = chained(
        c,
        asked(c, [0.0]),
        {"a": Stage(1.0), "b": Stage(5.0, after("a"), on_failure=on_failure), "c": Stage(2.0, after("b"))},
    )
    assert bound(c, r).total_s == pytest.approx(1.0)  # c is skipped with b, or not: nobody knows


def test_skipped_stages_do_not_count_and_pass_nothing_on() -> None:
    c = cluster(1)
    r = chained(
        c,
        asked(c, [0.0]),
        {"a": Stage(1.0), "b": Stage(5.0, after("a"), is_skipped=True), "c": Stage(2.0, after("a", "b"))},
    )
    assert bound(c, r).total_s == pytest.approx(3.0)


def test_requests_beside_runs_are_runs_of_one_row() -> None:
    c = cluster(1)
    r = chained(c, asked(c, [0.0, 0.0], 3.0), {"a": Stage(1.0), "b": Stage(1.0, after("a"))})
    assert bound(c, first_alone(r)).totals_s.tolist() == pytest.approx([0.0, 2.0, 7.0])


def test_a_cache_of_stages_voids_the_bound() -> None:
    c = cluster(1)
    r = chained(c, asked(c, [0.0]), {"a": Stage(1.0)})
    assert r.chains is not None
    cacheable = replace(r, chains=replace(r.chains, content_idx=np.zeros(1, np.int32)))
    assert bound_of(c, cacheable, Options(results_max=4)) is None
    assert bound_of(c, cacheable, Options()) is not None
