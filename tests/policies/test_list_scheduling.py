"""Policies for stages of runs, by hand: which stage starts next, and where."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from support.builders import cluster
from support.by_hand import asked
from support.chains import Stage, after, chained
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Options
from trimtab.domain.policy import Decider, Policy
from trimtab.domain.requests import Requests
from trimtab.domain.stage_graph import upward_ranks_s
from trimtab.engine.driver import Driver
from trimtab.engine.simulator import run
from trimtab.errors import UsageError
from trimtab.policies import find


def ranked(r: Requests) -> Requests:
    """The runs with their remaining critical paths, by estimates, and the class of what follows."""
    assert r.chains is not None
    work = r.chains.work
    work["rank_s"], following = upward_ranks_s(r.chains, work["estimate_s"])
    work["next_class_idx"] = np.where(following >= 0, work["class_idx"][following], -1)
    return r


def played(c: Cluster, r: Requests, policy: str) -> Driver:
    return run(c, r, Options(), find(policy), mode="interpreted")


def stage_starts(d: Driver) -> list[float]:
    """Start of each stage, in the order of rows."""
    return d.state.requests["start_s"][d.n_requests :].tolist()


FORK = {
    "a": Stage(1.0),
    "short": Stage(1.0, after("a")),
    "long": Stage(1.0, after("a")),
    "end": Stage(5.0, after("long")),
}


@pytest.mark.parametrize("policy", ["heft", "peft", "cpop", "late-binding+fair-runs", "downstream-aware"])
def test_the_longest_path_goes_first(policy: str) -> None:
    """Both branches are ready at 1 s, the short one earlier by row; the long one starts first."""
    c = cluster(1, queue_max=0)
    if policy.startswith("late"):
        policy = "least-connections+critical-path"
    d = played(c, ranked(chained(c, asked(c, [0.0]), FORK)), policy)
    assert stage_starts(d)[2] == 1.0
    assert stage_starts(d)[1] > 1.0


def test_first_come_first_served_takes_the_rows_in_order() -> None:
    c = cluster(1, queue_max=0)
    d = played(c, ranked(chained(c, asked(c, [0.0]), FORK)), "least-connections")
    assert stage_starts(d)[:3] == [0.0, 1.0, 2.0]


LINE = {"a": Stage(2.0), "b": Stage(2.0, after("a")), "c": Stage(2.0, after("b"))}


@pytest.mark.parametrize(
    ("policy", "ends"),
    [
        ("least-connections+fair-runs", [6.0, 12.0]),
        ("downstream-aware", [6.0, 12.0]),
        ("heft", [10.0, 12.0]),
        ("least-connections", [10.0, 12.0]),
    ],
)
def test_runs_are_finished_or_begun(policy: str, ends: list[float]) -> None:
    """Two equal runs on one slot: by the longest path, or first come, they end together."""
    c = cluster(1, queue_max=0)
    d = played(c, ranked(chained(c, asked(c, [0.0, 0.5]), LINE)), policy)
    assert d.state.requests["finish_s"][:2].tolist() == ends


def test_least_laxity_counts_the_rest_of_the_run() -> None:
    """While one run holds the slot, two wait: one due at 20 s with 12 s to go, one due at 12 s with 2 s."""
    c = cluster(1, queue_max=0)
    r = asked(c, [0.0, 0.1, 0.2], deadline_s=[30.0, 12.0, 20.0])
    r = chained(c, r, {"a": Stage(1.0), "b": Stage(1.0, after("a"))})
    assert r.chains is not None
    r.chains.work["rank_s"] = [2, 1, 2, 1, 12, 11]
    d = played(c, r, "least-connections+least-laxity")
    assert stage_starts(d)[4] == 1.0


@pytest.mark.parametrize(
    ("policy", "order"),
    [("min-min", [1.0, 2.0, 3.0]), ("max-min", [3.0, 2.0, 1.0])],
)
def test_min_min_and_max_min_compare_what_waits(policy: str, order: list[float]) -> None:
    c = cluster(1, queue_max=0)
    r = asked(c, [0.0, 0.1, 0.2, 0.3], [5.0, 2.0, 3.0, 1.0])
    d = played(c, r, policy)
    start = d.state.requests["start_s"]
    assert r.work["units"][np.argsort(start)][1:].tolist() == order


def test_sufferage_gives_the_node_to_what_loses_most_without_it() -> None:
    """Class 0 takes 4 s on the slow type and 2 s on the fast one; class 1, served by the fast type alone,
    loses most without it, though it came last."""
    c = cluster(2, types=2, classes=2, speeds=[1.0, 2.0], queue_max=0, unserved=[(1, 0)])
    r = asked(c, [0.0, 0.0, 0.1, 0.2], [4.0, 8.0, 4.0, 4.0], class_idx=[0, 0, 0, 1])
    start = played(c, r, "sufferage").state.requests["start_s"]
    assert start[3] < start[2]
    start = played(c, r, "min-min").state.requests["start_s"]
    assert start[2] < start[3]


class Noting(Policy):
    """Sends all work to node 0 and notes what it is told of runs."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, ...]] = []

    def choose(self, cluster: Any, request: Any) -> Any:
        SEEN.append((request.run_left_s, request.run_path_s, request.output_gib))
        return 0


