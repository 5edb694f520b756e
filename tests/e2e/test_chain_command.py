"""`trimtab chain`: predictions, sizing, and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trimtab.experiments.serving import run, serving_kind

TEXT = """
name: two-steps
cluster: {types: {x: {memory_gib: 1, usd_per_hour: 1}}, nodes: [{type: x, count: 2}]}
classes: {write: {unit_s: 1}, draw: {unit_s: 1}}
chains:
  story:
    stages:
      text: {class: write, size: 1}
      image: {class: draw, after: [text], size: 4}
workload:
  generate: {requests: 60, arrival: {process: poisson, rate_per_s: 1}, mix: {story: {share: 1}}}
  load: 0.7
"""


@pytest.fixture
def case(tmp_path: Path) -> Path:
    file = tmp_path / "two-steps.yaml"
    file.write_text(TEXT)
    return file


def test_simulate_names_the_bottleneck(cli: Any, case: Path) -> None:
    result = cli("chain", "simulate", case, "--json")
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    assert [stage["stage"] for stage in told["stages"]] == ["story.text", "story.image"]
    assert told["bottleneck"].startswith("story.image is the bottleneck")
    assert [stage["service_s"] for stage in told["stages"]] == [1.0, 4.0]
    assert told["metrics"]["stretch_mean"] >= 1.0
    table = cli("chain", "simulate", case)
    assert table.exit_code == 0
    for part in ("story.image", "is the bottleneck", "critical path"):
        assert part in table.stdout


def test_tasks_of_a_workflow_are_added_up_by_tool(cli: Any, tmp_path: Path) -> None:
    tasks = [{"id": f"cut_ID{k}", "children": ["join_ID3"]} for k in (1, 2)] + [{"id": "join_ID3"}]
    seconds = [{"id": task["id"], "runtimeInSeconds": 5 + k} for k, task in enumerate(tasks)]
    workflow = {"specification": {"tasks": tasks}, "execution": {"tasks": seconds}}
    file = tmp_path / "join.json"
    file.write_text(json.dumps({"workflow": workflow}))
    nodes = Path(__file__).parents[2] / "examples" / "clusters" / "workflows-4.yaml"
    result = cli("chain", "simulate", "--trace", file, "--cluster", nodes, "--json")
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    stages = [(stage["stage"], stage["served"], stage["service_s"]) for stage in told["stages"]]
    assert stages == [("cut", 2, 5.5), ("join", 1, 7.0)]
    assert told["bottleneck"].startswith("join is the bottleneck")
    (path,) = told["paths"]
    assert [(step["stage"], step["service_s"]) for step in path["steps"]] == [
        ("graph-1.cut_ID2", 6.0),
        ("graph-1.join_ID3", 7.0),
    ]
    assert path["completion_s"] == 13.0


def test_size_adds_nodes_until_the_objective_is_met(cli: Any, case: Path) -> None:
    result = cli("chain", "size", case, "--slo", "completion_p99<9", "--seeds", 1, "--json")
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    values = [step["metric"] for step in told["steps"]]
    assert told["is_met"]
    assert values[-1] <= 9 < values[0]
    assert [step["usd_per_hour"] for step in told["steps"]] == [2.0 + k for k in range(len(values))]


def test_an_objective_that_is_met_needs_no_nodes(cli: Any, case: Path) -> None:
    told = json.loads(
        cli("chain", "size", case, "--slo", "completion_p99_s<1000", "--seeds", 1, "--json").stdout
    )
    assert told["is_met"]
    assert [step["added"] for step in told["steps"]] == [""]


@pytest.mark.parametrize("slo", ["fast", "completion_p99", "colour<3"])
def test_an_objective_that_is_none_is_refused(cli: Any, case: Path, slo: str) -> None:
    result = cli("chain", "size", case, "--slo", slo)
    assert result.exit_code == 2
    for part in ("--slo", slo, "completion_p99_s<60"):
        assert part in result.stderr


def test_a_scenario_without_chains_is_refused(cli: Any) -> None:
    result = cli("chain", "simulate", "tiny")
    assert result.exit_code == 2
    assert "has no runs of chains" in result.stderr


def test_a_run_of_chains_writes_its_stages_and_a_gantt_chart(cli: Any, case: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert cli("run", case, "--out", out, "--quiet").exit_code == 0
    assert (out / "stages.parquet").exists()
    page = (out / "report.html").read_text()
    assert "Stages of chains" in page
    assert 'id="gantt"' in page


def test_the_store_of_stage_results_is_shown_beside_the_best_possible(cli: Any, case: Path) -> None:
    text = TEXT.replace("    stages:", "    contents: {count: 5, zipf: 1}\n    stages:")
    text = text.replace("size: 1}", "size: 1, output_gib: 1}").replace("size: 4}", "size: 4, output_gib: 1}")
    case.write_text(text + "serving: {stage_results: {gib: 4}}\n")
    told = json.loads(cli("chain", "simulate", case, "--json").stdout)
    assert 0.3 < told["metrics"]["result_hit_frac"] <= told["best_store_hit_frac"] < 1.0
    assert "The store answers" in " ".join(cli("chain", "simulate", case).stdout.split())


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails a test that compiles kernels, which takes long, before it refuses."""

    def never(*_: Any) -> None:
        raise AssertionError("kernels are compiled")

    monkeypatch.setattr(run, "are_runs_compiled", lambda *_: True)
    monkeypatch.setattr(run, "compile_kernels", never)
    monkeypatch.setattr(serving_kind, "compile_bounds", never)


