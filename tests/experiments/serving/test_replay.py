"""Recordings of simulated runs replay as they were; and what the figures beside them are worth."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from support.builders import cluster, requests
from support.recordings import simulated
from trimtab.cli.app import app
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import FAULT, Cancel, Options
from trimtab.domain.requests import Requests, Status
from trimtab.errors import ScenarioError, TraceError
from trimtab.experiments.compare_policies import compare
from trimtab.experiments.scenario import resolve_scenario
from trimtab.experiments.scenario.from_recording import scenario_of
from trimtab.experiments.service_fit import fit_service
from trimtab.experiments.serving.replay import paired_by_batches, replay
from trimtab.experiments.serving.run import simulate
from trimtab.traces import read_trace


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
    assert struck.node == "node1"
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
    assert [node.name for node in scenario.cluster.each_node()] == [f"node{k}" for k in range(4)]
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


def test_a_recording_alone_gives_the_service_times_back(tmp_path: Path) -> None:
    c = mixed()
    simulated(tmp_path, c, traffic(c, 600), "least-expected-wait")
    fitted = fit_service(read_trace(tmp_path))
    assert fitted.fits
    for fit in fitted.fits:
        row, column = c.class_names.index(fit.class_name), c.type_names.index(fit.node_type.split(" (")[0])
        assert abs(fit.unit_s - c.unit_s[row, column]) <= max(2 * fit.unit_ci95_s, 1e-6)


CLUSTER_OF_LOG = """
types: {a100: {memory_gib: 80, slots: 2}}
nodes: [{type: a100, count: 3}]
classes: {chat: {fixed_s: 0.2, unit_s: 0.02, slo_s: 20}}
"""


@pytest.fixture(scope="module")
def own_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a cluster and a log, of a simulated run, as others write logs."""
    folder = tmp_path_factory.mktemp("own-log")
    (folder / "cluster.yaml").write_text(CLUSTER_OF_LOG)
    rng = np.random.default_rng(4)
    arrival_s = np.round(rng.exponential(0.5, 300).cumsum(), 3)
    trace = pl.DataFrame({"arrival_s": arrival_s, "size": rng.integers(10, 200, 300).astype(float)})
    run = simulate(trace=trace, cluster=folder / "cluster.yaml", policy="round-robin", mode="interpreted")
    done = run.requests.sort("arrival_s")
    lines = ["when;tokens;latency_ms;host"] + [
        f"{at:.3f};{size:g};{1000 * (finish - at):.6f};{node}"
        for at, size, finish, node in zip(
            arrival_s, trace["size"], done["finish_s"], done["node"], strict=True
        )
    ]
    (folder / "log.csv").write_text("\n".join(lines) + "\n")
    return folder


OWN_COLUMNS = [
    *("--delimiter", ";", "--map", "arrival_s=when", "--map", "size=tokens", "--map", "node=host"),
    *("--map", "recorded_s=latency_ms*0.001"),
]


def test_a_log_of_ones_own_replays_with_its_policy_exactly_and_with_another_not(own_log: Path) -> None:
    files = [str(own_log / "log.csv"), "--cluster", str(own_log / "cluster.yaml")]
    given = ["replay", *files, *OWN_COLUMNS, "--json", "-p", "round-robin", "-p", "random"]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 0, result.output
    said = json.loads(result.output)
    same, other = said["policies"]
    assert said["requests"] == 300
    assert same["completions"]["mean_s"] == pytest.approx(said["live"]["mean_s"], abs=2e-6)
    assert same["completions"]["p99_s"] == pytest.approx(said["live"]["p99_s"], abs=2e-6)
    assert same["same_node_frac"] == 1.0
    assert 0.2 < other["same_node_frac"] < 0.5  # one of three nodes, at random
    assert said["live_policy"] is None
    assert said["is_hidden"] is False
    part = CliRunner().invoke(app, [*given, "--limit", "100"])
    assert json.loads(part.output)["requests"] == 100


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--cluster", "cluster.yaml", *OWN_COLUMNS], "a log does not tell its policy"),
        (["--cluster", "cluster.yaml", *OWN_COLUMNS[:6], "-p", "random"], "--map recorded_s=COLUMN"),
        (["--cluster", "cluster.yaml", *OWN_COLUMNS, "--sample", "0.5"], "does not apply to a replay"),
        ([*OWN_COLUMNS, "-p", "random"], "--cluster FILE"),
    ],
)
def test_what_a_log_lacks_for_a_replay_is_named(own_log: Path, given: list[str], told: str) -> None:
    given = [str(own_log / part) if part == "cluster.yaml" else part for part in given]
    result = CliRunner().invoke(app, ["replay", str(own_log / "log.csv"), *given])
    assert result.exit_code == 2
    assert told in " ".join(result.output.split())


def test_options_of_logs_are_refused_for_recordings(tmp_path: Path) -> None:
    c = mixed()
    simulated(tmp_path, c, traffic(c, 10), "random")
    result = CliRunner().invoke(app, ["replay", str(tmp_path), "--map", "size=tokens"])
    assert result.exit_code == 2
    assert "--map" in result.output
    assert "does not apply to a recording" in " ".join(result.output.split())
