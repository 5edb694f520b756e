"""Builds chains by calling a function on values that are not known yet."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from trimtab.chains.graph import INPUT, Binding, Chain, Source, StageCall, Value, sources_in, values_in
from trimtab.chains.stages import BUILDER, Stage, check_fits, item_type
from trimtab.errors import ChainError
from trimtab.live.stage_backend import Path


class Builder:
    """The steps of a chain that is being built."""

    def __init__(self, name: str) -> None:
        self.name, self.steps = name, list[StageCall]()
        self._number: dict[str, int] = {}  # of steps, by name
        self._splits: list[list[Path]] = []  # of each step
        self._tests: list[list[Path]] = []
        self._input_splits: list[tuple[str, Path]] = []

    def add(
        self,
        stage: Stage,
        given: Mapping[str, Any],
        each: Collection[str],
        condition: Value | None,
        name: str = "",
    ) -> Value:
        """Add a step; returns its output. `each` names the arguments that are read item by item."""
        wanted = name or stage.name
        if name and name in self._number:
            raise ChainError("two stages of one name", field=self.name, value=name)
        unique = wanted
        number = 2
        while unique in self._number:
            unique, number = f"{wanted}_{number}", number + 1
        where = f"{self.name}.{unique}"
        for parameter, value in given.items():
            _check_type(stage, parameter, value, f"{where}.{parameter}", is_each=parameter in each)
        arguments = tuple(
            Binding(parameter, self._source(value, is_each=parameter in each))
            if isinstance(value, Value)
            else Binding(parameter, None, value)
            for parameter, value in given.items()
        )
        is_map, tested, test = bool(each), None, -1
        if condition is not None:
            tested = self._source(condition, is_each=condition.is_map and is_map)
            if tested.step != INPUT:
                test = _position(self._tests[tested.step], tested.path)
        after = self._after(where, sources_in(arguments, tested))
        self._number[unique] = len(self.steps)
        self.steps.append(
            StageCall(unique, f"{self.name}/{unique}", stage, arguments, tested, test, is_map, after)
        )
        self._splits.append([])
        self._tests.append([])
        return Value(unique, (), is_map, stage.hints.get("return", Any))

    def takes(self, given: Iterable[Any]) -> bool:
        """Whether some argument is a value of a chain."""
        return any(isinstance(argument, Value) for argument in given)

    def called(self, stage: Stage, args: Sequence[Any], kwargs: Mapping[str, Any], condition: Any) -> Value:
        """Add a call of a stage."""
        return self.add(stage, bind(stage, args, kwargs, self.name), (), condition)

    def mapped(self, stage: Stage, items: Sequence[Any], shared: Mapping[str, Any], condition: Any) -> Value:
        """Add a map of a stage."""
        bound = bind(stage, items, shared, self.name)
        each = [name for name in bound if name not in shared]
        for name in each:
            if not isinstance(bound[name], Value):
                raise ChainError(
                    "maps over a constant", field=f"{self.name}.{stage.name}.{name}", expected="a value"
                )
        return self.add(stage, bound, each, condition)

    def built(self, inputs: Mapping[str, Any], output: Any, defaults: Mapping[str, Any]) -> Chain:
        """The chain, checked as a whole. Raises ChainError."""
        if not self.steps:
            raise ChainError("has no stages", field=self.name, expected="at least one")
        if not any(value.source for value in values_in(output)):
            raise ChainError("returns no output of a stage", field=self.name, value=output)
        steps = [
            replace(step, splits=tuple(self._splits[k]), tests=tuple(self._tests[k]))
            for k, step in enumerate(self.steps)
        ]
        return Chain(self.name, inputs, tuple(steps), output, defaults, tuple(self._input_splits))

    def _source(self, value: Value, *, is_each: bool) -> Source:
        """What a step reads, by the number of the step that makes it."""
        if value.source == "":
            parameter, path = str(value.path[0]), value.path[1:]
            split = _position(self._input_splits, (parameter, path)) if is_each else -1
            return Source(INPUT, parameter, path, False, is_each, split)
        step = self._number[value.source]
        split = _position(self._splits[step], value.path) if is_each and not value.is_map else -1
        return Source(step, "", value.path, value.is_map, is_each, split)

    def _after(self, where: str, sources: Iterable[Source]) -> dict[int, bool]:
        after: dict[int, bool] = {}
        for source in sources:
            each = source.each and source.is_map
            if source.step != INPUT and after.setdefault(source.step, each) is not each:
                raise ChainError(
                    "reads a map both as a whole and item by item",
                    field=where,
                    value=self.steps[source.step].name,
                )
        return after


def _check_type(stage: Stage, parameter: str, given: Any, where: str, *, is_each: bool) -> None:
    """Raise ChainError for an argument of another type than its parameter's."""
    kind = type(given)
    if isinstance(given, Value):
        kind = given.type
        if is_each and not given.is_map:
            kind = item_type(kind, where)
        elif given.is_map and not is_each:
            kind = list[kind]  # type: ignore[valid-type]
    check_fits(kind, stage.hints.get(parameter, Any), where)


def _position(items: list[Any], item: Any) -> int:
    if item not in items:
        items.append(item)
    return items.index(item)


def bind(stage: Stage, args: Sequence[Any], kwargs: Mapping[str, Any], chain: str) -> dict[str, Any]:
    """Arguments by parameter, as Python would bind them. Raises ChainError."""
    parameters = [p for p in stage.signature.parameters.values() if p.name != stage.context_name]
    signature = stage.signature.replace(parameters=parameters)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise ChainError(
            f"cannot be called so: {error}", field=f"{chain}.{stage.name}", expected=f"arguments {signature}"
        ) from None
    plain: dict[str, Any] = {}
    for name, given in bound.arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            plain |= given
        elif kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY):
            raise ChainError(
                "has arguments without names",
                field=f"{chain}.{stage.name}.{name}",
                expected="named parameters",
            )
        else:
            plain[name] = given
    return plain


def chain(code: Callable[..., Any] | None = None, /, *, name: str = "") -> Any:
    """Make a chain of a function that calls stages.

    @chain
    def film(prompt: str):
        story = write(prompt)
        return join(draw.map(story.scenes), speak.map(story.scenes))
    """

    def built(code: Callable[..., Any]) -> Chain:
        signature, title = inspect.signature(code), name or code.__name__
        hints = typing.get_type_hints(code)
        inputs = {p: hints.get(p, Any) for p in signature.parameters}
        defaults = {p.name: p.default for p in signature.parameters.values() if p.default is not p.empty}
        builder = Builder(title)
        token = BUILDER.set(builder)
        try:
            output = code(**{p: Value("", (p,), False, kind) for p, kind in inputs.items()})
        finally:
            BUILDER.reset(token)
        return builder.built(inputs, output, defaults)

    return built if code is None else built(code)
