"""Container components of Kubeflow as stages: their command runs on the worker's machine, not in its image.

The programs that a command names have to be there. Placeholders are resolved as in
`trimtab.chains.kubeflow.placeholders`; `Concat` and `IfPresent` as the specification of components says.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.chains.kubeflow.artifact_values import (
    ArtifactValue,
    empty_artifact,
    parameter_file,
    read_parameter,
    taken,
    typed,
)
from trimtab.chains.kubeflow.components import attempt_folder
from trimtab.chains.kubeflow.dsl import ARTIFACTS, Artifact
from trimtab.chains.kubeflow.placeholders import INPUT, replaced, text_of, with_inputs
from trimtab.chains.stages import Stage, StageOptions

SHOWN_CHARACTERS = 500  # of what a program that failed has printed last


class ProgramFailed(Exception):  # noqa: N818 - reads as the sentence it prints
    """A program ended with another code than 0."""


def program(
    name: str,
    command: Sequence[str],
    *,
    inputs: Mapping[str, str],
    outputs: Mapping[str, str],
    env: Mapping[str, str] | None = None,
    **options: Any,
) -> Stage:
    """A stage that runs a command.

    Args:
        command: program and arguments, with placeholders.
        inputs: kind of each input: a parameter's, such as STRING, or an artifact's, such as system.Dataset.
        outputs: the same for outputs.
        env: further environment variables.
        options: see `StageOptions`; tried once if `retries` says no more.
    """
    made = Program(name, tuple(command), dict(inputs), dict(outputs), dict(env or {}))
    return Stage(made, StageOptions(**{"retries": 0, **options}), name)


@dataclass(frozen=True)
class Program:
    """The code of a stage that runs a command."""

    name: str
    command: tuple[str, ...]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    env: Mapping[str, str]

    @property
    def __signature__(self) -> inspect.Signature:
        """Inputs by name, all of which may be missing, and what only texts of inputs name."""
        kind = inspect.Parameter.KEYWORD_ONLY
        inputs = [inspect.Parameter(name, kind, default=None) for name in self.inputs]
        return inspect.Signature([*inputs, inspect.Parameter("others", inspect.Parameter.VAR_KEYWORD)])

    def __call__(self, **given: Any) -> dict[str, Any]:
        """Run it once. Raises ProgramFailed."""
        given = {
            name: typed(with_inputs(value, given), self.inputs.get(name, "")) for name, value in given.items()
        }
        with attempt_folder() as folder:
            return self._run({name: value for name, value in given.items() if value is not None}, folder)

    def _run(self, given: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        artifacts = {
            name: empty_artifact(folder, name, ARTIFACTS.get(kind, Artifact))
            for name, kind in self.outputs.items()
            if "." in kind
        }
        files = {name: parameter_file(folder, name) for name, kind in self.outputs.items() if "." not in kind}
        read = {
            name: value.placed(folder, name)
            for name, value in given.items()
            if isinstance(value, ArtifactValue)
        }
        known = {
            **{f".inputs.artifacts['{name}']": artifact for name, artifact in read.items()},
            **{f".outputs.artifacts['{name}']": artifact for name, artifact in artifacts.items()},
        }

        def resolve(path: str) -> str | None:
            path = path.replace("''", "'").replace('"', "'")
            if (found := INPUT.fullmatch(path)) is not None:
                return text_of(given.get(found[1]))
            for name, file in files.items():
                if path == f".outputs.parameters['{name}'].output_file":
                    return str(file)
            owner, _, part = path.rpartition(".")
            artifact = known.get(owner)
            return None if artifact is None else text_of(getattr(artifact, part, None))

        command = [replaced(part, resolve) for text in self.command for part in _parts(text, given)]
        done = subprocess.run(
            command, env={**os.environ, **self.env}, cwd=folder, capture_output=True, text=True, check=False
        )
        if done.returncode:
            printed = (done.stderr or done.stdout).strip()[-SHOWN_CHARACTERS:]
            raise ProgramFailed(f"{command[0]} ended with code {done.returncode}: {printed}")
        outputs: dict[str, Any] = {name: taken(artifact, folder) for name, artifact in artifacts.items()}
        written = {name: file for name, file in files.items() if file.exists()}
        return outputs | {name: read_parameter(file, self.outputs[name]) for name, file in written.items()}


def _parts(text: str, given: Mapping[str, Any]) -> Iterator[str]:
    """The arguments that one text of a command stands for."""
    if not text.startswith(('{"Concat": ', '{"IfPresent": ')):
        yield text
    else:
        yield from _resolved(json.loads(text), given)


def _resolved(part: Any, given: Mapping[str, Any]) -> Iterator[str]:
    if isinstance(part, str):
        yield part
    elif isinstance(part, list):
        for item in part:
            yield from _resolved(item, given)
    elif "Concat" in part:
        yield "".join(_resolved(part["Concat"], given))
    else:
        asked = part["IfPresent"]
        yield from _resolved(asked["Then"] if asked["InputName"] in given else asked.get("Else") or [], given)
