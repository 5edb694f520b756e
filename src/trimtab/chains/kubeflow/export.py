"""A chain as a compiled Kubeflow pipeline: each stage a Python component that calls its function in an image.

The image has the modules of the stages, trimtab and kfp; nothing is installed when a task starts. Values of
JSON's types are parameters, bytes are artifacts.
"""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from trimtab.chains.graph import INPUT, Binding, Chain, Source, StageCall, Value
from trimtab.chains.kubeflow.artifact_values import KINDS
from trimtab.chains.kubeflow.pipeline_spec import SCHEMA
from trimtab.chains.stages import StageOptions
from trimtab.errors import ChainError
from trimtab.live.declared_types import class_of, shown
from trimtab.version import __version__

OUTPUT: Final = "Output"
_ARTIFACT: Final = "system.Artifact"
_PYTHON: Final = {kind: code.__name__ for code, kind in KINDS.items()}
_COMMAND: Final = """program_path=$(mktemp -d)
printf "%s" "$0" > "$program_path/ephemeral_component.py"
export _KFP_RUNTIME=true
python3 -m kfp.dsl.executor_main --component_module_path "$program_path/ephemeral_component.py" "$@"
"""
_EXPECTED: Final = "str, int, float, bool, list, dict or bytes"
_DEFAULTS: Final = StageOptions()
_REFUSED: Final = ("batch", "on_failure", "optimise", "state")  # they change what a stage takes or returns
_LEFT_OUT: Final = (
    "concurrency", "labels", "rate_per_s", "speculate", "timeout_s",
)  # fmt: skip


class Exported(NamedTuple):
    """A compiled pipeline, and what its reader has to know."""

    pipeline: dict[str, Any]
    notes: tuple[str, ...]


def exported(chain: Chain, image: str) -> Exported:
    """The chain as a pipeline of tasks in this image. Raises ChainError for what has no counterpart."""
    kinds = {name: _kind(hint, f"{chain.name}.input.{name}") for name, hint in chain.inputs.items()}
    for name, kind in kinds.items():
        if kind == _ARTIFACT:
            raise _error("bytes as an input of a pipeline", f"{chain.name}.input.{name}", "a type of JSON")
    outputs = [_output_kind(chain, step) for step in chain.steps]
    notes, tasks, components, executors = list[str](), {}, {}, {}
    for k, step in enumerate(chain.steps):
        where = f"{chain.name}.{step.name}"
        notes += _check(step, where)
        label = _label(step.name)
        arguments = [
            _argument(chain, kinds, outputs, each, f"{where}.{each.name}") for each in step.arguments
        ]
        tasks[label] = _task(chain, step, arguments)
        components[f"comp-{label}"] = {
            "executorLabel": f"exec-{label}",
            **_definitions("inputDefinitions", {each.name: each.kind for each in arguments}),
            **_definitions("outputDefinitions", {OUTPUT: outputs[k]}),
        }
        executors[f"exec-{label}"] = {
            "container": {
                "args": ["--executor_input", "{{$}}", "--function_to_execute", step.name],
                "command": ["sh", "-ec", _COMMAND, _source(step, arguments, outputs[k], where)],
                "image": image,
                **_resources(step.stage.stage_options, where),
            }
        }
    given, told = _chain_outputs(chain, outputs)
    defaults = {name: {"defaultValue": value, "isOptional": True} for name, value in chain.defaults.items()}
    pipeline = {
        "components": components,
        "deploymentSpec": {"executors": executors},
        "pipelineInfo": {"name": _label(chain.name)},
        "root": {
            "dag": {"outputs": given, "tasks": tasks},
            **_definitions("inputDefinitions", kinds, defaults),
            **_definitions("outputDefinitions", told),
        },
        "schemaVersion": SCHEMA,
        "sdkVersion": f"trimtab-{__version__}",
    }
    return Exported(pipeline, tuple(notes))


class _Argument(NamedTuple):
    """What a task reads, and the part of it that its stage gets."""

    name: str
    kind: str
    given: Mapping[str, Any]
    path: tuple[str | int, ...]
    producer: str