SEEN: list[tuple[float, float, float]] = []


def test_what_is_told_of_a_run() -> None:
    """A run of 1 s, twice 2 s, and 4 s: 9 s, then 8, 8 while the first of two waits for its slot, and 4."""
    c = cluster(1)
    stages = {
        "a": Stage(1.0, output_gib=0.5),
        "b": Stage([2.0, 2.0], after("a"), output_gib=0.25),
        "c": Stage(4.0, after("b")),
    }
    SEEN.clear()
    run(c, ranked(chained(c, asked(c, [0.0]), stages)), Options(), Decider.of(Noting()), mode="interpreted")
    assert SEEN == [(9.0, 7.0, 0.5), (8.0, 7.0, 0.25), (8.0, 7.0, 0.25), (4.0, 7.0, 0.0)]


def test_the_count_of_a_map_is_declared_before_its_input_and_true_after_it() -> None:
    """`b` is declared to take 4 s, and turns out to be three instances of 2 s: 1 + 4 + 4 s, then 6 + 4 s."""
    c = cluster(1)
    stages = {"a": Stage(1.0), "b": Stage([2.0] * 3, after("a")), "c": Stage(4.0, after("b"))}
    r = ranked(chained(c, asked(c, [0.0]), stages))
    assert r.chains is not None
    r = replace(r, chains=replace(r.chains, expected_s=np.array([1.0, 4.0, 4.0])))
    SEEN.clear()
    run(c, r, Options(), Decider.of(Noting()), mode="interpreted")
    assert [seen[0] for seen in SEEN] == [9.0, 10.0, 10.0, 10.0, 4.0]


def test_a_held_stage_does_not_pass_a_successor_that_is_ready_at_that_moment() -> None:
    """The slot frees at 1 s, when the first run's last stage becomes ready: the oldest run goes on."""
    c = cluster(1, queue_max=0)
    stages = {"a": Stage(1.0), "b": Stage(1.0, after("a"))}
    d = played(c, ranked(chained(c, asked(c, [0.0, 0.5]), stages)), "least-connections+fair-runs")
    assert d.state.requests["finish_s"][:2].tolist() == [2.0, 4.0]


class Rests(Policy):
    """Sends all work to node 0 and notes the longest path left of its run, and how many runs there are."""

    def choose(self, cluster: Any, request: Any) -> Any:
        SEEN.append((request.serial, request.run_rest_s, request.n_runs))
        return 0


def test_the_longest_path_left_of_a_run() -> None:
    """a 1 s, then b 5 s and d 2 s, then c 1 s. While b is not over, it is the longest path for d too."""
    c = cluster(1)
    stages = {
        "a": Stage(1.0),
        "b": Stage(5.0, after("a")),
        "d": Stage(2.0, after("a")),
        "c": Stage(1.0, after("b", "d")),
    }
    SEEN.clear()
    r = ranked(chained(c, asked(c, [0.0, 20.0]), stages))
    run(c, r, Options(), Decider.of(Rests()), mode="interpreted")
    assert [seen[1:] for seen in SEEN[:4]] == [(7.0, 1), (6.0, 1), (6.0, 1), (1.0, 1)]
    assert SEEN[4][1:] == (7.0, 1)


def test_runs_that_are_over_do_not_count() -> None:
    c = cluster(2)
    SEEN.clear()
    r = ranked(chained(c, asked(c, [0.0, 0.5, 9.0]), {"a": Stage(1.0), "b": Stage(1.0, after("a"))}))
    run(c, r, Options(), Decider.of(Rests()), mode="interpreted")
    assert [seen[2] for seen in SEEN] == [1, 2, 2, 2, 1, 1]


@pytest.mark.parametrize(
    ("units", "fast", "ends"),
    [
        ([6.0, 4.0, 4.0], 2.0, [3.0, 4.0, 5.0]),  # the third: 3 + 2 on the fast node, 4 + 4 on the other
        ([6.0, 4.0], 3.0, [2.0, 10 / 3]),  # the second: 2 + 4/3 on the fast node, 4 on the slow one
    ],
)
def test_a_lone_run_waits_for_the_node_where_it_ends_first(
    units: list[float], fast: float, ends: list[float]
) -> None:
    c = cluster(
        2, types=2, speeds=[1.0, 1.2 * fast], queue_max=0
    )  # type 1 takes 1.2 times the work of class 0
    r = ranked(chained(c, asked(c, [0.0]), {f"s{k}": Stage(size) for k, size in enumerate(units)}))
    found = played(c, r, "downstream-aware").state.requests["finish_s"]
    assert found[1:].tolist() == pytest.approx(ends)
    assert found[0] == pytest.approx(max(ends))
    assert played(c, r, "heft").state.requests["finish_s"][0] >= max(ends)


@pytest.mark.parametrize(
    ("field", "value"), [("ageing", -1.0), ("patient", -1), ("w_rank", -0.1), ("full", 0.0)]
)
def test_parameters_out_of_range_are_named(field: str, value: float) -> None:
    with pytest.raises(UsageError, match=f"downstream-aware.{field}"):
        find(f"downstream-aware({field}={value})")
