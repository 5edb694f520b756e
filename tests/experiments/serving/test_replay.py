"""Recordings of simulated runs replay as they were; and what the figures beside them are worth."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.builders import cluster, requests
from support.recordings import simulated
from trimtab.cli.app import app
from trimtab.domain.cluster import Cluster
from trimtab.domain.decision import Status
from trimtab.domain.options import FAULT, Cancel, Options
from trimtab.domain.requests import Requests
from trimtab.errors import ScenarioError, TraceError
from trimtab.experiments.scenario import resolve_scenario
from trimtab.experiments.scenario.from_recording import scenario_of
from trimtab.experiments.serving.compare_policies import compare
from trimtab.experiments.serving.replay import paired_by_batches, replay
from trimtab.experiments.serving.run import simulate


def mixed(slots: int = 2) -> Cluster:
    return cluster(4, types=2, slots=slots, classes=2, queue_max=0, fixed_s=0.05, unserved=[(1, 0)])


def traffic(c: Cluster, n: int = 400, seed: int = 3, **changed: Any) -> Requests:
    drawn = requests(c, n, **{"load": 0.9, "seed": seed, "noise": True, "priorities": 3, **changed})
    work = drawn.work.copy()
    work["zone_idx"], work["payload_gib"] = 0, 0.0
    work["estimate_s"] = c.best_estimate_s(work["class_idx"], work["units"])
    return replace(drawn, work=work)


@pytest.mark.parametrize(
    "policy", ["least-expected-wait", "random", "round-robin", "power-of-d", "least-connections+sjf"]
)
def test_a_simulated_run_replays_exactly(tmp_path: Path, policy: str) -> None:
    c = mixed()
    live = simulated(tmp_path, c, traffic(c), policy, seed=5)
    done = replay(tmp_path, mode="interpreted")
    (only,) = done.policies
    assert only.same_node_frac == 1.0
    assert only.served == done.requests == 400
    assert only.completions.mean_s == pytest.approx(done.live.mean_s, rel=1e-9)
    completion_s = live.state.requests["finish_s"] - live.state.work["arrival_s"]
    assert done.live.p99_s == pytest.approx(np.percentile(completion_s, 99), rel=1e-9)
    assert not done.is_hidden


def test_what_came_in_the_first_seconds_is_in_no_figure_but_in_the_run(tmp_path: Path) -> None:
    c = mixed()
    live = simulated(tmp_path, c, traffic(c), "least-expected-wait")
    arrival_s = live.state.work["arrival_s"]
    after_s = float(arrival_s[150] - arrival_s[0]) - 1e-9
    completion_s = (live.state.requests["finish_s"] - arrival_s)[150:]
    done = replay(tmp_path, after_s=after_s, mode="interpreted")
    (only,) = done.policies
    assert only.served == done.requests == 250
    assert only.same_node_frac == 1.0
    assert done.live.mean_s == pytest.approx(completion_s.mean(), rel=1e-9)
    assert only.completions.p99_s == pytest.approx(np.percentile(completion_s, 99), rel=1e-9)
    with pytest.raises(TraceError, match="no request was served while it recorded after its first 1e"):
        replay(tmp_path, after_s=1e6)


def test_whole_microseconds_are_enough(tmp_path: Path) -> None:
    c = mixed()
    simulated(tmp_path, c, traffic(c, 600), "least-expected-wait", ticks_per_s=1e6)
    (only,) = replay(tmp_path, mode="interpreted").policies
    assert abs(only.error_frac.mean_s) < 1e-3
    assert abs(only.error_frac.p99_s) < 1e-3


def test_rotated_files_replay_as_one(tmp_path: Path) -> None:
    c = mixed()
    simulated(tmp_path, c, traffic(c), "random")
    assert replay(next(tmp_path.iterdir()), mode="interpreted").requests == 400


def test_clients_that_went_away_go_away_again(tmp_path: Path) -> None:
    c = mixed()
    drawn = traffic(c, load=1.2)
    patience_s = np.where(np.arange(400) % 7 == 0, 0.4, np.inf)
    leaving = replace(drawn, leave_s=drawn.work["arrival_s"] + patience_s)
    live = simulated(tmp_path, c, leaving, "least-expected-wait", Options(cancel=Cancel.ALWAYS))
    assert live.n_cancelled > 20
    done = replay(tmp_path, mode="interpreted")
    assert done.policies[0].error_frac.mean_s == pytest.approx(0.0, abs=1e-9)
    again = simulate(trace=tmp_path, policy="least-expected-wait", mode="interpreted")
    assert (again.records.requests.status == Status.CANCELLED).sum() == live.n_cancelled
    scenario = scenario_of(tmp_path)
    compared = compare(scenario, ["random"], 1, sweep=(), out=tmp_path / "out", jobs=1, mode="interpreted")
    note, few_served = compared.notes()
    assert few_served.startswith("served less than 99.9 %")
    unserved = f"{live.n_cancelled} of 400 recorded requests were not served to their end"
    assert note == f"{unserved} ({live.n_cancelled} cancelled): their service times here are estimates"


def test_nodes_that_were_down_are_down_again(tmp_path: Path) -> None:
    c = mixed()
    drawn = traffic(c)
    start_s, end_s = (float(drawn.work["arrival_s"][r]) for r in (100, 250))
    fault = np.zeros(1, FAULT)
    fault["node_idx"], fault["start_s"], fault["end_s"], fault["mtbf_s"] = 1, start_s, end_s, np.inf

    events = [(start_s, 1, "down"), (end_s, 1, "up")]
    simulated(tmp_path, c, drawn, "least-expected-wait", Options(faults=fault), node_events=events)
    scenario = scenario_of(tmp_path)
    (struck,) = scenario.faults
    assert struck.node == "node1-1"
    assert struck.at_s == pytest.approx(start_s, abs=1e-5)
    done = replay(tmp_path, mode="interpreted")
    assert abs(done.policies[0].error_frac.mean_s) < 0.02


def test_a_drained_node_finishes_what_it_has(tmp_path: Path) -> None:
    c = mixed()
    live = simulated(tmp_path, c, traffic(c), "random", node_events=[(1e6, 2, "drained")])
    last_s = np.nanmax(live.state.requests["finish_s"])
    assert scenario_of(tmp_path).faults == () or scenario_of(tmp_path).faults[0].at_s >= last_s


def test_another_policy_is_compared_with_an_interval(tmp_path: Path) -> None:
    c = mixed()
    simulated(tmp_path, c, traffic(c, 2000), "least-expected-wait")
    done = replay(tmp_path, ["least-expected-wait", "random"], mode="interpreted")
    first, second = done.policies
    assert first.difference_s is None
    assert second.difference_s is not None
    assert second.difference_s.mean == pytest.approx(second.completions.mean_s - first.completions.mean_s)
    assert second.difference_s.ci95 is not None
    assert abs(second.difference_s.mean) > second.difference_s.ci95 > 0.0
    assert replay(tmp_path, ["random"], mode="interpreted").is_hidden  # it is not the recorded one


def test_the_scenario_comes_from_the_recording_alone(tmp_path: Path) -> None:
    c = mixed()
    simulated(tmp_path, c, traffic(c), "random")
    scenario = resolve_scenario(trace=next(tmp_path.iterdir()), policies=["random", "round-robin"])
    assert [node.name for node in scenario.cluster.each_node()] == [f"node{k}-1" for k in range(4)]
    assert set(scenario.classes) == {"class0", "class1"}
    assert scenario.classes["class1"].service_on("type0", 1.0) is None
    assert scenario.serving.cancel == "always"


def test_a_recording_without_classes_makes_no_scenario(tmp_path: Path) -> None:
    c = mixed()
    simulated(tmp_path, replace(c, class_names=()), traffic(c, 10), "random")
    with pytest.raises((ScenarioError, TraceError)):
        scenario_of(tmp_path)


def test_the_batch_interval_covers_the_long_run_difference() -> None:
    """Two AR(1) series of known means, as strongly dependent as completions at a high load."""
    rng, covered = np.random.default_rng(1), 0
    for _ in range(200):
        noise = rng.normal(size=(2, 4000))
        series = np.zeros_like(noise)
        for t in range(1, noise.shape[1]):
            series[:, t] = 0.9 * series[:, t - 1] + noise[:, t]
        found = paired_by_batches(series[0] + 3.0, series[1] + 1.0)
        assert found.ci95 is not None
        covered += abs(found.mean - 2.0) <= found.ci95
    assert 0.90 <= covered / 200 <= 0.99


def test_too_few_requests_give_no_interval() -> None:
    found = paired_by_batches(np.arange(5.0), np.zeros(5))
    assert found.mean == 2.0
    assert found.ci95 is None


def test_the_command_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from typer.testing import CliRunner

    c = mixed()
    simulated(tmp_path, c, traffic(c), "random")
    result = CliRunner().invoke(
        app, ["replay", str(tmp_path), "--policy", "random", "-p", "round-robin", "--json"]
    )
    assert result.exit_code == 0, result.output
    said = json.loads(result.output)
    assert said["is_hidden"] is False
    assert [policy["policy"] for policy in said["policies"]] == ["random", "round-robin"]
    table = CliRunner().invoke(app, ["replay", str(tmp_path), "--quiet"])
    assert "replay: random" in table.output
    late = CliRunner().invoke(app, ["replay", str(tmp_path), "--json", "--after", "1"])
    assert 0 < json.loads(late.output)["requests"] < said["requests"]