def _argument(
    chain: Chain, inputs: Mapping[str, str], outputs: list[str], binding: Binding, where: str
) -> _Argument:
    source = binding.source
    if source is None:
        try:
            constant = json.loads(json.dumps(binding.constant, allow_nan=False))
        except (TypeError, ValueError):
            raise _error("a constant that is no JSON", where, "a value of JSON") from None
        kind = _kind(type(constant), where)
        return _Argument(binding.name, kind, {"runtimeValue": {"constant": constant}}, (), "")
    if source.is_map or source.each:
        raise _error("a map", where, "stages that run once for an input", source)
    if source.step == INPUT:
        told = {"componentInputParameter": source.parameter}
        return _Argument(binding.name, inputs[source.parameter], told, source.path, "")
    kind, producer = outputs[source.step], _label(chain.steps[source.step].name)
    part = "Artifact" if kind == _ARTIFACT else "Parameter"
    key = f"output{part}Key"
    given = {f"taskOutput{part}": {key: OUTPUT, "producerTask": producer}}
    return _Argument(binding.name, kind, given, source.path, producer)


def _task(chain: Chain, step: StageCall, arguments: list[_Argument]) -> dict[str, Any]:
    options, label = step.stage.stage_options, _label(step.name)
    before = sorted({each.producer for each in arguments if each.producer})
    parameters = {each.name: each.given for each in arguments if each.kind != _ARTIFACT}
    artifacts = {each.name: each.given for each in arguments if each.kind == _ARTIFACT}
    inputs = {
        **({"artifacts": artifacts} if artifacts else {}),
        **({"parameters": parameters} if parameters else {}),
    }
    retries = {
        "backoffDuration": f"{options.backoff_s:g}s",
        "backoffFactor": 2.0,
        "backoffMaxDuration": f"{options.backoff_max_s:g}s",
        "maxRetryCount": options.retries,
    }
    return {
        "cachingOptions": {"enableCache": True} if options.deterministic else {},
        "componentRef": {"name": f"comp-{label}"},
        **({"dependentTasks": before} if before else {}),
        **({"inputs": inputs} if inputs else {}),
        **({"retryPolicy": retries} if options.retries else {}),
        "taskInfo": {"name": label},
    }


def _source(step: StageCall, arguments: list[_Argument], output: str, where: str) -> str:
    """The function of the component: it hands its arguments to the stage's own."""
    code = step.stage.stage_code
    module, name = getattr(code, "__module__", None), getattr(code, "__qualname__", "<")
    if module in (None, "__main__") or "<" in name:
        raise _error("code that an image cannot have by a name", where, "a function or class of a module")
    kinds = {each.name: "dsl.Input[dsl.Artifact]" for each in arguments if each.kind == _ARTIFACT}
    kinds = {each.name: kinds.get(each.name) or _PYTHON[each.kind] for each in arguments}
    declared = [f"{name}: {kind}" for name, kind in kinds.items()]
    if output == _ARTIFACT:
        declared.append(f"{OUTPUT}: dsl.Output[dsl.Artifact]")
    returned = "" if output == _ARTIFACT else f" -> {_PYTHON[output]}"
    paths = {each.name: list(each.path) for each in arguments if each.path}
    given = ", ".join(f"{name!r}: {name}" for name in kinds)
    target = f", {OUTPUT}.path" if output == _ARTIFACT else ""
    return (
        "from kfp import dsl\n\n"
        f"def {step.name}({', '.join(declared)}){returned}:\n"
        "    from trimtab.chains.kubeflow.components import called\n"
        f"    return called({module!r}, {name!r}, {{{given}}}, {paths!r}{target})\n"
    )