@pytest.mark.parametrize("policy", ["what-if", "auto"])
def test_policies_that_simulate_candidates_run_chains(cli: Any, case: Path, policy: str) -> None:
    """The runs of another seed are simulated at the start, so there is a choice from the first plan on."""
    told = json.loads(cli("chain", "simulate", case, "--policy", policy, "--json").stdout)
    assert told["metrics"]["completion_mean_s"] > 0.0


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("text: {class: write,", "text: {class: write, after: [image],", ("story.stages", "image", "cycle")),
        ("after: [text]", "after: [nope]", ("story.stages.image.after", "nope", "known stage")),
        ("size: 4", "size: -4", ("story.stages.image.size", "-4", "greater than 0")),
        ("size: 4", "size: 4, output_gib: -1", ("story.stages.image.output_gib", "-1", "greater than 0")),
        ("image: {", "text: {", ("text", "given twice")),
        (
            "draw: {unit_s: 1}",
            "draw: {unit_s: {}}",
            ("story.stages.image.class", "draw", "some node type serves"),
        ),
    ],
    ids=["cycle", "edge to nowhere", "negative size", "negative output", "stage twice", "fits no node"],
)
def test_a_chain_that_cannot_be_is_refused(
    cli: Any, case: Path, old: str, new: str, parts: tuple[str, ...]
) -> None:
    assert old in TEXT
    case.write_text(TEXT.replace(old, new))
    result = cli("compare", case)
    assert result.exit_code == 2
    for part in (case.name, *parts):
        assert part in result.stderr


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("command", [("compare",), ("run",), ("chain", "simulate")], ids="-".join)
def test_a_workflow_with_a_cycle_is_refused(cli: Any, tmp_path: Path, command: tuple[str, ...]) -> None:
    tasks = [{"id": "a", "name": "cut", "parents": ["b"]}, {"id": "b", "name": "cut", "parents": ["a"]}]
    file = tmp_path / "loop.json"
    file.write_text(json.dumps({"workflow": {"specification": {"tasks": tasks}}}))
    nodes = Path(__file__).parents[2] / "examples" / "clusters" / "workflows-4.yaml"
    result = cli(*command, "--trace", file, "--cluster", nodes)
    assert result.exit_code == 2
    for part in ("loop.json", "a cycle", "a → b"):
        assert part in result.stderr
