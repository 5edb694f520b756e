"""Compiled pipelines written by hand, in the form in which kfp 2 writes them."""

from __future__ import annotations

import copy
import json
from typing import Any

EXECUTOR = "python3 -m kfp.dsl.executor_main --component_module_path"
HEADER = "\nimport kfp\nfrom kfp import dsl\nfrom kfp.dsl import *\nfrom typing import *\n\n"
WRITE = """def write(
    text: str, data: Output[Dataset], times: int = 2
) -> NamedTuple("W", [("size", int), ("half", float)]):
    import os
    from collections import namedtuple
    with open(data.path, "w") as file:
        file.write(text * times)
    data.metadata["mark"] = os.environ.get("MARK", "none")
    return namedtuple("W", "size half")(len(text) * times, len(text) * times / 2)

"""
READ = """def read(message: str, data: Input[Dataset]) -> str:
    with open(data.path) as file:
        return f"{message} {file.read()} {data.metadata['mark']}"

"""
DATASET = {"artifactType": {"schemaTitle": "system.Dataset", "schemaVersion": "0.0.1"}}


def python(source: str, function: str, **more: Any) -> dict[str, Any]:
    """The executor of a Python component."""
    install = "python3 -m pip install 'kfp==2.17.0' '--no-deps' && python -m pip install 'numpy>=2' && \"$0\""
    command = ["sh", "-c", install, "sh", "-ec", f'{EXECUTOR} "$@"', HEADER + source]
    args = ["--executor_input", "{{$}}", "--function_to_execute", function]
    return {"container": {"image": "python:3.11", "command": command, "args": args, **more}}


def task(component: str, *before: str, artifacts: Any = None, **parameters: Any) -> dict[str, Any]:
    """A task; parameters are as compiled, artifacts name a task and its output."""
    made = {key: {"taskOutputArtifact": dict(zip(("producerTask", "outputArtifactKey"), told, strict=True))}
            for key, told in (artifacts or {}).items()}  # fmt: skip
    return {
        "componentRef": {"name": f"comp-{component}"},
        "dependentTasks": list(before),
        "inputs": {"parameters": parameters, "artifacts": made},
        "cachingOptions": {},
        "taskInfo": {"name": component},
    }


def constant(value: Any) -> dict[str, Any]:
    return {"runtimeValue": {"constant": value}}


def outer(name: str) -> dict[str, Any]:
    return {"componentInputParameter": name}


def output(producer: str, key: str) -> dict[str, Any]:
    return {"taskOutputParameter": {"producerTask": producer, "outputParameterKey": key}}


def parameters(**kinds: str) -> dict[str, Any]:
    return {"parameters": {name: {"parameterType": kind} for name, kind in kinds.items()}}


def _from(producer: str, key: str) -> dict[str, Any]:
    return {"valueFromParameter": {"producerSubtask": producer, "outputParameterKey": key}}


_CHANNEL = "{{$.inputs.parameters['pipelinechannel--%s']}}"
_MESSAGE = f"{_CHANNEL % 'size'} of {_CHANNEL % 'half'}"
_SCRIPT = 'cat "$0" > "$1"; echo "$2" >> "$1"; echo 3 > "$3"; shift 3; echo "$@" >> "$COPY"'
_END = ["--end", "{{$.inputs.parameters['end']}}"]
_PIPELINE: dict[str, Any] = {
    "schemaVersion": "2.1.0",
    "sdkVersion": "kfp-2.17.0",
    "pipelineInfo": {"name": "notes-of-2"},
    "components": {
        "comp-write": {
            "executorLabel": "exec-write",
            "inputDefinitions": parameters(text="STRING", times="NUMBER_INTEGER"),
            "outputDefinitions": {
                "artifacts": {"data": DATASET},
                **parameters(size="NUMBER_INTEGER", half="NUMBER_DOUBLE"),
            },
        },
        "comp-read": {
            "executorLabel": "exec-read",
            "inputDefinitions": {"artifacts": {"data": DATASET}, **parameters(message="STRING")},
            "outputDefinitions": parameters(Output="STRING"),
        },
        "comp-count": {
            "executorLabel": "exec-count",
            "inputDefinitions": {"artifacts": {"data": DATASET}, **parameters(word="STRING", end="STRING")},
            "outputDefinitions": {"artifacts": {"copy": DATASET}, **parameters(lines="NUMBER_INTEGER")},
        },
    },
    "deploymentSpec": {
        "executors": {
            "exec-write": python(
                WRITE,
                "write",
                env=[{"name": "MARK", "value": "m"}],
                resources={
                    "cpuRequest": 2.0,
                    "resourceCpuRequest": "1500m",
                    "memoryLimit": 2.147483648,
                    "accelerator": {"type": "NVIDIA_A100", "count": "1"},
                },
            ),
            "exec-read": python(READ, "read"),
            "exec-count": {
                "container": {
                    "image": "busybox",
                    "command": ["sh", "-c", _SCRIPT],
                    "args": [
                        "{{$.inputs.artifacts['data'].path}}",
                        "{{$.outputs.artifacts['copy'].path}}",
                        '{"Concat": ["<", "{{$.inputs.parameters[\'word\']}}", ">"]}',
                        "{{$.outputs.parameters['lines'].output_file}}",
                        json.dumps({"IfPresent": {"InputName": "end", "Then": _END, "Else": ["--none"]}}),
                    ],
                    "env": [{"name": "COPY", "value": "/dev/null"}],
                }
            },
        }
    },
    "root": {
        "inputDefinitions": {
            "parameters": {
                "text": {"parameterType": "STRING"},
                "times": {"parameterType": "NUMBER_INTEGER", "defaultValue": 3.0, "isOptional": True},
            }
        },
        "outputDefinitions": parameters(told="STRING", half="NUMBER_DOUBLE"),
        "dag": {
            "tasks": {
                "write": {
                    **task("write", text=outer("text"), times=outer("times")),
                    "retryPolicy": {
                        "maxRetryCount": 4,
                        "backoffDuration": "2s",
                        "backoffFactor": 3.0,
                        "backoffMaxDuration": "60s",
                    },
                },
                "read": {
                    **task(
                        "read",
                        "write",
                        artifacts={"data": ("write", "data")},
                        message=constant(_MESSAGE),
                        **{
                            "pipelinechannel--size": output("write", "size"),
                            "pipelinechannel--half": output("write", "half"),
                        },
                    ),
                    "cachingOptions": {"enableCache": True},
                },
            },
            "outputs": {
                "parameters": {
                    "told": _from("read", "Output"),
                    "half": _from("write", "half"),
                }
            },
        },
    },
}  # fmt: skip


def pipeline() -> dict[str, Any]:
    """A pipeline of two Python components: the one writes, the other reads; `comp-count` is there, unused."""
    return copy.deepcopy(_PIPELINE)
