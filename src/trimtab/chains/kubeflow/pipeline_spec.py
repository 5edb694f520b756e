"""The compiled form of a Kubeflow pipeline (its intermediate representation, schema 2.1.0), as far as chains
can run it. What they cannot is refused by name.

Source: `api/v2alpha1/pipeline_spec.proto` of Kubeflow Pipelines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from trimtab.errors import ChainError
from trimtab.validation.base import Spec
from trimtab.validation.problems import checked
from trimtab.validation.yaml_text import parsed_yaml, read_yaml

SCHEMA: Final = "2.1.0"
_EXPECTED = f"a pipeline that kfp 2 has compiled (schemaVersion {SCHEMA})"


class _Part(Spec):
    """A part of the document."""

    model_config = ConfigDict(alias_generator=to_camel)


class ParameterSpec(_Part):
    """An input or output that is a value."""

    parameter_type: str
    default_value: Any = None
    is_optional: bool = False
    description: str = ""
    literals: list[Any] = Field(default_factory=list)


class ArtifactType(_Part):
    """What an artifact is."""

    schema_title: str = "system.Artifact"
    schema_version: str = ""


class ArtifactSpec(_Part):
    """An input or output that is an artifact."""

    artifact_type: ArtifactType
    is_optional: bool = False
    description: str = ""


class Definitions(_Part):
    """Inputs or outputs."""

    parameters: dict[str, ParameterSpec] = Field(default_factory=dict)
    artifacts: dict[str, ArtifactSpec] = Field(default_factory=dict)


class TaskParameter(_Part):
    """An output of a task that is a value."""

    producer_task: str
    output_parameter_key: str


class TaskArtifact(_Part):
    """An output of a task that is an artifact."""

    producer_task: str
    output_artifact_key: str


class Constant(_Part):
    """A value that the pipeline gives itself."""

    constant: Any


class GivenParameter(_Part):
    """What a task reads as a value: one of these."""

    component_input_parameter: str | None = None
    runtime_value: Constant | None = None
    task_output_parameter: TaskParameter | None = None


class GivenArtifact(_Part):
    """What a task reads as an artifact: one of these."""

    component_input_artifact: str | None = None
    task_output_artifact: TaskArtifact | None = None


class TaskInputs(_Part):
    """All that a task reads."""

    parameters: dict[str, GivenParameter] = Field(default_factory=dict)
    artifacts: dict[str, GivenArtifact] = Field(default_factory=dict)


class Named(_Part):
    """A name."""

    name: str


class Caching(_Part):
    """Whether results are used again."""

    enable_cache: bool = False
    cache_key: str = ""


class Retries(_Part):
    """How often a task is tried again."""

    max_retry_count: int = Field(0, ge=0)
    backoff_duration: str = "0s"
    backoff_factor: float = 2.0
    backoff_max_duration: str = "3600s"


class Task(_Part):
    """A use of a component."""

    task_info: Named | None = None
    component_ref: Named
    inputs: TaskInputs = TaskInputs()
    dependent_tasks: list[str] = Field(default_factory=list)
    caching_options: Caching = Caching()
    retry_policy: Retries | None = None

    @property
    def producers(self) -> set[str]:
        """The tasks whose outputs it reads."""
        parameters = [given.task_output_parameter for given in self.inputs.parameters.values()]
        artifacts = [given.task_output_artifact for given in self.inputs.artifacts.values()]
        return {told.producer_task for told in (*parameters, *artifacts) if told is not None}


class SubtaskParameter(_Part):
    """An output of a task."""

    producer_subtask: str
    output_parameter_key: str


class SubtaskArtifact(_Part):
    """An output of a task."""

    producer_subtask: str
    output_artifact_key: str


class OutputParameter(_Part):
    """An output of a graph that is a value."""

    value_from_parameter: SubtaskParameter


class OutputArtifact(_Part):
    """An output of a graph that is an artifact."""

    artifact_selectors: list[SubtaskArtifact] = Field(min_length=1, max_length=1)


class Outputs(_Part):
    """The outputs of a graph."""

    parameters: dict[str, OutputParameter] = Field(default_factory=dict)
    artifacts: dict[str, OutputArtifact] = Field(default_factory=dict)


class Dag(_Part):
    """A graph of tasks."""

    tasks: dict[str, Task]
    outputs: Outputs = Outputs()


class Component(_Part):
    """What a task runs: an executor, or a graph."""

    input_definitions: Definitions = Definitions()
    output_definitions: Definitions = Definitions()
    executor_label: str = ""
    dag: Dag | None = None


class Variable(_Part):
    """A variable of the environment."""

    name: str
    value: str = ""


class Accelerator(_Part):
    """Accelerators of a container; the names with `resource` are those of newer compilers."""

    type: str = ""
    count: str = "0"
    resource_type: str = ""
    resource_count: str = ""


class Resources(_Part):
    """What a container takes; memory without a unit is in 10^9 bytes."""

    cpu_request: float = 0.0
    cpu_limit: float = 0.0
    memory_request: float = 0.0
    memory_limit: float = 0.0
    resource_cpu_request: str = ""
    resource_cpu_limit: str = ""
    resource_memory_request: str = ""
    resource_memory_limit: str = ""
    accelerator: Accelerator | None = None


class Container(_Part):
    """An image and what runs in it."""

    image: str
    command: list[str] = Field(default_factory=list)
    args: list[str] = Field(default_factory=list)
    env: list[Variable] = Field(default_factory=list)
    resources: Resources = Resources()


class Executor(_Part):
    """What runs."""

    container: Container


class Deployment(_Part):
    """What components run."""

    executors: dict[str, Executor] = Field(default_factory=dict)


class PipelineInfo(_Part):
    """What the pipeline is called."""

    name: str
    display_name: str = ""
    description: str = ""


class Pipeline(_Part):
    """A compiled pipeline."""

    schema_version: str
    sdk_version: str = ""
    pipeline_info: PipelineInfo
    default_pipeline_root: str = ""
    root: Component
    components: dict[str, Component] = Field(default_factory=dict)
    deployment_spec: Deployment = Deployment()


_LOOP = "a loop", "tasks that run once; a chain maps over a list: stage.map(items)"
_REFUSED: Final[Mapping[str, tuple[str, str]]] = {
    "parameterIterator": _LOOP,
    "artifactIterator": _LOOP,
    "iteratorPolicy": _LOOP,
    "triggerPolicy": ("a condition", "tasks without one; a chain has stage.when(value)"),
    "taskFinalStatus": ("the status of another task", "an input that is a value"),
    "parameterExpressionSelector": ("a part of a value", "the whole value"),
    "valueFromOneof": ("one output of several branches", "the output of one task"),
    "isArtifactList": ("a list of artifacts", "one artifact"),
    "importer": ("an importer", "a container"),
    "resolver": ("a resolver", "a container"),
    "customJob": ("a custom job", "a container"),
    "lifecycle": ("a hook of the container's life", "a container without one"),
    "singlePlatformSpecs": ("settings of a platform", "none"),
    "taskConfigPassthroughs": ("task configuration that is passed on", "none"),
}  # fmt: skip


def read_pipeline(path: Path) -> Pipeline:
    """The pipeline in a file. Raises ChainError for what chains cannot run."""
    file = str(path)
    first, *others = re.split(r"(?m)^---[ \t]*$\n?", read_yaml(path, ChainError).removeprefix("---\n"))
    data = parsed_yaml(first, file, ChainError, "no pipeline", _EXPECTED)
    for key, found in (("apiVersion", "an Argo workflow, as kfp 1 compiles"), ("pipelineSpec", "a job")):
        if key in data:
            raise ChainError(f"is {found}", file=file, field=key, value=data[key], expected=_EXPECTED)
    if data.get("schemaVersion") != SCHEMA:
        version = data.get("schemaVersion")
        problem = "no version" if version is None else "another version of the schema"
        raise ChainError(problem, file=file, field="schemaVersion", value=version, expected=SCHEMA)
    if any(text.strip() for text in others):
        problem = "has settings of a platform (volumes, secrets, node selectors)"
        raise ChainError(problem, file=file, field="platforms", expected="the pipeline alone")
    for field, key, value in _refused_in(data, ""):
        what, expected = _REFUSED[key]
        if key == "triggerPolicy" and "strategy" in value and "condition" not in value:
            what = "an exit handler, or a task that ignores failures before it,"
        raise ChainError(f"{what} is not supported", file=file, field=field, expected=expected)
    pipeline = checked(lambda: Pipeline.model_validate(data), Pipeline, file, ChainError)
    _check_names(pipeline, file)
    return pipeline


def _refused_in(data: Any, where: str) -> Iterator[tuple[str, str, Any]]:
    """Places of what is not supported, outermost first; names that users give are no keys."""
    if isinstance(data, list):
        for k, item in enumerate(data):
            yield from _refused_in(item, f"{where}[{k}]")
        return
    for key, value in data.items() if isinstance(data, dict) else ():
        field = f"{where}.{key}".lstrip(".")
        if key in _REFUSED and value:
            yield field, key, value
        elif key not in ("defaultValue", "constant", "literals"):
            named = key in ("tasks", "parameters", "artifacts", "components", "executors")
            inner = value.items() if named and isinstance(value, dict) else [("", value)]
            for name, part in inner:
                yield from _refused_in(part, f"{field}.{name}".rstrip("."))


def _check_names(pipeline: Pipeline, file: str) -> None:
    """Raise ChainError for a name that leads nowhere."""
    if pipeline.root.dag is None:
        raise ChainError("has no graph of tasks", file=file, field="root.dag", expected="tasks")
    graphs = {"root": pipeline.root, **{f"components.{k}": c for k, c in pipeline.components.items()}}
    for where, component in graphs.items():
        if component.dag is None:
            executors = pipeline.deployment_spec.executors
            _known(component.executor_label, executors, f"{where}.executorLabel", file)
            continue
        for name, task in component.dag.tasks.items():
            field = f"{where}.dag.tasks.{name}"
            _known(task.component_ref.name, pipeline.components, f"{field}.componentRef.name", file)
            for before in (*task.dependent_tasks, *task.producers):
                _known(before, component.dag.tasks, f"{field}.dependentTasks", file)


def _known(name: str, names: Mapping[str, Any], field: str, file: str) -> None:
    if name not in names:
        expected = f"one of {', '.join(names)}" if names else "none"
        raise ChainError("no such name", file=file, field=field, value=name, expected=expected)
