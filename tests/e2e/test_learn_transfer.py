"""`trimtab learn transfer`: the distances, the three ways, going on, and what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trimtab.cli.app import app
from trimtab.domain.artifact import Artifact
from trimtab.policies.shared.learned_score import vector_of

pytest.importorskip("gymnasium")
pytest.importorskip("tensorboard")


def told(*command: object) -> str:
    done = CliRunner().invoke(app, [str(word) for word in command])
    assert done.exit_code == 0, done.stderr
    return done.stdout


def refusal(*command: object) -> str:
    done = CliRunner().invoke(app, [str(word) for word in command])
    assert done.exit_code == 2
    return " ".join(done.stderr.split())


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained")
    small = ("--generations", 1, "--pairs", 2, "--hidden", 2, "--requests", 100, "--quiet")
    told("learn", "train", "--out", out, *small)
    return out / "weights.safetensors"


def test_the_three_ways(weights: Path, tmp_path: Path) -> None:
    given = ("learn", "transfer", weights, "--to", "tiny", "--samples", 48, "--quiet")
    as_is = told(*given, "--way", "as-is", "--out", tmp_path / "as-is")
    for part in ("rates", "sizes", "speeds", "nodes", "slots", "loads", "memory"):
        assert f"\n{part} " in as_is
    assert "as-is, by --way" in as_is
    source = Artifact.read(str(weights))
    same = Artifact.read(str(tmp_path / "as-is" / "weights.safetensors"))
    assert (vector_of(same) == vector_of(source)).all()
    assert source.sha256 in same.meta["transfer"]
    out = tmp_path / "fine"
    tuned = json.loads(told(*given, "--way", "fine-tuned", "--augment", "rates", "--out", out, "--json"))
    assert tuned["start"] == tuned["source_sha256"] == source.sha256
    assert (tuned["generations"], tuned["augment"]) == (2, "rates=0.2")
    assert tuned["similarity"]["parts"].keys() >= {"rates", "memory"}
    assert tuned["sha256"] == Artifact.read(tuned["weights"]).sha256
    assert source.name in (out / "report.html").read_text("utf-8")
    again = json.loads(told(*given, "--way", "fine-tuned", "--augment", "rates", "--out", out, "--json"))
    assert again["sha256"] == tuned["sha256"]  # from the checkpoint
    on = told("run", "tiny", "-p", f"learned-residual(artifact={tuned['weights']})", "--json")
    assert json.loads(on)
    refused = refusal(*given, "--way", "anew", "--augment", "rates", "--out", out)
    assert "was trained otherwise" in refused


def test_the_similarity_chooses(weights: Path, tmp_path: Path) -> None:
    found = json.loads(
        told("learn", "transfer", weights, "--to", "tiny", "--samples", 24, "--out", tmp_path, "--json")
    )
    assert found["way"] in ("as-is", "fine-tuned", "anew")


def test_what_is_wrong_is_told(weights: Path, tmp_path: Path) -> None:
    given = ("learn", "transfer", weights, "--to", "tiny", "--out", tmp_path / "out")
    assert "--way: is no way" in refusal(*given, "--way", "both")
    assert "--samples: too few" in refusal(*given, "--samples", 3)
    assert "--augment: is nothing to vary" in refusal(*given, "--augment", "sizes")
    assert "--to: no such workload" in refusal("learn", "transfer", weights, "--to", "no-such")
    source = Artifact.read(str(weights))
    meta = {key: value for key, value in source.meta.items() if key != "statistics"}
    (tmp_path / "w.safetensors").write_bytes(Artifact("w", source.arrays, meta).content())
    refused = refusal("learn", "transfer", tmp_path / "w.safetensors", "--to", "tiny")
    assert "statistics: do not tell what they were trained on" in refused
    assert not (tmp_path / "out").exists()
