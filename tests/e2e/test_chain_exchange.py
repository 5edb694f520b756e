"""`trimtab chain import` and `trimtab chain export`: files in, files out, and refusals that leave none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.kubeflow.documents import pipeline

CHAIN = """
from trimtab.chains import chain, stage


@stage(timeout_s=9)
def double(x: int) -> int:
    return 2 * x


@chain
def doubled(x: int):
    return double(x)


@chain
def mapped(xs: list[int]):
    return double.map(xs)
"""


@pytest.fixture
def compiled(tmp_path: Path) -> Path:
    file = tmp_path / "pipeline.yaml"
    data = pipeline()
    del data["deploymentSpec"]["executors"]["exec-write"]["container"]["resources"]  # of no machine here
    file.write_text(yaml.safe_dump(data))
    return file


def test_an_imported_pipeline_runs_in_worker_processes(
    cli: Any, compiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, inputs = tmp_path / "imported_notes.py", tmp_path / "inputs.jsonl"
    result = cli("chain", "import", "kfp", compiled, "--out", out, "--json")
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    assert (told["chain"], told["stages"]) == ("notes_of_2", ["write", "read"])
    assert "write: workers need numpy>=2" in told["notes"]
    inputs.write_text('{"text": "ab"}\n{"text": "x", "times": 1}\n')
    journal = tmp_path / "journal"
    ran = cli("chain", "run", out, "--input", inputs, "--workers", "1", "--journal", journal, "--quiet")
    assert ran.exit_code == 0, ran.stderr
    outputs = {row["input"]: row["output"] for row in map(json.loads, ran.stdout.splitlines())}
    assert outputs == {
        0: {"half": 3.0, "told": "6 of 3 ababab m"},
        1: {"half": 0.5, "told": "1 of 0.5 x m"},
    }


def test_an_exported_chain_is_a_pipeline(cli: Any, tmp_path: Path) -> None:
    chain, out = tmp_path / "exchange_doubles.py", tmp_path / "pipeline.yaml"
    chain.write_text(CHAIN)
    result = cli("chain", "export", "kfp", f"{chain}:doubled", "--image", "doubles:1", "--out", out)
    assert result.exit_code == 0, result.stderr
    assert "note: double: the pipeline has no timeout_s" in result.stderr
    made = yaml.safe_load(out.read_text())
    assert made["root"]["dag"]["tasks"]["double"]["componentRef"] == {"name": "comp-double"}
    none = tmp_path / "none.yaml"
    refused = cli("chain", "export", "kfp", f"{chain}:mapped", "--image", "doubles:1", "--out", none)
    assert refused.exit_code == 2
    assert "mapped.double: a map has no counterpart" in refused.stderr
    assert not none.exists()


def test_a_refused_pipeline_leaves_no_file(cli: Any, compiled: Path, tmp_path: Path) -> None:
    out = tmp_path / "imported.py"
    data = pipeline()
    data["root"]["dag"]["tasks"]["read"]["triggerPolicy"] = {"condition": "inputs.x == 1"}
    compiled.write_text(yaml.safe_dump(data))
    result = cli("chain", "import", "kfp", compiled, "--out", out)
    assert result.exit_code == 2
    assert "root.dag.tasks.read.triggerPolicy: a condition is not supported" in result.stderr
    assert "Traceback" not in result.stderr
    assert not out.exists()
    wrong = cli("chain", "import", "kfp", compiled, "--out", tmp_path / "a-b.py")
    assert wrong.exit_code == 2
    assert "--out: no module of Python" in wrong.stderr