def _check(step: StageCall, where: str) -> list[str]:
    """Notes on what the pipeline leaves out. Raises ChainError for what it cannot be without."""
    options = step.stage.stage_options
    if step.is_map or step.condition is not None:
        what = "a map" if step.is_map else "a condition"
        raise _error(what, where, "stages that run once for each input")
    for name in _REFUSED:
        if getattr(options, name) != getattr(_DEFAULTS, name):
            raise _error(f"the option {name}", where, "a stage without it")
    if options.gpu != int(options.gpu):
        raise _error("a part of a GPU", f"{where}.gpu", "whole GPUs", options.gpu)
    left = [name for name in _LEFT_OUT if getattr(options, name) != getattr(_DEFAULTS, name)]
    return [f"{step.name}: the pipeline has no {', '.join(left)}"] if left else []


def _resources(options: StageOptions, where: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if options.cpu:
        found |= {"cpuRequest": options.cpu, "resourceCpuRequest": f"{options.cpu:g}"}
    if options.memory_gib:
        mebibytes = round(options.memory_gib * 1024)
        found |= {"memoryLimit": mebibytes * (1 << 20) / 1e9, "resourceMemoryLimit": f"{mebibytes}Mi"}
    if options.gpu:
        count, kind = f"{options.gpu:g}", options.accelerator or "nvidia.com/gpu"
        found["accelerator"] = {"count": count, "resourceCount": count, "resourceType": kind, "type": kind}
    return {"resources": found} if found else {}


def _chain_outputs(chain: Chain, kinds: list[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The outputs of the graph, and the kind of each."""
    named = {OUTPUT: chain.output} if isinstance(chain.output, Value) else chain.output
    where = f"{chain.name}.output"
    if not isinstance(named, Mapping):
        raise _error("an output that is a list", where, "a value, or a table of values")
    numbers = {step.name: k for k, step in enumerate(chain.steps)}
    found: dict[str, Any] = {}
    told: dict[str, str] = {}
    for name, value in named.items():
        if not isinstance(value, Value) or not value.source or value.path or value.is_map:
            raise _error("what is not the whole output of a stage", f"{where}.{name}", "one", value)
        kind, task = kinds[numbers[value.source]], _label(value.source)
        told[name] = kind
        if kind == _ARTIFACT:
            selected = {"outputArtifactKey": OUTPUT, "producerSubtask": task}
            found.setdefault("artifacts", {})[name] = {"artifactSelectors": [selected]}
        else:
            selected = {"outputParameterKey": OUTPUT, "producerSubtask": task}
            found.setdefault("parameters", {})[name] = {"valueFromParameter": selected}
    return found, told


def _definitions(
    name: str, kinds: Mapping[str, str], more: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, Any]:
    artifact = {"artifactType": {"schemaTitle": _ARTIFACT, "schemaVersion": "0.0.1"}}
    artifacts = {key: artifact for key, kind in kinds.items() if kind == _ARTIFACT}
    parameters = {
        key: {"parameterType": kind, **(more or {}).get(key, {})}
        for key, kind in kinds.items()
        if kind != _ARTIFACT
    }
    found = {
        **({"artifacts": artifacts} if artifacts else {}),
        **({"parameters": parameters} if parameters else {}),
    }
    return {name: found} if found else {}


def _output_kind(chain: Chain, step: StageCall) -> str:
    return _kind(step.stage.hints.get("return", Any), f"{chain.name}.{step.name}.return")


def _kind(hint: Any, where: str) -> str:
    """The kind of a declared type in Kubeflow's words."""
    arguments = typing.get_args(hint)
    if type(None) in arguments and len(arguments) == 2:
        hint = next(one for one in arguments if one is not type(None))
    kind = class_of(hint)
    if kind is bytes:
        return _ARTIFACT
    if kind is not None and issubclass(kind, dict):
        kind = dict
    if kind not in KINDS:
        raise _error(
            "a value whose type says too little", where, f"a declared type: {_EXPECTED}", shown(hint)
        )
    return KINDS[kind]


def _label(name: str) -> str:
    """A name as Kubeflow writes it."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _error(what: str, where: str, expected: str, value: Any = None) -> ChainError:
    shown_value = None if isinstance(value, Source | Value) else value
    return ChainError(f"{what} has no counterpart", field=where, value=shown_value, expected=expected)
