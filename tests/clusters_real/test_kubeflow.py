"""Pipelines that kfp compiles give as chains what kfp's own runner gives, and kfp runs exported chains.

kfp forces versions of its own, so it has an environment of its own (make test-clusters installs it).
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from trimtab.chains import run
from trimtab.chains.chain_files import load_chain
from trimtab.chains.kubeflow.artifact_values import ArtifactValue
from trimtab.chains.kubeflow.chain_source import chain_source
from trimtab.chains.kubeflow.export import exported
from trimtab.chains.kubeflow.pipeline_spec import read_pipeline
from trimtab.clusters.in_process import InProcess

pytestmark = [pytest.mark.clusters, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-kfp" / "bin" / "python"
PROGRAM = ROOT / "tests" / "support" / "kubeflow" / "pipelines.py"
CHAIN = """
from trimtab.chains import chain, stage


@stage(cpu=2, memory_gib=0.5, deterministic=True)
def words(text: str) -> list[str]:
    return text.split()


@stage(retries=1)
def picture(word: str, size: int = 2) -> bytes:
    return word.encode() * size


@stage
class Count:
    def __call__(self, parts: list[str], data: bytes, scale: float, options: dict) -> dict[str, float]:
        return {"parts": len(parts) * scale, "bytes": len(data), **options}


@chain(name="Word pictures")
def pictures(text: str, scale: float = 1.5):
    found = words(text)
    drawn = picture(found[0], size=3)
    return {"count": Count(found, drawn, scale, {"x": 2}), "picture": drawn}
"""


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with compiled pipelines."""
    if not PYTHON.exists():
        pytest.skip("no .venv-kfp: make test-clusters installs kfp into it")
    folder = tmp_path_factory.mktemp("kubeflow")
    in_kfp("compile", str(folder))
    return folder


def in_kfp(*arguments: str, path: str = "") -> None:
    """Run the program in kfp's environment."""
    bin_folder = PYTHON.parent
    env = {**os.environ, "PYTHONPATH": path, "PATH": f"{bin_folder}:{os.environ['PATH']}"}
    done = subprocess.run(
        [str(PYTHON), str(PROGRAM), *arguments],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


def run_by_kfp(file: Path, arguments: dict[str, Any], folder: Path, path: str = "") -> dict[str, Any]:
    """The outputs of a pipeline by kfp's local runner."""
    out = folder / "outputs.json"
    in_kfp("run", str(file), json.dumps(arguments), str(folder / "root"), str(out), path=path)
    outputs: dict[str, Any] = json.loads(out.read_text())
    return outputs


def told(value: Any) -> Any:
    """An output as the program tells it."""
    if not isinstance(value, ArtifactValue):
        return value
    content: Any = value.content
    if isinstance(content, bytes):
        content = content.decode()
    elif content is not None:
        content = {path: data.decode() for path, data in content.items()}
    return {"schema_title": value.schema_title, "metadata": dict(value.metadata), "content": content}


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("training", {"text": "yo"}),
        ("training", {"lines": 0, "rate": 0.25}),
        ("nested", {"word": "go"}),
        ("judged", {"rate": 4.0}),
    ],
)
def test_the_chain_and_kfp_give_the_same_outputs(
    compiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, arguments: dict[str, Any]
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    file = compiled / f"{name}.yaml"
    source = tmp_path / f"{name}_{len(arguments)}_chain.py"
    source.write_text(chain_source(read_pipeline(file), str(file)).text)
    (result,) = run(load_chain(str(source)), [arguments], on=InProcess()).wait()
    expected = run_by_kfp(file, arguments, tmp_path)
    assert expected
    assert {key: told(value) for key, value in result.value.items()} == expected


def test_kfp_loads_and_runs_an_exported_chain(
    compiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "word_pictures.py").write_text(CHAIN)
    made = load_chain(str(tmp_path / "word_pictures.py"))
    (result,) = run(made, [{"text": "ab c d"}], on=InProcess()).wait()
    file = tmp_path / "exported.yaml"
    file.write_text(yaml.safe_dump(exported(made, "registry.example/python-pictures:1").pipeline))
    found = run_by_kfp(file, {"text": "ab c d"}, tmp_path, f"{ROOT / 'src'}:{tmp_path}")
    assert found["count"] == result.value["count"] == {"parts": 4.5, "bytes": 6, "x": 2}
    assert found["picture"]["content"].encode() == result.value["picture"] == b"ababab"
