"""`trimtab chain run --on simulated`: times worked out by hand, costs of a recorded run, refusals."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

CHAINS = """
from trimtab.chains import chain, stage

def unused(*_):
    raise AssertionError("the code of a simulated stage runs")

@stage(cost_s=4.0)
def scenes(prompt: str) -> list[str]: return unused()

@stage(cost_s=10.0, labels={"accelerator": "quick"})
def draw(scene: str) -> bytes: return unused()

@stage(cost_s=2.0, size="words", labels={"accelerator": "slow"})
def speak(words: str, scene: str) -> bytes: return unused()

@stage(cost_s=8.0)
def film(pictures: list[bytes], speech: bytes) -> bytes: return unused()

@chain
def story(prompt: str):
    found = scenes(prompt)
    return film(draw.map(found), speak(prompt, found[0]))
"""
NAMED = """
from trimtab.chains import chain, stage

@stage
def parts(text: str) -> list[str]: return text.split()

@stage
def length(part: str) -> int: return len(part)

@stage
def total(lengths: list[int]) -> int: return sum(lengths)

@chain
def counted(text: str):
    return total(length.map(parts(text)))
"""
NODES = """
types: {quick: {memory_gib: 16, accelerator: cpu}, slow: {memory_gib: 16, speed: 0.5}}
nodes: [{type: quick}, {type: slow}]
"""


ON = ("--on", "simulated")


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for module in ("told_story", "measured_parts"):  # each test has its own
        monkeypatch.delitem(sys.modules, module, raising=False)
    (tmp_path / "told_story.py").write_text(CHAINS)
    (tmp_path / "measured_parts.py").write_text(NAMED)
    (tmp_path / "nodes.yaml").write_text(NODES)
    (tmp_path / "inputs.txt").write_text("abc\n")
    return tmp_path


def test_a_run_is_predicted_by_what_its_stages_declare(cli: Any, case: Path) -> None:
    """Pictures need the quick node; the three letters are spoken on the slow one meanwhile."""
    ran = cli(
        "chain", "run", "told_story.py:story", "-i", "inputs.txt", "--on", "simulated", "--items", "scenes=3",
        "--cluster", "nodes.yaml", "--policy", "least-expected-completion", "--out", "out.jsonl",
    )  # fmt: skip
    assert ran.exit_code == 0, ran.stderr
    (told,) = map(json.loads, Path("out.jsonl").read_text().splitlines())
    assert told == {"input": 0, "state": "done", "elapsed_s": pytest.approx(4.0 + 3 * 10.0 + 8.0)}
    assert "all over after 42 s; 2 slots are busy for 64 %" in " ".join(ran.stdout.split())
    rows = [line.replace("│", " ").split() for line in ran.stdout.splitlines() if line.startswith("│")]
    assert rows == [
        ["scenes", "1", "4", "4"], ["draw", "3", "10", "30"], ["speak", "1", "12", "12"],
        ["film", "1", "8", "8"],
    ]  # fmt: skip


def test_a_run_is_predicted_by_the_costs_of_another_one(cli: Any, case: Path) -> None:
    (case / "inputs.txt").write_text("a bc def\ngh ij kl\n")
    run = ("chain", "run", "measured_parts.py:counted", "-i", "inputs.txt", "--journal", "runs")
    recorded = cli(*run, "--on", "in-process")
    assert recorded.exit_code == 0, recorded.stderr
    run_id = recorded.stderr.split()[recorded.stderr.split().index("run") + 1]
    told = cli(*run, "--on", "simulated", "--like", run_id, "--workers", 1)
    assert told.exit_code == 0, told.stderr
    rows = [line.replace("│", " ").split() for line in told.stdout.splitlines() if line.startswith("│")]
    assert [row[:2] for row in rows] == [["parts", "2"], ["length", "6"], ["total", "2"]]
    services_s = json.loads(cli("chain", "show", run_id, "--journal", "runs", "--json").stdout)["stages"]
    for name, _, _, predicted_s in rows:
        assert float(predicted_s) == pytest.approx(services_s[name]["service_s"], rel=1e-3)


def test_an_input_without_a_size_is_named_and_counts_in_no_mean(cli: Any, case: Path) -> None:
    (case / "sized.py").write_text(
        "from trimtab.chains import chain, stage\n"
        "@stage(cost_s=2.0, size='n')\n"
        "def one(n): return n\n"
        "@chain\n"
        "def sized(n): return one(n)\n"
    )
    (case / "inputs.jsonl").write_text('{"n": null}\n{"n": 3}\n')
    ran = cli("chain", "run", "sized.py:sized", "-i", "inputs.jsonl", *ON, "--workers", 1)
    assert ran.exit_code == 4, ran.stderr
    assert "input of line 1: " in ran.stderr
    assert "2 inputs: mean 6 s" in " ".join(ran.stdout.split())


@pytest.mark.parametrize(
    ("file", "options", "says"),
    [
        ("measured_parts.py:counted", ON, "cost_s: declares no cost (got 'parts, length, total')"),
        ("told_story.py:story", ON, "story.items: is mapped over, and nothing says how many items"),
        ("told_story.py:story", (*ON, "--items", "scenes"), "--items: not a count of items"),
        ("told_story.py:story", (*ON, "--items", "scene=3"), "no such stage (got 'scene')"),
        ("told_story.py:story", (*ON, "--items", "scenes=3"), "label accelerator"),
        ("told_story.py:story", (*ON, "--like", "run_0"), "no such run"),
        ("told_story.py:story", (*ON, "--cluster", "none.yaml"), "none.yaml"),
        ("told_story.py:story", (*ON, "--workers", "1..2"), "simulated pools do not grow"),
        ("told_story.py:story", (*ON, "--resume", "run_0"), "--resume: does not apply to a prediction"),
        ("told_story.py:story", (*ON, "--out", "no/out.jsonl"), "can't write there"),
        ("told_story.py:story", ("--failed", "no/bad.jsonl"), "got 'no/bad.jsonl'"),
        ("told_story.py:story", ("--log", "no/log"), "log: can't write there"),
        ("told_story.py:story", (*ON, "--tag", "of=me"), "--tag: does not apply to a prediction"),
        ("told_story.py:story", (*ON, "--metrics-port", "0"), "--metrics-port: does not apply"),
        ("told_story.py:story", ("--cluster", "nodes.yaml"), "--cluster: is for predictions"),
    ],
)  # fmt: skip
def test_what_cannot_be_predicted_is_refused(
    cli: Any, case: Path, file: str, options: tuple[str, ...], says: str
) -> None:
    refused = cli("chain", "run", file, *options, "-i", "inputs.txt", "--journal", "runs")
    assert refused.exit_code == 2, refused.stderr
    assert says in " ".join(refused.stderr.split())
