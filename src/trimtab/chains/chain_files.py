"""Chains in files: YAML that names stages by dotted paths, and Python."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from trimtab.chains.building import Builder, bind
from trimtab.chains.graph import Chain, Value
from trimtab.chains.stages import OPTION_NAMES, Stage, StageOptions
from trimtab.chains.url_stages import http_stage, openai_stage
from trimtab.errors import ChainError, UsageError
from trimtab.validation.base import Spec
from trimtab.validation.problems import checked
from trimtab.validation.yaml_text import parsed_yaml, read_yaml

_TYPES: Mapping[str, Any] = {
    "any": Any, **{kind.__name__: kind for kind in (str, int, float, bool, bytes, list, dict)},
}  # fmt: skip


class InputSpec(Spec):
    """An input of a chain."""

    type: str = "any"
    default: Any = None


class OpenAiSpec(Spec):
    """A chat model behind an OpenAI API."""

    url: str
    model: str
    key_variable: str = "OPENAI_API_KEY"


class StepSpec(Spec):
    """A stage: what runs, what it reads, and options that differ from those of its declaration."""

    run: str = Field("", description="dotted path of a stage, or a URL")
    openai: OpenAiSpec | None = None
    map: dict[str, str] = Field(default_factory=dict, description="arguments that are read item by item")
    args: dict[str, Any] = Field(default_factory=dict, description="other arguments; strings name values")
    when: str = Field("", description="a value; the stage is skipped where it is not true")
    options: dict[str, Any] = Field(default_factory=dict)


class ChainSpec(Spec):
    """A chain."""

    name: str
    inputs: dict[str, str | InputSpec]
    stages: dict[str, StepSpec]
    output: str | dict[str, str] | list[str]


def load_chain(source: str) -> Chain:
    """The chain of FILE.yaml, FILE.py, FILE.py:NAME or MODULE:NAME. Raises ChainError."""
    place, _, name = source.partition(":")
    path = Path(place)
    if path.suffix in (".yaml", ".yml"):
        return chain_of_text(read_yaml(path, ChainError), str(path), path.parent)
    module = _module_of(path) if path.suffix == ".py" else _imported(place, source)
    found = {key: value for key, value in vars(module).items() if isinstance(value, Chain)}
    if name:
        found = {key: value for key, value in found.items() if key == name}
    if len({id(value) for value in found.values()}) != 1:
        known = [key for key, value in vars(module).items() if isinstance(value, Chain)]
        expected = f"FILE.py:NAME with one of {', '.join(known)}" if known else "a function with @chain"
        has = "several chains" if found else "no chain of this name" if name else "no chain"
        raise ChainError(f"has {has}", file=source, value=name or None, expected=expected)
    return next(iter(found.values()))


def chain_of_text(text: str, file: str, folder: Path) -> Chain:
    """The chain that a YAML text describes; its stages may lie beside it, in `folder`. Raises ChainError."""
    data = parsed_yaml(text, file, ChainError, "no chain", "a table with name, inputs, stages and output")
    spec = checked(lambda: ChainSpec.model_validate(data), ChainSpec, file, ChainError)
    _import_from(folder)
    return _FileBuilder(spec, file).built()


class _FileBuilder:
    """Builds the chain of a file."""

    def __init__(self, spec: ChainSpec, file: str) -> None:
        self._spec, self._file = spec, file
        self._values: dict[str, Value] = {}
        self._builder = Builder(spec.name)

    def built(self) -> Chain:
        inputs, defaults = {}, {}
        for name, given in self._spec.inputs.items():
            declared = InputSpec(type=given) if isinstance(given, str) else given
            if declared.type not in _TYPES:
                raise self._error(
                    "no such type", f"inputs.{name}", declared.type, f"one of {', '.join(_TYPES)}"
                )
            inputs[name] = _TYPES[declared.type]
            if "default" in declared.model_fields_set:
                defaults[name] = declared.default
        self._inputs = inputs
        for name, step in self._spec.stages.items():
            self._values[name] = self._add(name, step)
        output = self._output(self._spec.output)
        return self._builder.built(inputs, output, defaults)

    def _add(self, name: str, step: StepSpec) -> Value:
        where = f"stages.{name}"
        stage = self._stage(name, step, where)
        each = {key: self._value(text, f"{where}.map.{key}") for key, text in step.map.items()}
        shared = {key: self._argument(given, f"{where}.args.{key}") for key, given in step.args.items()}
        if twice := sorted(each.keys() & shared.keys()):
            raise self._error("is given under `map` and `args`", where, twice[0])
        condition = self._value(step.when, f"{where}.when") if step.when else None
        try:
            bound = bind(stage, (), {**each, **shared}, self._spec.name)
            return self._builder.add(stage, bound, each, condition, name)
        except ChainError as error:
            raise ChainError(
                error.problem, file=self._file, field=error.field, value=error.value, expected=error.expected
            ) from None

    def _stage(self, name: str, step: StepSpec, where: str) -> Stage:
        if bool(step.run) is (step.openai is not None):
            raise self._error("runs nothing, or two things", where, None, "one of `run` and `openai`")
        if unknown := sorted(set(step.options) - set(OPTION_NAMES)):
            expected = f"one of {', '.join(OPTION_NAMES)}"
            raise self._error("no such option", f"{where}.options", unknown[0], expected)
        try:
            if step.openai is not None:
                told = step.openai
                return openai_stage(
                    told.url, told.model, name=name, key_variable=told.key_variable, **step.options
                )
            if step.run.startswith(("http://", "https://")):
                return http_stage(step.run, name=name, **step.options)
            found = self._found(step.run, f"{where}.run")
            return (found if isinstance(found, Stage) else Stage(found, StageOptions())).options(
                **step.options
            )
        except ChainError as error:
            if error.file is not None:
                raise
            field = f"{where}.options.{error.field}"
            raise self._error(error.problem, field, error.value, error.expected) from None
        except TypeError as error:
            raise self._error(f"cannot be read: {error}", f"{where}.options") from error

    def _found(self, path: str, where: str) -> Any:
        module, _, name = path.replace(":", ".").rpartition(".")
        if not module:
            raise self._error("names no stage", where, path, "a dotted path: package.module.stage")
        found = getattr(_imported(module, self._file, where), name, None)
        if not callable(found):
            raise self._error("no such stage", where, path, f"a function or class of {module}")
        return found

    def _argument(self, given: Any, where: str) -> Any:
        if isinstance(given, str):
            return self._value(given, where)
        if isinstance(given, dict) and set(given) == {"value"}:
            return given["value"]
        return given

    def _value(self, text: str, where: str) -> Value:
        first, *rest = text.split(".")
        if first == "input" and rest:
            if rest[0] not in self._inputs:
                expected = f"one of {', '.join(self._inputs)}"
                raise self._error("no such input", where, text, expected)
            value = Value("", (rest[0],), False, self._inputs[rest[0]])
            rest = rest[1:]
        elif first in self._values:
            value = self._values[first]
        else:
            known = ", ".join([*self._values, *(f"input.{name}" for name in self._inputs)])
            raise self._error(
                "no such value", where, text, f"one of {known}; a constant text is written {{value: text}}"
            )
        for key in rest:
            value = value[int(key) if key.isdigit() else key]
        return value

    def _output(self, output: str | dict[str, str] | list[str]) -> Any:
        if isinstance(output, str):
            return self._value(output, "output")
        if isinstance(output, list):
            return [self._value(text, f"output[{i}]") for i, text in enumerate(output)]
        return {key: self._value(text, f"output.{key}") for key, text in output.items()}

    def _error(self, problem: str, field: str, value: Any = None, expected: str | None = None) -> ChainError:
        return ChainError(problem, file=self._file, field=field, value=value, expected=expected)


def _imported(module: str, file: str, field: str | None = None) -> Any:
    try:
        return importlib.import_module(module)
    except UsageError:  # of a chain in it
        raise
    except Exception as error:  # whatever the user's code raises
        raise ChainError(
            f"cannot be imported: {_raised(error)}", file=file, field=field, value=module, expected="a module"
        ) from error


def _raised(error: Exception) -> str:
    """What a module raised as it was imported, and where."""
    if isinstance(error, ImportError | SyntaxError):  # they say where
        return f"{error}"
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} (line {last.lineno} of {last.filename})"


def _module_of(path: Path) -> Any:
    """The module of a file. Workers import it as this process does: by its name, from its folder."""
    if not path.exists():
        raise ChainError("no such file", file=str(path), expected="a file with a chain")
    _import_from(path.parent)
    module = _imported(path.stem, str(path))
    if Path(module.__file__ or "").resolve() != path.resolve():
        raise ChainError(
            "has the name of another module", file=str(path), value=module.__file__, expected="another name"
        )
    return module


def _import_from(folder: Path) -> None:
    place = str(folder.resolve())
    if place not in sys.path:
        sys.path.insert(0, place)
