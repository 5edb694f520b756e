"""Builds chains by calling a function on values that are not known yet."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from trimtab.chains.graph import Binding, Chain, Reads, StageCall, Value
from trimtab.chains.stages import BUILDER, Stage, check_fits, item_type
from trimtab.errors import ChainError


class Builder:
    """The steps of a chain that is being built."""

    def __init__(self, name: str) -> None:
        self.name, self.steps = name, list[StageCall]()

    def add(
        self, stage: Stage, bindings: Sequence[Binding], condition: Value | None, name: str = ""
    ) -> Value:
        """Add a step; returns its output."""
        taken = {step.name for step in self.steps}
        wanted = name or stage.name
        if name and name in taken:
            raise ChainError("two stages of one name", field=self.name, value=name)
        unique = wanted
        number = 2
        while unique in taken:
            unique, number = f"{wanted}_{number}", number + 1
        step = StageCall(unique, stage, tuple(bindings), condition)
        self._check(step)
        self.steps.append(step)
        return Value(unique, (), step.is_map, stage.hints.get("return", Any))

    def takes(self, given: Iterable[Any]) -> bool:
        """Whether some argument is a value of a chain."""
        return any(isinstance(argument, Value) for argument in given)

    def called(self, stage: Stage, args: Sequence[Any], kwargs: Mapping[str, Any], condition: Any) -> Value:
        """Add a call of a stage."""
        bound = bind(stage, args, kwargs, self.name)
        return self.add(stage, [_binding(name, given) for name, given in bound.items()], condition)

    def mapped(self, stage: Stage, items: Sequence[Any], shared: Mapping[str, Any], condition: Any) -> Value:
        """Add a map of a stage."""
        bound = bind(stage, items, shared, self.name)
        bindings = []
        for name, given in bound.items():
            each = name not in shared
            if each and not isinstance(given, Value):
                raise ChainError(
                    "maps over a constant", field=f"{self.name}.{stage.name}.{name}", expected="a value"
                )
            bindings.append(_binding(name, given, Reads.EACH if each else Reads.WHOLE))
        return self.add(stage, bindings, condition)

    def _check(self, step: StageCall) -> None:
        where, whole = f"{self.name}.{step.name}", dict[str, Reads]()
        for binding in step.bindings:
            value = binding.value
            wanted = step.stage.hints.get(binding.parameter, Any)
            if value is None:
                check_fits(type(binding.constant), wanted, f"{where}.{binding.parameter}")
                continue
            if value.is_map and whole.setdefault(value.source, binding.reads) is not binding.reads:
                raise ChainError(
                    "reads a map both as a whole and item by item", field=where, value=value.source
                )
            given = value.type
            if binding.reads is Reads.EACH and not value.is_map:
                given = item_type(given, f"{where}.{binding.parameter}")
            elif binding.reads is Reads.WHOLE and value.is_map:
                given = list[given]  # type: ignore[valid-type]
            check_fits(given, wanted, f"{where}.{binding.parameter}")


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


def _binding(name: str, given: Any, reads: Reads = Reads.WHOLE) -> Binding:
    if isinstance(given, Value):
        return Binding(name, given, None, reads)
    return Binding(name, None, given)


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
        return finished(Chain(title, inputs, tuple(builder.steps), output, defaults))

    return built if code is None else built(code)


def finished(chain: Chain) -> Chain:
    """A chain that was checked as a whole. Raises ChainError."""
    if not chain.steps:
        raise ChainError("has no stages", field=chain.name, expected="at least one")
    if not any(value.source for value in values_in(chain.output)):
        raise ChainError("returns no output of a stage", field=chain.name, value=chain.output)
    return chain


def values_in(output: Any) -> list[Value]:
    """The values in an output."""
    if isinstance(output, Value):
        return [output]
    if isinstance(output, Mapping):
        return [value for part in output.values() for value in values_in(part)]
    if isinstance(output, list | tuple):
        return [value for part in output for value in values_in(part)]
    return []
