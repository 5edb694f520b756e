"""Long work tells how far it is, on stderr only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import DATA
from support.e2e_files import CLUSTER, write_cluster
from trimtab.cli.output import LineReporter, note_folded
from trimtab.cli.runs_progress import RunsLines
from trimtab.experiments.compare import RunsDone


def test_lines_come_with_every_quarter_but_not_for_what_is_done_at_once(capsys):
    report = LineReporter("reading")
    for done in range(0, 1001, 10):
        report(done, 1000)
    LineReporter("instant")(5, 5)
    LineReporter("unknown")(5, 0)
    assert capsys.readouterr().err.splitlines() == ["reading: 25 %", "reading: 50 %", "reading: 75 %"]


def test_steps_that_skip_quarters_report_once(capsys):
    report = LineReporter("reading")
    for done in (60, 70, 90):
        report(done, 100)
    assert capsys.readouterr().err.splitlines() == ["reading: 60 %", "reading: 90 %"]


def test_a_comparison_without_a_terminal_tells_what_runs_and_the_time_left(capsys):
    lines = RunsLines()
    lines.print()
    assert capsys.readouterr().err == ""
    lines(RunsDone(done=3, total=8, kept=2, running=("random, seed 1", "fifo, seed 1"), left_s=130.0))
    lines.print()
    said = "3 of 8 runs, 2 of them from before, about 2 min left; now random, seed 1 and 1 more\n"
    assert capsys.readouterr().err.partition(": ")[2] == said


def test_more_than_two_notes_are_folded(capsys, tmp_path):
    note_folded(["a: b", "c"], tmp_path)
    note_folded(["no zones, for x: All are near.", "c", "d: e"], Path("out/results.json"))
    assert capsys.readouterr().err.splitlines() == [
        "note: a: b",
        "note: c",
        "3 notes, in full in out/results.json: no zones, for x; c; d",
    ]


@pytest.mark.slow
def test_two_million_lines_show_progress(cli, tmp_path):
    trace, cluster = tmp_path / "t.csv", write_cluster(tmp_path / "c.yaml")
    trace.write_text("arrival_s,size\n" + "".join(f"{i}.5,1.25\n" for i in range(2_000_000)))
    shown = cli("trace", "show", trace)
    assert "2,000,000 rows" in shown.stdout
    result = cli("run", "--trace", trace, "--cluster", cluster, "--limit", 1000)
    assert result.exit_code == 0, result.stderr
    for stderr in (shown.stderr, result.stderr):
        assert stderr.count("reading t.csv: ") == 3


@pytest.mark.data
@pytest.mark.parametrize(
    ("trace", "cluster"),
    [
        ("azure_llm_2023/AzureLLMInferenceTrace_conv.csv.gz", "azure-chat.yaml"),
        ("alibaba_genai_2026/lora_request_trace.csv.gz", "genai.yaml"),
    ],
)
def test_compare_on_recorded_traces(cli, trace, cluster):
    file = DATA / trace
    if not file.exists():
        pytest.skip(f"needs {trace} in shared/data beside the checkout")
    policies = ("-p", "random", "-p", "least-connections", "-n", 1, "--no-sweep", "-j", 1)
    given = ("--trace", file, "--cluster", CLUSTER / cluster, "--limit", 2000)
    result = cli("compare", *given, *policies, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["requests"] == 2000
    assert found["results"][0]["metrics"]["finished_frac"]["mean"] > 0.5
