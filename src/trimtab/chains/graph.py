"""A chain as data: stages, what each argument reads, and the output."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from trimtab.chains.stages import Stage
from trimtab.live.stage_backend import Path


class Reads(Enum):
    """How an argument reads a value."""

    WHOLE = "whole"  # all of it; of a map, the list of all instances
    EACH = "each"  # instance i gets item i, or the output of instance i of another map


@dataclass(frozen=True)
class Value:
    """The output of a step, or an input of the chain, or a part of one. Known when the chain runs."""

    source: str  # name of the step; "" = the chain's inputs
    path: Path = ()
    is_map: bool = False  # it has one output for each instance of its step
    type: Any = Any

    def __getitem__(self, key: str | int) -> Value:
        """The item at a key or an index."""
        return self._part(key)

    def __getattr__(self, name: str) -> Value:
        """The attribute of this name."""
        if name.startswith("__"):
            raise AttributeError(name)
        return self._part(name)

    def _part(self, key: str | int) -> Value:
        return Value(self.source, (*self.path, key), self.is_map, _part_of(self.type, key))

    def __bool__(self) -> bool:
        raise TypeError("the value is not known while the chain is built; use stage.when(value)(…)")

    def __iter__(self) -> Any:
        raise TypeError("the value is not known while the chain is built; use stage.map(value)")

    @property
    def text(self) -> str:
        """How it is written in a file."""
        text = self.source or "input"
        for key in self.path:
            text += f".{key}"
        return text


def _part_of(kind: Any, key: str | int) -> Any:
    """The declared type of a part, where it is known."""
    hints = getattr(kind, "__annotations__", {})
    found = hints.get(key, Any) if isinstance(key, str) else Any
    if isinstance(key, int):
        arguments = typing.get_args(kind)
        found = arguments[0] if len(arguments) == 1 else Any
    return Any if isinstance(found, str) else found


@dataclass(frozen=True)
class Binding:
    """An argument of a step: a value, or a constant."""

    parameter: str
    value: Value | None = None
    constant: Any = None
    reads: Reads = Reads.WHOLE


@dataclass(frozen=True)
class StageCall:
    """One use of a stage in a chain."""

    name: str
    stage: Stage
    bindings: tuple[Binding, ...]
    condition: Value | None = None

    @property
    def is_map(self) -> bool:
        """Whether it has an instance for each item."""
        return any(binding.reads is Reads.EACH for binding in self.bindings)


@dataclass(frozen=True)
class Chain:
    """A directed acyclic graph of steps, in an order in which each follows what it reads.

    `inputs` are the parameters and their types; without one of its own a parameter's default applies.
    """

    name: str
    inputs: Mapping[str, Any]
    steps: tuple[StageCall, ...]
    output: Any  # a Value, or a tuple, list or dict of values
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def step(self, name: str) -> StageCall:
        """The step of this name."""
        return next(step for step in self.steps if step.name == name)

    def __repr__(self) -> str:
        return f"<chain {self.name}: {' → '.join(step.name for step in self.steps)}>"
