"""Requests and training on the same nodes: rules by hand, what both sides see of each other, bad input."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.shared_clusters import small_shared
from support.training_runs import write_pairs
from trimtab.errors import ScenarioError, UsageError
from trimtab.experiments.colocation import shared_run
from trimtab.experiments.colocation.shared_kind import SHARED_KIND
from trimtab.experiments.colocation.shared_run import (
    SharedInputs,
    SharedRecords,
    attained,
    exclusive_hours,
    run_shared,
    static_attained,
    trained_on,
)
from trimtab.experiments.colocation.sharing_policies import (
    Lending,
    MuxFlow,
    Static,
    canonical_sharing,
    find_sharing,
)
from trimtab.experiments.kinds import load_any
from trimtab.experiments.scenario.scenario_parts import Parts


@cache
def inputs(**changed: Any) -> SharedInputs:
    return SHARED_KIND.build(load_any(small_shared(**changed)), 0, None)


@cache
def run_of(sharing: Any, **changed: Any) -> SharedRecords:
    return run_shared(inputs(**changed), sharing, "interpreted")


def test_lending_keeps_what_was_filled_and_a_reserve() -> None:
    busy = np.array([2.0, 1.0, 0.0, 0.0, 0.0, 3.0, 0.0])
    lending = Lending(reserve_frac=0.5, rounds=2)
    # All; ⌈2 · 1.5⌉ + 1 = 4, twice: the fullest of two rounds counts; ⌈1.5⌉ + 1 = 3; 1; 1; 6.
    assert [lending.keeps(busy[:t], 6) for t in range(7)] == [6, 4, 4, 3, 1, 1, 6]
    assert Lending(spare=0).keeps(np.zeros(3), 6) == 1
    assert [Static(2).keeps(busy[:t], 3) for t in range(3)] == [2, 2, 2]


@pytest.mark.parametrize("serve_with", ["best-fit", "least-connections"])
def test_requests_and_jobs_are_never_on_a_node_together(serve_with: str) -> None:
    """Requests end before jobs begin, and begin again `return_s` after the node was asked back."""
    run = run_of(Lending(), serve_with=serve_with)
    rows, scenario = run.requests.requests, run.inputs.scenario
    assert 0.0 < run.trains.mean() < 1.0
    assert rows.finished.all()  # none is stuck
    assert attained(run.requests) == 1.0
    for t, j in np.argwhere(run.trains):
        begin_s, end_s = t * scenario.round_s, (t + 1) * scenario.round_s
        if t + 1 < len(run.trains) and not run.trains[t + 1, j]:
            end_s += scenario.return_s
        here = rows.node_idx == j
        assert not (here & (rows.start_s < end_s) & (rows.finish_s > begin_s)).any()
    returned = np.argwhere(run.trains[:-1] & ~run.trains[1:])
    assert len(returned)


def test_idle_lent_nodes_serve() -> None:
    """One job needs one node for a minute; the others serve though lending would lend them."""
    generate = small_shared()["jobs"]["generate"] | {"jobs": 1, "duration": {"median_s": 20, "cv": 1e-3}}
    jobs = {"generate": generate}
    run = run_shared(inputs_of(jobs=jobs, serve_with="least-connections"), Lending(), "interpreted")
    rows, scenario = run.requests.requests, run.inputs.scenario
    assert run.trains.sum() <= 3
    free = run_shared(inputs_of(jobs=jobs, serve_with="least-connections"), Static(4), "interpreted")
    later = rows.arrival_s > 5 * scenario.round_s
    assert np.array_equal(rows.finish_s[later], free.requests.requests.finish_s[later])
    assert set(rows.node_idx[later].tolist()) == {0, 1, 2, 3}


def inputs_of(**changed: Any) -> SharedInputs:
    return SHARED_KIND.build(load_any(small_shared(**changed)), 0, None)


def test_jobs_train_on_lent_nodes_only() -> None:
    made = inputs()
    one, two = (run_of(Static(k)) for k in (3, 2))
    hours = (made.rounds - 1) * 30 / 3600  # no decision is before the first round has ended
    assert 0 < one.gpu_hours <= 2 * hours
    assert one.gpu_hours < two.gpu_hours <= 4 * hours
    assert one.jobs.used_gpus.max() == 2
    assert not one.trains[:, :3].any()
    assert two.gpu_hours == pytest.approx(exclusive_hours(trained_on(made, np.arange(4) >= 2)))


def test_gains_are_against_the_smallest_static_partition_that_attains_the_target() -> None:
    made, run = inputs(), run_of(Lending())
    target = min(attained(run.requests), 0.99)
    fewest = next(k for k in range(1, 5) if static_attained(made, k, "interpreted") >= target)
    assert run.static_hours == exclusive_hours(trained_on(made, np.arange(4) >= fewest))
    measured = SHARED_KIND.measure(run)
    assert measured["gained_gpu_hours"] == pytest.approx(run.gpu_hours - run.static_hours)
    # 150 requests of 20 s, each on one of eight GPUs, in rounds of 30 s
    rows = run_of(Static(4)).requests.requests
    busy_s = np.minimum(rows.finish_s, made.rounds * 30) - rows.start_s
    assert measured["idle_gpu_hours"] == pytest.approx((8 * made.rounds * 30 - busy_s.sum()) / 3600)


def test_ways_of_sharing_are_measured_against_the_same_run_of_a_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = inputs_of()
    first = run_shared(made, Lending(), "interpreted")

    def again(*_: Any) -> None:
        raise AssertionError("the partition trains twice")

    monkeypatch.setattr(shared_run, "trained_on", again)
    assert run_shared(made, Lending(spare=2), "interpreted").static_hours == first.static_hours


@pytest.mark.parametrize(
    ("measured", "guest", "host", "busy"),
    [(False, 1 / (0.6 + 0.7), 1 / (0.6 + 0.7), 0.6), (True, 0.6, 0.5, 1.0)],
)
def test_guests_slow_requests_and_are_slowed_as_the_formula_or_the_measured_pair_says(
    tmp_path: Path, measured: bool, guest: float, host: float, busy: float
) -> None:
    """One GPU, rounds of 1,000 s, requests of 20 s that keep 0.6 of it busy, a job that keeps 0.7 busy.

    `guest` and `host` are what job and request keep of their speeds. Measured requests can't share a GPU with
    their own kind: they keep all of it busy.
    """
    base = small_shared()
    requests = base["requests"]
    node = requests["cluster"]["types"]["gpu-node"] | {"accelerators": 1, "slots": 1}
    arrival = {"process": "poisson", "rate_per_s": 0.004}
    generate = requests["workload"]["generate"] | {"requests": 40, "arrival": arrival}
    requests = requests | {
        "cluster": {
            "types": {"gpu-node": node},
            "nodes": [{"type": "gpu-node", "count": 1, "queue_max": 0}],
        },
        "workload": {"generate": generate},
        "faults": [{"at_s": 1e6, "duration_s": 1.0, "factor": 0.5}],  # after the end
    }
    generate = base["jobs"]["generate"] | {"jobs": 1, "duration": {"median_s": 1e6, "cv": 1e-3}}
    changed: dict[str, Any] = {}
    if measured:
        generate["models"] = {"v": {"gpus_max": 2, "measured_as": "LM (batch size 10)"}}
        generate["pairs"] = {"file": str(write_pairs(tmp_path / "pairs.json")), "gpu": "gpu"}
        changed["request_measured_as"] = "LM (batch size 20)"
    jobs = {"generate": generate}
    made = inputs_of(requests=requests, jobs=jobs, round_s=1000.0, return_s=30.0, **changed)
    run = run_shared(made, MuxFlow(), "interpreted")
    rows = run.requests.requests
    done_s, checked = 0.0, 0
    for t in range(1, made.rounds):
        before = np.minimum(rows.finish_s, 1000 * t) - np.maximum(rows.start_s, 1000 * (t - 1))
        load = before[before > 0].sum() / 1000
        share = min(max(math.floor((1 - busy * load - 0.1) / 0.1 + 1e-9) * 0.1, 0.1), 0.9)
        assert run.trains[t, 0]
        inside = (rows.start_s > 1000 * t + 1) & (rows.finish_s < 1000 * (t + 1))
        slowed_s = (rows.finish_s - rows.start_s)[inside]
        assert slowed_s == pytest.approx(20 * (1 + share * (1 / host - 1)), rel=1e-4)
        checked += int(inside.sum())
        seconds = 1000 - (30 if t == 1 else 0)  # the restart
        done_s += seconds * min(1 - load * (1 - guest), share / 0.7)
    assert checked > 20
    assert run.gpu_hours == pytest.approx(done_s / 3600)
    assert run.one_gpu_hours == run.gpu_hours


@pytest.mark.parametrize(
    ("pairs", "job_type", "told"),
    [
        (False, "LM (batch size 20)", "request_measured_as: .*expected a file of measured pairs"),
        (
            True,
            "LM (batch size 5)",
            r"pairs.json: measured_as: no such job type \(got 'LM \(batch",
        ),
    ],
)
def test_pairs_that_are_not_measured_are_named(tmp_path: Path, pairs: bool, job_type: str, told: str) -> None:
    generate = small_shared()["jobs"]["generate"]
    if pairs:
        generate["pairs"] = {"file": str(write_pairs(tmp_path / "pairs.json")), "gpu": "gpu"}
    with pytest.raises(ScenarioError, match=told):
        run_shared(
            inputs_of(jobs={"generate": generate}, request_measured_as=job_type), MuxFlow(), "interpreted"
        )


def with_class(**changed: Any) -> dict[str, Any]:
    requests: dict[str, Any] = small_shared()["requests"]
    requests["classes"]["answer"].update(changed)
    return {"requests": requests}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (with_class(slo_ttft_s=1), r"scenario: requests\.classes\.answer\.slo_ttft_s: is of tokens"),
        (with_class(slo_s=-1), r"requests\.classes\.answer\.slo_s"),
        ({"jobs": {}}, r"jobs: .*generate or trace"),
        ({"serve_with": "none"}, r"scenario: serve_with: no such policy"),
        ({"train_with": "none"}, r"scenario: train_with: no such allocator"),
        ({"restart": "flat(seconds_s=-1)"}, r"scenario: restart: flat\.seconds_s: out of range"),
    ],
)
def test_what_is_wrong_is_named_as_in_the_file(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(ScenarioError, match=told):
        SHARED_KIND.build(SHARED_KIND.with_parts(load_any(small_shared(**changed)), Parts()), 0, None)


def test_gpus_that_are_not_whole_are_named_as_in_the_file() -> None:
    requests = small_shared()["requests"]
    requests["cluster"]["types"]["gpu-node"]["accelerators"] = 0
    made = SHARED_KIND.build(load_any(small_shared(requests=requests)), 0, None)
    with pytest.raises(
        ScenarioError, match=r"requests\.cluster\.types\.gpu-node\.accelerators: training needs"
    ):
        _ = made.training


def test_guests_need_generated_jobs(tmp_path: Any) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text("job_id,submit_s,gpus,duration_s\na,0,1,100\n")
    made = inputs_of(jobs={"trace": {"file": str(trace)}})
    assert run_shared(made, Lending(), "interpreted").gpu_hours > 0
    with pytest.raises(ScenarioError, match="has no guests; expected generated jobs"):
        run_shared(made, MuxFlow(), "interpreted")


def test_names_of_ways_of_sharing() -> None:
    assert canonical_sharing("lending(reserve_frac=0.25)") == "lending"
    assert canonical_sharing("muxflow(limit=1.5)") == "muxflow(limit=1.5)"
    wrong = (
        "borrowing",
        "static(nodes=0)",
        "lending(reserve_frac=-1)",
        "lending(rounds=0)",
        "muxflow(limit=0.9)",
    )
    for spec in wrong:
        with pytest.raises(UsageError):
            find_sharing(spec)


def test_the_built_in_scenario_is_whole() -> None:
    scenario = load_any("shared-cluster")
    for policy in scenario.policies:
        find_sharing(policy)
