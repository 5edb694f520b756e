"""`trimtab compare` on training jobs, as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

CLUSTER = """\
types: {node: {accelerators: 4, memory_gib: 64}}
nodes: [{type: node, count: 2}]
"""
TRACE = "job_id,submission_time,num_gpu,duration\na,0,4,100\nb,10,8,50\nc,20,1,30\n"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    trace, cluster = tmp_path / "trace.csv", tmp_path / "cluster.yaml"
    trace.write_text(TRACE)
    cluster.write_text(CLUSTER)
    return trace, cluster


def test_the_kind_of_work_follows_from_the_trace(cli, tmp_path, files) -> None:
    out = tmp_path / "out"
    state = ("--trace", str(files[0]), "--cluster", str(files[1]))
    result = cli("compare", *state, "-p", "fifo", "-p", "srtf", "--out", str(out))
    assert result.exit_code == 0, result.stderr
    assert {path.name for path in out.iterdir()} >= {"results.json", "comparison.csv", "report.html", "jobs"}
    page = (out / "report.html").read_text()
    for text in ("GPUs of each job over time", "Allocation over time", "Goodput over time"):
        assert text in page
    assert "Utilisation of nodes over time" not in page
    results = json.loads((out / "results.json").read_text())
    assert results["jobs"] == 3


def test_json_is_all_that_is_printed(cli, tmp_path, files) -> None:
    command = ("compare", "--trace", str(files[0]), "--cluster", str(files[1]), "--policy", "fifo", "--json")
    result = cli(*command, "--out", str(tmp_path / "out"), "--no-report")
    assert json.loads(result.stdout)["scenario"] == "trace"


def test_a_limit_is_of_a_trace(cli) -> None:
    generated = cli("compare", "elastic-training", "--limit", "10")
    assert generated.exit_code == 2
    assert "--limit: needs a trace" in generated.stderr


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("--policy", "nobody"), "no such allocator"),
        (("--policy", "fifo(backfill=3)"), "fifo.backfill: wrong type"),
        (("--rate-scale", "2"), "does not apply to training jobs"),
        (("--map", "gpus=n"), "--map: does not apply to training jobs"),
        (("--trace-format", "azure-llm-2023"), "--trace-format: does not apply to training jobs"),
        (("--metric", "slo_attained_frac"), "slo_attained_frac"),
    ],
)
def test_what_does_not_fit_is_refused(cli, files, arguments: tuple[str, ...], what: str) -> None:
    result = cli("compare", "--trace", str(files[0]), "--cluster", str(files[1]), *arguments)
    assert result.exit_code == 2
    assert what in result.stderr
    assert "Traceback" not in result.stderr


def test_a_trace_of_jobs_needs_a_cluster(cli, files) -> None:
    result = cli("compare", "--trace", str(files[0]))
    assert result.exit_code == 2
    assert "--cluster FILE" in result.stderr


def test_an_allocator_that_breaks_a_rule_is_named(cli, tmp_path, files) -> None:
    own = tmp_path / "greedy.py"
    own.write_text(
        "import numpy as np\n"
        "from dataclasses import dataclass\n"
        "from trimtab.domain.allocator import Allocation, Allocator\n"
        "@dataclass(frozen=True)\n"
        "class Greedy(Allocator):\n"
        "    name = 'greedy'\n"
        "    def allocate(self, jobs, cluster, now_s, speed, memory):\n"
        "        return Allocation(counts=np.full((len(jobs), 1), 8))\n"
    )
    state = ("--trace", str(files[0]), "--cluster", str(files[1]))
    result = cli("compare", *state, "--policy", f"{own}:Greedy", "--jobs", "1")
    assert result.exit_code == 3
    assert "greedy" in result.stderr
