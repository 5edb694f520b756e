"""Python components of Kubeflow as stages: their functions run as its executor runs them, without kfp.

A stage takes the component's inputs by name, artifacts as `ArtifactValue`. Its output is a mapping of the
component's outputs. Each attempt has a folder of its own, which is removed.

Source: the executor of the Kubeflow Pipelines SDK 2 (`kfp.dsl.executor`), for annotations and outputs.
"""

from __future__ import annotations

import importlib
import inspect
import os
import tempfile
import threading
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trimtab.chains.kubeflow.artifact_values import (
    KINDS,
    ArtifactValue,
    empty_artifact,
    parameter_file,
    read_parameter,
    taken,
    typed,
)
from trimtab.chains.kubeflow.dsl import INPUT, OUTPUT, Artifact, InputPath, OutputPath
from trimtab.chains.kubeflow.placeholders import with_inputs
from trimtab.chains.stages import Conditional, Stage, StageOptions
from trimtab.live.value_codec import at_path

_SINGLE = "Output"  # name of the output of a function that returns one value
_ENVIRONMENT = threading.Lock()  # variables belong to the process, stages may be threads of it


def component(
    code: Callable[..., Any] | None = None, /, *, env: Mapping[str, str] | None = None, **options: Any
) -> Any:
    """Declare a function with the annotations of Kubeflow a stage.

    @component(cpu=2)
    def train(data: Input[Dataset], rate: float, model: Output[Model]) -> float: ...

    Options: see `StageOptions`; as in Kubeflow, a stage is tried once if `retries` says no more.

    Args:
        env: environment variables while it runs.
    """

    def declared(code: Callable[..., Any]) -> Stage:
        made = PythonComponent(code, dict(env or {}))
        return Stage(made, StageOptions(**{"retries": 0, **options}), code.__name__)

    return declared if code is None else declared(code)


def called(
    module: str,
    name: str,
    given: Mapping[str, Any],
    paths: Mapping[str, Sequence[str | int]],
    target: str = "",
) -> Any:
    """Call a stage of a module, within a component that `trimtab chain export kfp` has made.

    Args:
        module: where the stage is, by its name in the image.
        name: of its function or class.
        given: arguments; artifacts stand for the bytes of their files.
        paths: of arguments, of which the stage gets a part.
        target: file for an output of bytes; "" = the output is returned.
    """
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    stage = found if isinstance(found, Stage) else Stage(found, StageOptions())
    arguments = {
        key: at_path(
            Path(value.path).read_bytes() if hasattr(value, "path") else value, tuple(paths.get(key, ()))
        )
        for key, value in given.items()
    }
    output = stage(**arguments)
    if not target:
        return output
    Path(target).write_bytes(output)
    return None


def task(stage: Stage, **given: Any) -> Any:
    """Add a call of a stage to the chain that is being built, though it reads nothing of the chain."""
    return Conditional(stage, None)(**given)


def after(*values: Any) -> dict[str, Any]:
    """Arguments that make a stage wait for others whose outputs it does not read."""
    return {f"after-{k}": value for k, value in enumerate(values)}


