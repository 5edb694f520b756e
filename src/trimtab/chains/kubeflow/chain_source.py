"""A compiled Kubeflow pipeline as a Python file: its functions are stages, its graph is a chain."""

from __future__ import annotations

import ast
import keyword
import re
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final, NamedTuple

from trimtab.chains.kubeflow import dsl
from trimtab.chains.kubeflow.pipeline_spec import Component, Container, Dag, GivenParameter, Pipeline, Task
from trimtab.chains.kubeflow.placeholders import unknown_in
from trimtab.chains.kubeflow.python_source import (
    RESERVED,
    defined,
    is_python,
    names_in,
    python_source,
    renamed,
)
from trimtab.chains.kubeflow.stage_options import options_of
from trimtab.errors import ChainError

_TYPES: Final = {
    "STRING": "str", "NUMBER_INTEGER": "int", "NUMBER_DOUBLE": "float", "BOOLEAN": "bool", "LIST": "list",
    "STRUCT": "dict",
}  # fmt: skip


class Imported(NamedTuple):
    """A Python file, and what its reader has to know."""

    text: str
    chain: str  # its name in the file
    stages: tuple[str, ...]
    notes: tuple[str, ...]


class _Given(NamedTuple):
    """An expression, and the variable of the task that it reads; "" = none."""

    text: str
    variable: str = ""


class _Made(NamedTuple):
    """A task, or a graph of tasks, in the chain."""

    outputs: dict[str, _Given]
    variables: tuple[str, ...]


class _Scope(NamedTuple):
    """What the tasks of a graph can read: its inputs, and the tasks before them."""

    inputs: Mapping[str, _Given]
    made: dict[str, _Made]


def chain_source(pipeline: Pipeline, file: str) -> Imported:
    """The pipeline as Python. Raises ChainError for what chains cannot run."""
    return _Writer(pipeline, file).written()


