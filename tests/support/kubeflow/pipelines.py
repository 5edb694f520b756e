"""Pipelines of Kubeflow, for the environment that has kfp: compiled, and run by kfp's own local runner.

python pipelines.py compile FOLDER
python pipelines.py run FILE.yaml ARGUMENTS ROOT OUT.json
"""

import json
import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple, Optional

warnings.filterwarnings("ignore")

from kfp import compiler, components, dsl, local  # noqa: E402


@dsl.component(base_image="python:3.11")
def make(text: str, lines: int, data: dsl.Output[dsl.Dataset], numbers: dsl.Output[dsl.Metrics]) -> int:
    """Writes lines."""
    with open(data.path, "w") as file:
        for i in range(lines):
            file.write(f"{text} {i}\n")
    data.metadata["source"] = text
    numbers.log_metric("lines", lines)
    return lines


@dsl.component(base_image="python:3.11")
def train(
    data: dsl.Input[dsl.Dataset],
    rate: float,
    model: dsl.Output[dsl.Model],
    names: list[str] = ["a", "b"],  # noqa: B006
    tag: Optional[str] = None,  # noqa: UP045 - kfp reads no other
    is_deep: bool = False,
) -> NamedTuple("Trained", [("loss", float), ("label", str)]):
    import os
    from collections import namedtuple

    os.makedirs(os.path.join(model.path, "parts"))
    with open(data.path) as file:
        told = file.read()
    with open(os.path.join(model.path, "parts", "weights.txt"), "w") as file:
        file.write(f"{told}{rate} {names} {tag} {is_deep}")
    model.framework = "none"
    trained = namedtuple("Trained", "loss label")
    return trained(1.0 / rate, f"{data.metadata['source']}-{rate}")


@dsl.component(base_image="python:3.11")
def upper(source: dsl.InputPath("Dataset"), target: dsl.OutputPath("Dataset"), size: dsl.OutputPath(int)):
    import os

    with open(source) as read, open(target, "w") as write:
        write.write(read.read().upper() + os.environ.get("MARK", ""))
    with open(size, "w") as file:
        file.write(str(os.path.getsize(source)))


@dsl.component(base_image="python:3.11")
def say(message: str, options: dict = {"a": "x"}) -> str:  # noqa: B006
    return message + options["a"]


@dsl.component(base_image="python:3.11")
def page(text: str) -> dsl.HTML:
    return f"<p>{text}</p>"


@dsl.component(base_image="python:3.11")
def judge(model: dsl.Input[dsl.Model], found: dsl.Output[dsl.ClassificationMetrics]) -> bool:
    found.log_roc_curve([0.0, 1.0], [0.25, 1.0], [0.5, 0.75])
    found.log_confusion_matrix(["cat", "dog"], [[1, 2], [3, 4]])
    found.log_confusion_matrix_cell("cat", "dog", 5)
    return model.framework == "none"


def _other() -> Any:
    """A component whose function has the name of another's."""

    @dsl.component(base_image="python:3.11")
    def say(message: str) -> str:
        return f"other {message}"

    return say


OTHER_SAY = _other()


class Trained(NamedTuple):
    model: dsl.Model
    label: str
    loss: float
    shout: dsl.Dataset
    size: int
    said: str


class Nested(NamedTuple):
    first: str
    second: str
    third: str
    page: dsl.HTML


class Judged(NamedTuple):
    found: dsl.ClassificationMetrics
    is_plain: bool
    lines: int


@dsl.pipeline(name="training", description="Artifacts, defaults, resources, retries, an order without data.")
def training(text: str = "hi", lines: int = 3, rate: float = 2.0) -> Trained:
    made = make(text=text, lines=lines).set_retry(3, backoff_duration="10s", backoff_max_duration="60s")
    trained = train(data=made.outputs["data"], rate=rate)
    trained.set_cpu_request("500m").set_memory_limit("1Gi").set_caching_options(False)
    shout = upper(source=made.outputs["data"]).after(trained).set_env_variable("MARK", "!")
    said = say(message=f"{text} of {trained.outputs['label']}")
    return Trained(
        trained.outputs["model"], trained.outputs["label"], trained.outputs["loss"], shout.outputs["target"],
        shout.outputs["size"], said.output,
    )  # fmt: skip


@dsl.pipeline(name="inner")
def inner(word: str, end: str = ".") -> str:
    first = say(message=word, options={"a": "-"})
    return say(message=f"{first.output}{end}").output


@dsl.pipeline(name="nested-pipelines")
def nested(word: str) -> Nested:
    first = inner(word=word)
    second = inner(word=first.output, end="?")
    third = OTHER_SAY(message=word).after(second)
    return Nested(first.output, second.output, third.output, page(text=second.output).output)


@dsl.pipeline(name="judged-models")
def judged(rate: float) -> Judged:
    made = make(text="x", lines=2)
    trained = train(data=made.outputs["data"], rate=rate, is_deep=True, tag="t")
    told = judge(model=trained.outputs["model"])
    return Judged(told.outputs["found"], told.outputs["Output"], made.outputs["Output"])


PIPELINES = {"training": training, "nested": nested, "judged": judged}


def told(value: Any) -> Any:
    """An output in the form that trimtab's artifacts are compared in."""
    if not isinstance(value, dsl.Artifact):
        return value
    path = Path(value.path)
    content: Any = None
    if path.is_dir():
        files = [file for file in path.rglob("*") if file.is_file()]
        content = {str(file.relative_to(path)): file.read_text() for file in files}
    elif path.is_file():
        content = path.read_text()
    return {"schema_title": value.schema_title, "metadata": value.metadata, "content": content}


if __name__ == "__main__":
    if sys.argv[1] == "compile":
        for name, pipeline in PIPELINES.items():
            compiler.Compiler().compile(pipeline, f"{sys.argv[2]}/{name}.yaml")
    else:
        _, _, file, arguments, root, out = sys.argv
        runner = local.SubprocessRunner(use_venv=False)
        local.init(runner=runner, pipeline_root=root, raise_on_error=True)
        task = components.load_component_from_file(file)(**json.loads(arguments))
        Path(out).write_text(json.dumps({name: told(value) for name, value in task.outputs.items()}))
