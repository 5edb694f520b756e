"""Runs of chains by hand: a second of service per unit, each stage sent to the node of its key."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from support.builders import cluster
from support.by_hand import asked, count, fault_table, once
from support.chains import Stage, after, chained, first_alone
from support.invariants import check_all
from support.mini_policies import Emptiest, Scripted
from support.same_state import differences
from trimtab.domain.chains import Flow, OnStageFailure
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Cancel, Options
from trimtab.domain.policy import Decider, Policy
from trimtab.domain.requests import Reason, Requests, Status
from trimtab.engine.driver import Driver
from trimtab.engine.loop import DONE
from trimtab.engine.records import records_of
from trimtab.engine.simulator import run

EACH, SKIP, DEFAULT = Flow.EACH, OnStageFailure.SKIP, OnStageFailure.DEFAULT


def played(c: Cluster, r: Requests, policy: Policy | None = None, **options: Any) -> Driver:
    """The end of a run, with every invariant checked after every event."""
    driver = Driver(c, r, Options(**options), Decider.of(policy or Scripted()), mode="interpreted")
    while driver.advance(max_steps=1) != DONE:
        check_all(driver.state)
    check_all(driver.state)
    return driver


def rows(driver: Driver, stage: int, column: str = "finish_s") -> list[float]:
    """A column of the instances of a stage, by its position in the chain, of all runs."""
    state = driver.state
    groups = np.flatnonzero(state.groups["spec"] == 1 + stage)
    return state.requests[column][np.isin(state.stages["group"], groups)].tolist()


def ends(driver: Driver) -> list[float]:
    return driver.state.requests["finish_s"][: driver.n_requests].tolist()


def test_a_line_of_stages_runs_one_after_the_other() -> None:
    c = cluster(2)
    line = {
        "text": Stage(2.0),
        "image": Stage(3.0, after("text"), key=1),
        "video": Stage(1.0, after("image")),
    }
    d = played(c, chained(c, asked(c, [0.5]), line))
    assert (rows(d, 0), rows(d, 1), rows(d, 2)) == ([2.5], [5.5], [6.5])
    assert ends(d) == [6.5]
    assert count(d, "finished") == count(d, "arrived") == 1
    assert d.state.requests["start_s"][0] == 0.5


def test_a_map_fans_out_and_in() -> None:
    """Images of 1, 2 and 4 s side by side on three nodes, then a join of 1 s."""
    c = cluster(3)
    stages = {
        "text": Stage(1.0),
        "image": Stage([1.0, 2.0, 4.0], after("text")),
        "join": Stage(1.0, after("image")),
    }
    d = played(c, chained(c, asked(c, [0.0]), stages), Emptiest())
    assert rows(d, 1) == [2.0, 3.0, 5.0]
    assert ends(d) == [6.0]


def test_items_of_two_maps_follow_each_other_one_by_one() -> None:
    """Item i of the second map starts when item i of the first is done, not when all are."""
    c = cluster(4)
    stages = {
        "image": Stage([1.0, 3.0]),
        "caption": Stage([1.0, 1.0], {"image": EACH}),
        "all": Stage(1.0, after("caption")),
    }
    d = played(c, chained(c, asked(c, [0.0]), stages), Emptiest())
    assert rows(d, 1) == [2.0, 4.0]
    assert ends(d) == [5.0]


def test_a_diamond_waits_for_both_branches() -> None:
    c = cluster(3)
    stages = {
        "a": Stage(1.0),
        "b": Stage(5.0, after("a"), key=1),
        "c": Stage(2.0, after("a"), key=2),
        "d": Stage(1.0, after("b", "c")),
    }
    d = played(c, chained(c, asked(c, [0.0, 100.0]), stages))
    assert ends(d) == [7.0, 107.0]


def test_requests_without_stages_go_beside_runs() -> None:
    c = cluster(1)
    r = chained(c, asked(c, [0.0, 0.0], 2.0), {"a": Stage(1.0), "b": Stage(1.0, after("a"))})
    d = played(c, first_alone(r))
    assert ends(d) == [4.0, 2.0] or ends(d) == [4.0, 3.0]
    assert count(d, "finished") == 2


@pytest.mark.parametrize(("nodes", "moved_gib", "end_s"), [((0, 0), 0.0, 2.0), ((0, 1), 4.0, 4.0)])
def test_an_output_moves_to_the_node_of_its_reader(
    nodes: tuple[int, int], moved_gib: float, end_s: float
) -> None:
    """4 GiB over a link of 2 GiB/s."""
    c = cluster(2, nic_gib_per_s=2.0)
    stages = {
        "a": Stage(1.0, output_gib=4.0, key=nodes[0]),
        "b": Stage(1.0, after("a"), key=nodes[1]),
    }
    d = played(c, chained(c, asked(c, [0.0]), stages))
    assert ends(d) == pytest.approx([end_s])
    assert count(d, "moved_gib") == moved_gib


def test_a_node_that_fetched_an_output_keeps_it() -> None:
    """Both readers run on node 1, one after the other: one transfer of 2 s."""
    c = cluster(2, nic_gib_per_s=2.0)
    stages = {
        "a": Stage(1.0, output_gib=4.0),
        "b": Stage(1.0, after("a"), key=1),
        "c": Stage(1.0, after("a", "b"), key=1),
    }
    d = played(c, chained(c, asked(c, [0.0]), stages))
    assert ends(d) == pytest.approx([1.0 + 2.0 + 1.0 + 1.0])
    assert count(d, "moved_gib") == 4.0


def test_transfers_share_a_link() -> None:
    """Two readers on node 1 fetch 4 GiB each at once over 2 GiB/s: 4 s."""
    c = cluster(2, slots=2, nic_gib_per_s=2.0)
    stages = {"a": Stage(1.0, output_gib=4.0), "b": Stage([1.0, 1.0], after("a"), key=1)}
    d = played(c, chained(c, asked(c, [0.0]), stages))
    assert ends(d) == pytest.approx([1.0 + 4.0 + 1.0])


def test_what_crosses_zones_uses_the_link_into_the_zone() -> None:
    """Node 1 is in zone 1. Of its inputs, 2 GiB come from zone 0: at 1 GiB/s after 10 ms."""
    c = replace(cluster(2, zones=2, rtt_s=0.01), zone_gib_per_s=np.array([1.0, 1.0]))
    stages = {
        "a": Stage(1.0, output_gib=2.0),
        "b": Stage(1.0, output_gib=1.0, key=1),
        "c": Stage(1.0, after("a", "b"), key=1),
    }
    d = played(c, chained(c, asked(c, [0.0]), stages))
    origin = d.state.work["zone_idx"][-1], d.state.work["payload_gib"][-1]
    assert origin == (0, 3.0)  # policies see the zone of the largest input, and the sum
    crossing_s = 0.01 + 2.0
    start_b = 0.01  # its request comes from zone 0
    assert ends(d) == pytest.approx([max(1.0, 1.0 + start_b) + crossing_s + 1.0])
    assert count(d, "moved_gib") == 2.0


def test_a_lost_output_is_made_again() -> None:
    """Node 0 holds the output of `a` when it fails at 2 s; it is back at 3 s. `c` waits for `b` until 5 s."""
    c = cluster(2)
    stages = {
        "a": Stage(1.0, output_gib=1.0),
        "b": Stage(4.0, after("a"), key=1, output_gib=1.0),
        "c": Stage(1.0, after("a", "b"), key=1),
    }
    faults = fault_table(once(0, 2.0, 3.0))
    kept = {**stages, "a": replace(stages["a"], stored=True)}
    d = played(c, chained(c, asked(c, [0.0]), kept), faults=faults)
    assert ends(d) == [6.0]
    fetched = played(c, chained(c, asked(c, [0.0]), stages), faults=faults)
    assert ends(fetched) == [6.0]  # node 1 fetched it for `b`
    alone = {**stages, "b": Stage(4.0, key=1, output_gib=1.0)}
    lost = played(c, chained(c, asked(c, [0.0]), alone), faults=faults)
    assert ends(lost) == [4.0 + 1.0 + 1.0]  # at 4 s `a` runs again
    assert count(lost, "recomputed_s") == 1.0
    assert rows(lost, 0) == [5.0]


def test_a_stage_that_fails_ends_its_run() -> None:
    """Node 1 fails for good at 2 s; the stage there has no retries."""
    c = cluster(2)
    stages = {"a": Stage(9.0), "b": Stage(5.0, key=1, max_retries=0), "c": Stage(1.0, after("a", "b"))}
    d = played(c, chained(c, asked(c, [0.0]), stages), faults=fault_table(once(1, 2.0, np.inf)))
    row = d.state.requests[0]
    assert (row["status"], row["reason"], row["ended_s"]) == (Status.LOST, Reason.RETRIES, 2.0)
    assert count(d, "lost") == 1
    assert d.state.nodes["in_flight"].tolist() == [0, 0]
    assert rows(d, 2, "status") == [Status.CANCELLED]


@pytest.mark.parametrize(
    ("on_failure", "frac", "status"),
    [(SKIP, 0.5, Status.FINISHED), (SKIP, 0.4, Status.LOST), (DEFAULT, 1.0, Status.FINISHED)],
)
def test_a_map_bears_some_failures(on_failure: OnStageFailure, frac: float, status: Status) -> None:
    """One of two items runs on the node that fails."""
    c = cluster(2)
    some = Stage([1.0, 3.0], on_failure=on_failure, failed_max_frac=frac, max_retries=0)
    r = chained(c, asked(c, [0.0]), {"some": some, "all": Stage(1.0, after("some"))})
    assert r.chains is not None
    r.chains.work["key"][:] = [0, 1, 0]
    d = played(c, r, faults=fault_table(once(1, 2.0, np.inf)))
    assert d.state.requests["status"][0] == status
    if status is Status.FINISHED:
        assert ends(d) == [3.0]


def test_what_reads_only_skipped_outputs_is_skipped() -> None:
    c = cluster(2)
    stages = {
        "a": Stage(1.0),
        "maybe": Stage(7.0, after("a"), is_skipped=True),
        "then": Stage(7.0, after("maybe")),
        "last": Stage(1.0, after("then", "a")),
    }
    d = played(c, chained(c, asked(c, [0.0]), stages))
    assert ends(d) == [2.0]
    assert np.isnan(rows(d, 2, "start_s")).all()


def test_what_reads_all_of_a_map_is_served_though_the_map_has_nothing() -> None:
    """A map over no items, one that was left out, and the maps behind them give empty lists."""
    c = cluster(2)
    stages = {
        "list": Stage(1.0),
        "none": Stage([], after("list")),
        "behind": Stage([], after("none", flow=EACH)),
        "total": Stage(2.0, after("behind")),
        "taken": Stage(7.0, after("list"), is_skipped=True),
        "of_taken": Stage([], after("taken")),
        "unserved": Stage(7.0, after("of_taken")),
    }
    d = played(c, chained(c, asked(c, [0.0]), stages))
    assert ends(d) == [3.0]
    assert rows(d, 3) == [3.0]
    assert np.isnan(rows(d, 6, "start_s")).all()
    failing = {"all": Stage([1.0, 1.0], on_failure=SKIP, max_retries=0), "of_all": Stage(2.0, after("all"))}
    d = played(c, chained(c, asked(c, [0.0]), failing), faults=fault_table(once(0, 0.5, 1.0)))
    assert rows(d, 1) == [ends(d)[0]]


def test_errors_are_retried_and_counted() -> None:
    """Half of the attempts end in an error; with enough retries every run ends."""
    c = cluster(3, slots=4)
    stages = {"a": Stage(1.0, error_frac=0.5, max_retries=60), "b": Stage(1.0, after("a"))}
    d = run(
        c, chained(c, asked(c, (np.arange(200.0) * 0.1).tolist()), stages), Options(), Decider.of(Emptiest())
    )
    assert count(d, "finished") == 200
    assert 140 < count(d, "retries") < 270  # mean 200, standard deviation 20
    few = played(c, chained(c, asked(c, (np.arange(20.0) * 0.1).tolist()), stages), Emptiest())
    assert count(few, "finished") == 20
    none = played(c, chained(c, asked(c, [0.0]), {"a": Stage(1.0, error_frac=1.0, max_retries=2)}))
    assert count(none, "lost") == 1
    assert none.state.requests["ended_s"][0] == 3.0


def test_a_deadline_is_that_of_the_run() -> None:
    c = cluster(1)
    stages = {"a": Stage(2.0), "b": Stage(5.0, after("a"))}
    d = played(c, chained(c, asked(c, [0.0], deadline_s=3.0), stages), cancel=Cancel.ALWAYS)
    assert d.state.requests["ended_s"][0] == 3.0
    assert count(d, "cancelled") == 1
    assert count(d, "in_system") == count(d, "in_nodes") == 0


def test_records_are_of_runs() -> None:
    """Work is that of all stages; the best work is the critical path."""
    c = cluster(2)
    stages = {"a": Stage(1.0), "b": Stage([2.0, 3.0], after("a")), "c": Stage(1.0, after("b"))}
    r = chained(c, asked(c, [0.0, 50.0]), stages)
    d = played(c, r, Emptiest())
    records = records_of(d, c, r, np.full(1, np.inf)).requests
    assert records.work_s.tolist() == [7.0, 7.0]
    assert records.best_work_s.tolist() == [5.0, 5.0]
    assert records.completion_s.tolist() == [5.0, 5.0]


def test_compiled_and_interpreted_agree_and_dispatchers_share_runs() -> None:
    c = cluster(5, types=2, slots=2, zones=2, nic_gib_per_s=1.0)
    stages = {
        "a": Stage(0.5, output_gib=0.2, error_frac=0.1),
        "b": Stage([0.5, 1.0, 0.7], after("a"), output_gib=0.1, on_failure=SKIP),
        "c": Stage([0.2, 0.2, 0.2], {"b": EACH, "a": Flow.ALL}),
        "d": Stage(0.5, after("c", "b")),
    }
    r = chained(c, asked(c, (np.arange(60.0) * 0.4).tolist()), stages)
    faults = fault_table(once(0, 5.0, 7.0), once(3, 9.0, 12.0))
    options = Options(dispatchers=2, telemetry_period_s=0.5, faults=faults)
    states = [
        run(c, r, options, Decider.of(Emptiest()), mode=mode).state for mode in ("compiled", "interpreted")
    ]
    check_all(states[1])
    assert differences(*states) == []
    assert states[0].counts["finished"][0] > 50


def test_a_stage_of_known_content_is_answered_from_the_store() -> None:
    """The second run reads the outputs of the first; its last stage has a content of its own."""
    c = cluster(1)
    stages = {"a": Stage(2.0, output_gib=1.0, content=0), "b": Stage(3.0, after("a"), output_gib=1.0)}
    r = chained(c, asked(c, [0.0, 10.0]), stages)
    assert ends(played(c, r)) == [5.0, 15.0]
    d = played(c, r, stage_results_gib=5.0)
    assert ends(d) == [5.0, 13.0]
    assert (count(d, "repeatable"), count(d, "result_hits")) == (2, 1)


def test_the_store_evicts_what_is_worth_least_per_byte() -> None:
    """Room for 3 GiB. Contents 0: 4 s, 1 GiB; 1: 1 s, 2 GiB; 2: 2 s, 1 GiB. The third evicts the second."""
    c = cluster(1)
    sizes = [(4.0, 1.0), (1.0, 2.0), (2.0, 1.0)]
    r = chained(c, asked(c, (np.arange(6.0) * 10).tolist()), {"a": Stage(1.0)})
    assert r.chains is not None
    content = np.array([0, 1, 2, 0, 2, 1])
    r.chains.work["units"] = r.chains.truth["units"] = [sizes[k][0] for k in content]
    outputs = np.array([sizes[k][1] for k in content])
    r = replace(r, chains=replace(r.chains, output_gib=outputs, content_idx=content.astype(np.int32)))
    d = played(c, r, stage_results_gib=3.0)
    assert ends(d) == [4.0, 11.0, 22.0, 30.0, 40.0, 51.0]
    assert count(d, "store_gib") == 3.0  # in the last run content 1 took the place of content 2


def test_an_output_from_the_store_survives_failures() -> None:
    c = cluster(2)
    stages = {"a": Stage(1.0, output_gib=1.0, content=0), "b": Stage(1.0, after("a"), key=1)}
    r = chained(c, asked(c, [0.0, 10.0]), stages)
    d = played(c, r, stage_results_gib=9.0, faults=fault_table(once(0, 5.0, 20.0)))
    assert ends(d) == [2.0, 11.0]


@pytest.mark.parametrize("capacity_gib", [1.0, 3.0, 8.0])
def test_the_store_is_greedy_dual_size(capacity_gib: float) -> None:
    """Hits and contents against the rule on dicts, one stage at a time."""
    pick = np.random.default_rng(7)
    content = pick.zipf(1.3, 400).clip(max=40) - 1
    gib, service_s = pick.uniform(0.1, 1.5, 40), pick.uniform(0.1, 2.0, 40)
    c = cluster(1)
    r = chained(c, asked(c, (np.arange(400.0) * 10).tolist()), {"a": Stage(1.0)})
    assert r.chains is not None
    r.chains.work["units"] = r.chains.truth["units"] = service_s[content]
    r = replace(r, chains=replace(r.chains, output_gib=gib[content], content_idx=content.astype(np.int32)))
    state = run(
        c, r, Options(stage_results_gib=capacity_gib), Decider.of(Scripted()), mode="interpreted"
    ).state
    held: dict[int, float] = {}
    inflation, hits = 0.0, 0
    for k in content.tolist():
        hits += k in held
        if k not in held and gib[k] > capacity_gib:
            continue
        while k not in held and sum(gib[j] for j in held) + gib[k] > capacity_gib + 1e-12:
            least = min(held, key=lambda j: (held[j], j))
            inflation = held.pop(least)
        held[k] = inflation + service_s[k] / gib[k]
    assert state.counts["result_hits"][0] == hits
    assert set(np.flatnonzero(state.kept["place"])) == set(held)