@dataclass
class _Writer:
    """Writes one file."""

    pipeline: Pipeline
    file: str
    _taken: dict[str, str] = field(default_factory=dict)  # names at the top, and what defines each
    _definitions: dict[str, str] = field(default_factory=dict)  # text of each stage, by its name
    _lines: list[str] = field(default_factory=list)
    _notes: list[str] = field(default_factory=list)
    _stages: list[str] = field(default_factory=list)
    _variables: set[str] = field(default_factory=set)
    _before: dict[str, set[str]] = field(default_factory=dict)  # variables that each one's task follows
    _read: set[str] = field(default_factory=set)  # variables that something reads or waits for

    def written(self) -> Imported:
        root, name = self.pipeline.root, self.pipeline.pipeline_info.name
        assert root.dag is not None
        inputs = self._inputs(root)
        made = self._add_dag(root.dag, {name: _Given(name, name) for name in inputs}, (), "", "root")
        outputs = {key: given.text for key, given in made.outputs.items()}
        if not outputs:
            last = [variable for variable in made.variables if variable not in self._read]
            outputs = {variable.removesuffix("_task"): variable for variable in last}
            self._notes.append("the pipeline has no outputs: the chain has those of its last tasks")
        function = self._free(_identifier(name))
        text = "\n".join(
            [
                f'"""Chain {name}, imported from the Kubeflow pipeline {self.file}."""',
                "",
                *self._imports(),
                *(f"\n\n{text.rstrip()}" for text in self._definitions.values()),
                f"\n\n@chain(name={name!r})",
                f"def {function}({', '.join(inputs.values())}):",
                *(f"    {line}" for line in self._lines),
                f"    return {{{', '.join(f'{key!r}: {text}' for key, text in sorted(outputs.items()))}}}",
                "",
            ]
        )
        ast.parse(text)
        return Imported(text, function, tuple(self._stages), tuple(dict.fromkeys(self._notes)))

    def _imports(self) -> list[str]:
        used = {name for text in (*self._definitions.values(), *self._lines) for name in names_in(text)}
        typed = sorted(used & set(typing.__all__) - set(dsl.NAMES))
        ours = sorted(used & {*dsl.NAMES, "after", "component", "dsl", "program", "task"})
        return [
            *([f"from typing import {', '.join(typed)}", ""] if typed else []),
            f"from trimtab.chains import chain{', kubeflow as kfp' if 'kfp' in used else ''}",
            f"from trimtab.chains.kubeflow import {', '.join(ours)}",
        ]

    def _inputs(self, root: Component) -> dict[str, str]:
        """The chain's parameters as Python declares them, those without a default first."""
        for name in root.input_definitions.artifacts:
            where = f"root.inputDefinitions.artifacts.{name}"
            raise self._error(
                "an artifact as an input of the pipeline is not supported", where, None, "a value"
            )
        found = {}
        for name, spec in root.input_definitions.parameters.items():
            where = f"root.inputDefinitions.parameters.{name}"
            if not name.isidentifier() or keyword.iskeyword(name):
                raise self._error("no name of Python", where, name, "letters, digits and _")
            if spec.parameter_type not in _TYPES:
                expected = f"one of {', '.join(_TYPES)}"
                raise self._error("no such type", f"{where}.parameterType", spec.parameter_type, expected)
            default = _whole(spec.default_value, spec.parameter_type)
            has_default = spec.is_optional or default is not None
            told = f" = {default!r}" if has_default else ""
            found[name] = f"{name}: {_TYPES[spec.parameter_type]}{told}"
        self._variables |= set(found)
        return dict(sorted(found.items(), key=lambda item: " = " in item[1]))

    # Graphs.

    def _add_dag(
        self, dag: Dag, inputs: Mapping[str, _Given], waits: Iterable[str], prefix: str, where: str
    ) -> _Made:
        """Add the tasks of a graph, which wait for these variables."""
        scope = _Scope(inputs, {})
        for name in self._in_order(dag, where):
            at = f"{where}.dag.tasks.{name}"
            scope.made[name] = self._add(dag.tasks[name], f"{prefix}{name}", scope, waits, at)
        outputs = {}
        for name, parameter in dag.outputs.parameters.items():
            told = parameter.value_from_parameter
            at = f"{where}.dag.outputs.parameters.{name}"
            outputs[name] = self._output(scope.made, told.producer_subtask, told.output_parameter_key, at)
        for name, artifact in dag.outputs.artifacts.items():
            selected, at = artifact.artifact_selectors[0], f"{where}.dag.outputs.artifacts.{name}"
            outputs[name] = self._output(
                scope.made, selected.producer_subtask, selected.output_artifact_key, at
            )
        return _Made(outputs, tuple(variable for one in scope.made.values() for variable in one.variables))

    def _in_order(self, dag: Dag, where: str) -> Iterable[str]:
        before = {name: sorted({*task.dependent_tasks, *task.producers}) for name, task in dag.tasks.items()}
        try:
            return list(TopologicalSorter(before).static_order())
        except CycleError as error:
            circle = " → ".join(error.args[1])
            raise self._error(
                "tasks wait for each other", f"{where}.dag.tasks", circle, "no circle"
            ) from None

    def _output(self, made: Mapping[str, _Made], task: str, key: str, where: str) -> _Given:
        outputs = made[task].outputs if task in made else {}
        if key not in outputs:
            expected = f"one of {', '.join(f'{name}.{k}' for name, one in made.items() for k in one.outputs)}"
            raise self._error("no such output", where, f"{task}.{key}", expected)
        self._read.add(outputs[key].variable)
        return outputs[key]

    def _add(self, task: Task, name: str, scope: _Scope, waits: Iterable[str], where: str) -> _Made:
        """Add a task, or the tasks of the graph that it stands for."""
        component = self.pipeline.components[task.component_ref.name]
        given = dict(self._arguments(task, component, scope, where))
        later = [*waits, *(v for before in task.dependent_tasks for v in scope.made[before].variables)]
        if component.dag is not None:
            at = f"components.{task.component_ref.name}"
            return self._add_dag(component.dag, given, later, f"{name}-", at)
        read = {argument.variable for argument in given.values()} & self._before.keys()
        known = {*read, *(v for one in (*read, *later) for v in self._before[one])}
        later = [variable for variable in dict.fromkeys(later) if variable not in known]
        self._read |= set(later)
        container = self.pipeline.deployment_spec.executors[component.executor_label].container
        at = f"deploymentSpec.executors.{component.executor_label}"
        options, notes = options_of(task, container.resources, self.file, at)
        self._notes += [f"{name}: {text}" for text in notes]
        stage = self._stage(component, container, f"{at}.container")
        title = self._unique(_identifier(name), self._stages)
        self._stages.append(title)
        variable = self._unique(f"{title}_task", self._variables)
        self._variables.add(variable)
        self._before[variable] = known | set(later)
        called = stage
        if options:
            called += f".options({', '.join(f'{key}={value!r}' for key, value in options.items())})"
        if title != stage:
            called += f".named({title!r})"
        arguments = _call(given, later)
        reads = later or any(argument.variable for argument in given.values())
        made_by = f"{called}({arguments})" if reads else f"task({called}, {arguments})".replace(", )", ")")
        self._lines.append(f"{variable} = {made_by}")
        definitions = component.output_definitions
        keys = (*definitions.parameters, *definitions.artifacts)
        return _Made({key: _Given(f"{variable}[{key!r}]", variable) for key in keys}, (variable,))

    def _arguments(
        self, task: Task, component: Component, scope: _Scope, where: str
    ) -> Iterable[tuple[str, _Given]]:
        wanted = component.input_definitions
        for key, parameter in task.inputs.parameters.items():
            kind = wanted.parameters[key].parameter_type if key in wanted.parameters else ""
            yield key, self._value(parameter, kind, scope, f"{where}.inputs.parameters.{key}")
        for key, artifact in task.inputs.artifacts.items():
            at = f"{where}.inputs.artifacts.{key}"
            if (told := artifact.task_output_artifact) is not None:
                yield key, self._output(scope.made, told.producer_task, told.output_artifact_key, at)
            else:
                yield key, self._input(artifact.component_input_artifact or "", scope.inputs, at)
        if component.dag is not None:
            for key, spec in wanted.parameters.items():
                if key not in task.inputs.parameters:
                    yield key, _Given(repr(_whole(spec.default_value, spec.parameter_type)))

    def _value(self, given: GivenParameter, kind: str, scope: _Scope, where: str) -> _Given:
        if (told := given.task_output_parameter) is not None:
            return self._output(scope.made, told.producer_task, told.output_parameter_key, where)
        if given.component_input_parameter is not None:
            return self._input(given.component_input_parameter, scope.inputs, where)
        if given.runtime_value is None:
            expected = "componentInputParameter, runtimeValue or taskOutputParameter"
            raise self._error("has no value", where, None, expected)
        constant = given.runtime_value.constant
        if unknown := unknown_in(constant):
            raise self._error("a placeholder that is not supported", where, unknown, "inputs.parameters")
        return _Given(repr(_whole(constant, kind)))

    def _input(self, name: str, inputs: Mapping[str, _Given], where: str) -> _Given:
        if name not in inputs:
            expected = f"one of {', '.join(inputs)}" if inputs else "none: there are no inputs"
            raise self._error("no such input", where, name, expected)
        self._read.add(inputs[name].variable)
        return inputs[name]

    # Stages.

    def _stage(self, component: Component, container: Container, where: str) -> str:
        """The name of the stage that runs a container; it is defined once."""
        env = {variable.name: variable.value for variable in container.env}
        if is_python(container):
            return self._python_stage(container, env, where)
        inputs, outputs = component.input_definitions, component.output_definitions
        label = component.executor_label.removeprefix("exec-")
        command = [*container.command, *container.args]
        if not container.command:
            raise self._error("what runs is known to the image alone", f"{where}.command", None, "a command")
        arguments = [
            f"    {command!r},",
            f"    inputs={_kinds(inputs)!r},",
            f"    outputs={_kinds(outputs)!r},",
            *([f"    env={env!r},"] if env else []),
        ]
        name = self._defined_as(_identifier(label), "\n".join(arguments))
        if name not in self._definitions:
            head = f"# Runs on the worker, not in its image: {container.image}"
            lines = [head, f"{name} = program(", f"    {name!r},", *arguments, ")"]
            self._definitions[name] = "\n".join(lines)
            self._notes.append(f"{name}: its command runs on the worker, not in the image {container.image}")
        return name

    def _python_stage(self, container: Container, env: Mapping[str, str], where: str) -> str:
        source = python_source(container, self.file, where)
        text = f"{env!r}\n{source.text}" if env else source.text
        names = {name: self._defined_as(name, text) for name in defined(source.text)}
        name = names[source.function]
        if name in self._definitions:
            return name
        code = renamed(source.text, {old: new for old, new in names.items() if old != new})
        called = f"component(env={env!r})" if env else "component"
        needs = f" Needs {', '.join(source.packages)}." if source.packages else ""
        head = f"# Image: {container.image}.{needs}"
        self._definitions[name] = f"{head}\n{_decorated(code, name, called)}"
        if source.packages:
            self._notes.append(f"{name}: workers need {', '.join(source.packages)}")
        if source.imports_kfp:
            self._notes.append(f"{name}: it imports kfp itself, so workers need it")
        return name

    def _defined_as(self, name: str, text: str) -> str:
        """The name under which this text is defined at the top: its own, or the next that is free."""
        number, free = 2, name
        while free in RESERVED or self._taken.get(free, text) != text:
            free, number = f"{name}_{number}", number + 1
        self._taken[free] = text
        return free

    def _free(self, name: str) -> str:
        return self._defined_as(name, "")

    def _unique(self, name: str, taken: Iterable[str]) -> str:
        number, free = 2, name
        while free in taken or free in RESERVED:
            free, number = f"{name}_{number}", number + 1
        return free

    def _error(self, problem: str, where: str, value: Any, expected: str) -> ChainError:
        return ChainError(problem, file=self.file, field=where, value=value, expected=expected)


