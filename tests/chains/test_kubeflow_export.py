"""Chains as Kubeflow pipelines: imported again they give the same, and what has no counterpart is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from trimtab.chains import Chain, run
from trimtab.chains.chain_files import load_chain
from trimtab.chains.kubeflow.chain_source import chain_source
from trimtab.chains.kubeflow.export import exported
from trimtab.chains.kubeflow.pipeline_spec import read_pipeline
from trimtab.clusters.in_process import InProcess
from trimtab.errors import ChainError
from trimtab.live.stage_backend import StageNode

STAGES = """
from trimtab.chains import chain, stage


@stage(cpu=0.5, memory_gib=0.25, deterministic=True, timeout_s=9)
def words(text: str) -> list[str]:
    return text.split()


@stage(retries=1, gpu=1, accelerator="H100")
def picture(word: str, size: int = 2) -> bytes:
    return word.encode() * size


@stage(retries=0, cpu=0.25)
class Count:
    def __call__(self, parts: list[str], data: bytes, scale: float, options: dict) -> dict[str, float]:
        return {"parts": len(parts) * scale, "bytes": len(data), **options}


@stage
def weighted(text: str, weight: float) -> str:
    return text


def sized(data: bytes) -> int:
    return len(data)


def untyped(text: str):
    return text


@chain(name="Word pictures")
def pictures(text: str, scale: float = 1.5):
    found = words(text)
    drawn = picture(found[0], size=3)
    return {"count": Count(found, drawn, scale, {"x": 2}), "picture": drawn}
"""
NODE = StageNode("here", 2, {"cpu": 4.0, "gpu": 1.0, "memory_gib": 4.0}, {"accelerator": "H100"})


def written(folder: Path, chain: str = "", name: str = "exported_stages") -> Chain:
    source = folder / f"{name}.py"
    text = STAGES if not chain else STAGES.replace(STAGES[STAGES.index("@chain") :], chain)
    source.write_text(text)
    return load_chain(str(source))


def test_a_chain_comes_back_from_its_pipeline(folder: Path) -> None:
    chain = written(folder)
    made = exported(chain, "pictures:1")
    assert made.notes == ("words: the pipeline has no timeout_s",)
    file = folder / "pipeline.yaml"
    file.write_text(yaml.safe_dump(made.pipeline))
    (folder / "exported_again.py").write_text(chain_source(read_pipeline(file), str(file)).text)
    again = load_chain(str(folder / "exported_again.py"))
    (expected,), (result,) = (
        run(one, [{"text": "ab c d"}], on=InProcess([NODE])).wait() for one in (chain, again)
    )
    assert expected.value["count"] == result.value["count"] == {"parts": 4.5, "bytes": 6, "x": 2}
    assert expected.value["picture"] == result.value["picture"].content == b"ababab"
    for before, after in zip(chain.steps, again.steps, strict=True):
        one, other = before.stage.stage_options, after.stage.stage_options
        assert (one.demand(), one.needed_labels()) == (other.demand(), other.needed_labels())
        assert (one.retries, one.deterministic) == (other.retries, other.deterministic)


def test_the_pipeline_says_where_and_with_what_a_task_runs(folder: Path) -> None:
    pipeline = exported(written(folder), "pictures:1").pipeline
    assert pipeline["pipelineInfo"] == {"name": "word-pictures"}
    assert list(pipeline["root"]["dag"]["tasks"]) == ["words", "picture", "count"]
    container = pipeline["deploymentSpec"]["executors"]["exec-picture"]["container"]
    accelerator = {"count": "1", "resourceCount": "1", "resourceType": "H100", "type": "H100"}
    assert container["image"] == "pictures:1"
    assert container["resources"] == {
        "cpuRequest": 1.0,
        "resourceCpuRequest": "1",
        "accelerator": accelerator,
    }
    words = pipeline["deploymentSpec"]["executors"]["exec-words"]["container"]["resources"]
    assert (words["resourceMemoryLimit"], words["memoryLimit"]) == ("256Mi", 0.268435456)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("def c(texts: list[str]):\n    return words.map(texts)", r"c.words: a map has no counterpart"),
        ("def c(text: str):\n    return words.when(text)(text)", r"c.words: a condition has no counterpart"),
        ("def c(text):\n    return words(text)", r"c.input.text: a value whose type says too little"),
        (
            "def c(data: bytes):\n    return stage(sized)(data)",
            "c.input.data: bytes as an input of a pipeline",
        ),
        (
            "def c(text: str):\n    return stage(untyped)(text)",
            r"c.untyped.return: a value whose type .*bytes",
        ),
        ("def c(text: str):\n    return [words(text)]", "c.output: an output that is a list"),
        ("def c(text: str):\n    return words(text)[0]", "c.output.Output: what is not the whole output"),
        (
            "def c(text: str):\n    return words.options(on_failure='skip')(text)",
            "c.words: the option on_failure",
        ),
        (
            "def c(text: str):\n    return words.options(gpu=0.5)(text)",
            r"c.words.gpu: a part of a GPU .*got 0.5",
        ),
        ("def c(text: str):\n    return stage(lambda t: t, name='f')(text)", "c.f"),
        (
            "def c(text: str):\n    return weighted(text, float('nan'))",
            "c.weighted.weight: a constant that is no",
        ),
    ],
)
def test_what_has_no_counterpart_is_refused_by_name(folder: Path, body: str, message: str) -> None:
    chain: Any = written(folder, f"@chain\n{body}\n", f"exported_{abs(hash(body))}")
    with pytest.raises(ChainError, match=message):
        exported(chain, "pictures:1")