class PythonComponent:
    """The code of a stage that is a Python component."""

    def __init__(self, function: Callable[..., Any], env: Mapping[str, str]) -> None:
        self.__wrapped__, self.__name__, self._env = function, function.__name__, env
        self.__annotations__: dict[str, Any] = {}  # not the function's: what it gets is not what stages give

    @property
    def __signature__(self) -> inspect.Signature:
        """The inputs by name, and what only texts of inputs name."""
        parameters = inspect.signature(self.__wrapped__).parameters.values()
        keyword = inspect.Parameter.KEYWORD_ONLY
        inputs = [
            p.replace(kind=keyword, annotation=p.empty) for p in parameters if not _is_output(p.annotation)
        ]
        return inspect.Signature([*inputs, inspect.Parameter("others", inspect.Parameter.VAR_KEYWORD)])

    def __call__(self, **given: Any) -> dict[str, Any]:
        """Run it once. Raises TypeError for an output of another type than declared."""
        given = {name: with_inputs(value, given) for name, value in given.items()}
        with attempt_folder() as folder, _environment(self._env):
            return self._run(given, folder)

    def _run(self, given: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        arguments, files, artifacts = dict[str, Any](), dict[str, str](), dict[str, Artifact]()
        signature = inspect.signature(self.__wrapped__)
        for name, parameter in signature.parameters.items():
            kind, marker = _unmarked(parameter.annotation)
            value = given.get(name)
            if isinstance(kind, OutputPath) and kind.artifact is None:
                files[name] = _kind_of(kind.type)
                arguments[name] = str(parameter_file(folder, name))
            elif isinstance(kind, OutputPath) or marker == OUTPUT:
                wanted = (kind.artifact if isinstance(kind, OutputPath) else kind) or Artifact
                made = artifacts[name] = empty_artifact(folder, name, wanted)
                arguments[name] = made.path if isinstance(kind, OutputPath) else made
            elif isinstance(value, ArtifactValue):
                read = value.placed(folder, name)
                arguments[name] = read.path if isinstance(kind, InputPath) else read
            elif value is not None:
                arguments[name] = typed(value, _kind_of(kind))
        returned = self.__wrapped__(**arguments)
        outputs = dict(self._returned(returned, signature.return_annotation, folder))
        outputs |= {name: taken(artifact, folder) for name, artifact in artifacts.items()}
        for name, kind in files.items():
            if (place := parameter_file(folder, name)).exists():
                outputs[name] = read_parameter(place, kind)
        return outputs

    def _returned(self, value: Any, kind: Any, folder: Path) -> Iterator[tuple[str, Any]]:
        if value is None or kind in (None, inspect.Signature.empty):
            return
        fields = getattr(kind, "_fields", None)
        if fields is None:
            yield _SINGLE, self._output(_SINGLE, value, kind, folder)
            return
        values = value if type(value) is tuple else tuple(getattr(value, name) for name in fields)
        if len(values) != len(fields):
            raise TypeError(f"{self.__name__} returned {len(values)} values; expected {len(fields)}")
        for name, one in zip(fields, values, strict=True):
            yield name, self._output(name, one, kind.__annotations__[name], folder)

    def _output(self, name: str, value: Any, kind: Any, folder: Path) -> Any:
        kind, _ = _unmarked(kind)
        if isinstance(kind, type) and issubclass(kind, Artifact):
            if isinstance(value, Artifact):
                return taken(value, folder)
            made = empty_artifact(folder, name, kind)
            Path(made.path).write_text(str(value), encoding="utf-8")
            return taken(made, folder)
        wanted = typing.get_origin(kind) or kind
        if not isinstance(value, (int, float) if wanted is float else wanted):
            raise TypeError(
                f"{self.__name__} returned {type(value).__name__} as {name}; expected {wanted.__name__}"
            )
        return typed(value, _kind_of(kind))


@contextmanager
def attempt_folder() -> Iterator[Path]:
    """Context with a folder for the files of an attempt."""
    with tempfile.TemporaryDirectory(prefix="trimtab-component-") as folder:
        yield Path(folder)


@contextmanager
def _environment(given: Mapping[str, str]) -> Iterator[None]:
    """Context in which the process has these variables, too. One stage at a time is in it."""
    if not given:
        yield
        return
    with _ENVIRONMENT:
        before = {name: os.environ.get(name) for name in given}
        os.environ.update(given)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def _is_output(annotation: Any) -> bool:
    kind, marker = _unmarked(annotation)
    return marker == OUTPUT or isinstance(kind, OutputPath)


def _unmarked(annotation: Any) -> tuple[Any, str]:
    """The type of an annotation without Optional, and whether it marks an input or an output."""
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) in (typing.Union, types.UnionType) and type(None) in arguments:
        annotation = next(kind for kind in arguments if kind is not type(None))
    marker = getattr(annotation, "__metadata__", ("",))[0]
    return (annotation.__origin__, marker) if marker in (INPUT, OUTPUT) else (annotation, "")


def _kind_of(annotation: Any) -> str:
    """The kind of a parameter in Kubeflow's words; "" = unknown."""
    return KINDS.get(typing.get_origin(annotation) or annotation, "")