def _call(given: Mapping[str, _Given], later: Iterable[str]) -> str:
    """The arguments of a call."""
    plain = [f"{key}={value.text}" for key, value in given.items() if _is_name(key)]
    others = ", ".join(f"{key!r}: {value.text}" for key, value in given.items() if not _is_name(key))
    waits = ", ".join(later)
    return ", ".join(
        [*plain, *([f"**{{{others}}}"] if others else []), *([f"**after({waits})"] if waits else [])]
    )


def _is_name(key: str) -> bool:
    return key.isidentifier() and not keyword.iskeyword(key)


def _identifier(name: str) -> str:
    """A name of Python for a name of Kubeflow."""
    found = re.sub(r"\W+", "_", name.lower()).strip("_") or "chain"
    return f"_{found}" if found[0].isdigit() else f"{found}_" if keyword.iskeyword(found) else found


def _whole(value: Any, kind: str) -> Any:
    """A number as its kind: the compiler writes 3 as 3.0."""
    return int(value) if kind == "NUMBER_INTEGER" and isinstance(value, float) else value


def _kinds(definitions: Any) -> dict[str, str]:
    found = {name: spec.parameter_type for name, spec in definitions.parameters.items()}
    return found | {name: spec.artifact_type.schema_title for name, spec in definitions.artifacts.items()}


def _decorated(code: str, name: str, decorator: str) -> str:
    """The code with a decorator before the definition of this name."""
    line = next(
        node.lineno
        for node in ast.parse(code).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
    )
    lines = code.splitlines(keepends=True)
    return "".join([*lines[: line - 1], f"@{decorator}\n", *lines[line - 1 :]])
