"""`trimtab learn`: train, go on, judge, write, and use what was written; what is wrong is told."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from trimtab.cli.app import app
from trimtab.domain.artifact import Artifact

pytest.importorskip("gymnasium")
pytest.importorskip("tensorboard")
from trimtab.learn.weight_search import Generation, WeightSearch

SMALL = ["--pairs", "2", "--hidden", "2", "--requests", "100", "--json"]


def told(*command: object) -> str:
    done = CliRunner().invoke(app, [str(word) for word in command])
    assert done.exit_code == 0, done.stderr
    return done.stdout


def refusal(*command: object) -> str:
    done = CliRunner().invoke(app, [str(word) for word in command])
    assert done.exit_code == 2
    return " ".join(done.stderr.split())


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained")
    told("learn", "train", "--generations", 3, "--out", out, *SMALL)
    return out


def test_a_training_leaves_weights_curves_and_a_page(trained: Path, tmp_path: Path) -> None:
    assert {path.suffix for path in trained.iterdir()} >= {".npz", ".safetensors", ".html"}
    assert [path for path in trained.iterdir() if "tfevents" in path.name]
    page = (trained / "report.html").read_text("utf-8")
    assert "learned-residual" in page
    told("learn", "train", "--generations", 2, "--out", tmp_path, *SMALL)
    went_on = json.loads(told("learn", "train", "--generations", 3, "--out", tmp_path, *SMALL))
    assert went_on["sha256"] == Artifact.read(str(trained / "weights.safetensors")).sha256


def test_weights_are_judged_written_and_used(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = trained / "weights.safetensors"
    found = json.loads(told("learn", "evaluate", weights, "--workloads", 2, "--requests", 100, "--json"))
    assert found["against"] == "late-binding"
    assert [p["policy"].partition("(")[0] for p in found["policies"]] == [
        "learned-residual",
        "learned-guarded",
        "learned-residual",
        "least-expected-completion",
        "auto",
    ]
    monkeypatch.chdir(tmp_path)
    policy = told("learn", "export", trained, "--out", "mine.safetensors", "--quiet").strip()
    assert policy == "learned-residual(artifact=mine.safetensors)"
    compare = ("compare", "tiny", "-n", 1, "--no-sweep", "-j", 1, "--out", "out", "--quiet")
    told(*compare, "-p", policy, "-p", "late-binding")
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    named = [result["policy"] for result in results["results"]]
    sha256 = Artifact.read("mine.safetensors").sha256
    assert f"learned-residual(artifact=mine@{sha256[:12]})" in named
    assert str(tmp_path / "mine.safetensors") in results["made_by"]["files"]
    assert json.loads(told("rerun", "out", "--json"))["is_equal"]


def test_other_results_stay(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("of a comparison")
    refused = refusal("learn", "train", "--out", tmp_path, *SMALL)
    assert "has a report.html of something else" in refused
    (tmp_path / "other" / "weights.safetensors").mkdir(parents=True)
    for command in (("train", "--out", tmp_path / "other"), ("export", trained, "--out", tmp_path / "other")):
        assert "can't write there: Is a directory" in refusal("learn", *command)
    names = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")}
    assert names == {"report.html", "other", "other/weights.safetensors"}


def test_a_training_begun_anew_has_its_own_curves(tmp_path: Path) -> None:
    for begin in ((), ("--no-resume",)):
        told("learn", "train", "--generations", 1, "--out", tmp_path, *SMALL, *begin)
        assert len(list(tmp_path.glob("*tfevents*"))) == 1


def test_an_interrupted_training_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = WeightSearch.step

    def interrupted(search: WeightSearch) -> Generation:
        if search.history:
            raise KeyboardInterrupt
        return step(search)

    monkeypatch.setattr(WeightSearch, "step", interrupted)
    for options, again in (((), "the same command continues"), (("--no-resume",), "without --no-resume")):
        command = ("learn", "train", "--generations", 2, "--out", tmp_path, *SMALL, *options)
        done = CliRunner().invoke(app, [str(word) for word in command])
        assert done.exit_code == 130
        assert "1 of 2 generations are in" in done.stderr
        assert again in done.stderr


def test_rows_of_a_narrow_table_are_told_apart(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = told("learn", "evaluate", trained / "weights.safetensors", "--workloads", 2, "--requests", 100)
    names = "".join(line[:24].strip() for line in shown.splitlines())
    assert "bound=inf,in_range=False)" in names


def test_a_network_that_plans_is_trained_judged_and_written(tmp_path: Path) -> None:
    command = ("learn", "train", "--method", "rnn", "--generations", 1, "--hidden", 2, "--out", tmp_path)
    assert "learned-pointer: loss" in told(*command, "--quiet")
    weights = tmp_path / "weights.safetensors"
    found = json.loads(told("learn", "evaluate", weights, "--workloads", 2, "--requests", 100, "--json"))
    named = [p["policy"].partition("(")[0] for p in found["policies"]]
    assert named == ["learned-pointer", "least-expected-completion", "auto", "hungarian"]
    policy = told("learn", "export", tmp_path, "--out", tmp_path / "mine.safetensors", "--quiet").strip()
    assert policy.startswith("learned-pointer(artifact=")
    assert "is not read (got 'tiny')" in refusal("learn", "train", "tiny", "--method", "rnn")
    assert "--policy: is not trained so" in refusal("learn", "train", "--policy", "learned-pointer")


def test_what_is_wrong_is_told(trained: Path, tmp_path: Path) -> None:
    assert "--policy: takes no weights (got 'random')" in refusal("learn", "train", "--policy", "random")
    assert "--method: is no method (got 'sarsa')" in refusal("learn", "train", "--method", "sarsa")
    for text in ("p50", ""):
        assert "names no metric" in refusal("learn", "train", "--objective", text, "--out", tmp_path)
    assert "'0*p99'); expected a weight above 0" in refusal("learn", "train", "--objective", "mean+0*p99")
    assert "has no weights" in refusal("learn", "export", tmp_path)
    (tmp_path / "checkpoint.npz").write_bytes(b"PK\x03\x04")
    assert "checkpoint.npz: is no checkpoint" in refusal("learn", "train", "--out", tmp_path)
    assert "a training that has ended" in refusal("learn", "export", tmp_path)
    assert "was trained otherwise" in refusal("learn", "train", "--out", trained, "--seed", 7, *SMALL)
    other = tmp_path / "w.safetensors"
    other.write_bytes(b"no")
    assert "is no safetensors file" in refusal("learn", "evaluate", other)
    other.write_bytes(Artifact("w", {"a": np.zeros(1)}).content())
    found = "w.safetensors: policy: was trained for something else (got 'nothing')"
    assert found in refusal("learn", "evaluate", other)
    assert "no such file" in refusal("run", "tiny", "-p", "learned-dispatch(artifact=no.safetensors)").lower()
