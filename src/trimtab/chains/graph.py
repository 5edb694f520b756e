"""A chain as data: numbered stages, what each argument reads, and the output."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from trimtab.chains.stages import Stage
from trimtab.live.stage_backend import Path

INPUT: Final = -1  # in place of a step's number: an input of the chain


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
class Source:
    """A value that a stage reads."""

    step: int  # INPUT = an input of the chain
    parameter: str  # of the chain, for INPUT
    path: Path
    is_map: bool  # an output for each instance
    each: bool  # instance i reads item i, or the output of instance i
    split: int = -1  # number of the list among its source's `splits`, whose items are read one by one


@dataclass(frozen=True)
class Binding:
    """An argument of a stage: what it reads, or a constant."""

    name: str
    source: Source | None
    constant: Any = None


@dataclass(frozen=True)
class StageCall:
    """One use of a stage in a chain."""

    name: str
    code_name: str  # under which backends know it
    stage: Stage
    arguments: tuple[Binding, ...]
    condition: Source | None
    test: int  # number of the condition among its source's `tests`
    is_map: bool  # it has an instance for each item
    after: Mapping[int, bool]  # stages that it reads, and whether instance i reads that of instance i alone
    splits: tuple[Path, ...] = ()  # lists in its output that others map over
    tests: tuple[Path, ...] = ()  # parts of its output that are conditions of others

    @property
    def sources(self) -> list[Source]:
        """All values that it reads, its condition too."""
        return sources_in(self.arguments, self.condition)


def sources_in(arguments: Iterable[Binding], condition: Source | None) -> list[Source]:
    """The values that arguments and a condition read."""
    read = [argument.source for argument in arguments] + [condition]
    return [source for source in read if source is not None]


@dataclass(frozen=True)
class Chain:
    """A directed acyclic graph of numbered steps, in an order in which each follows what it reads.

    `inputs` are the parameters and their types; without one of its own a parameter's default applies.
    """

    name: str
    inputs: Mapping[str, Any]
    steps: tuple[StageCall, ...]
    output: Any  # a Value, or a tuple, list or dict of values
    defaults: Mapping[str, Any] = field(default_factory=dict)
    input_splits: tuple[tuple[str, Path], ...] = ()  # lists in its inputs that stages map over

    def step(self, name: str) -> StageCall:
        """The step of this name."""
        return next(step for step in self.steps if step.name == name)

    @cached_property
    def output_steps(self) -> tuple[int, ...]:
        """The stages whose outputs the chain's output has values of, each once."""
        number = {step.name: k for k, step in enumerate(self.steps)}
        found = [number[value.source] for value in values_in(self.output) if value.source]
        return tuple(dict.fromkeys(found))

    def all_before(self, k: int) -> set[int]:
        """The stages that a stage reads, and those that these read."""
        found: set[int] = set()
        for before in self.steps[k].after:
            found |= {before, *self.all_before(before)}
        return found

    @cached_property
    def is_sized(self) -> bool:
        """Whether some stage says which of its parameters tells how much work it is."""
        return any(step.stage.stage_options.size for step in self.steps)

    @cached_property
    def following(self) -> tuple[int, ...]:
        """Of each stage the one that may run after it in the same attempt; -1 = none.

        It alone reads that stage, and reads no other, instance by instance where both are maps.
        """
        found = []
        for k in range(len(self.steps)):
            readers = [m for m, step in enumerate(self.steps) if k in step.after]
            found.append(readers[0] if len(readers) == 1 and self._can_follow(readers[0], k) else -1)
        return tuple(found)

    def _can_follow(self, k: int, before: int) -> bool:
        """Whether a worker can run a stage right after another one that it reads.

        Both have to say what they cost: a stage that is short as a rule and waits now and then would keep
        what ran before it from being recorded, and a run that is stopped meanwhile would repeat it.
        """
        step, first = self.steps[k], self.steps[before]
        is_alone = step.after == {before: first.is_map} and step.condition is None
        if not is_alone or step.is_map is not first.is_map:
            return False
        one, other = first.stage.stage_options, step.stage.stage_options
        is_alike = one.demand() == other.demand() and one.needed_labels() == other.needed_labels()
        is_known = other.deterministic and not one.deterministic  # a kept result may answer it
        is_declared = one.cost_s > 0.0 and other.cost_s > 0.0
        return is_alike and is_declared and not (is_known or first.splits or one.is_paced or other.is_paced)

    @cached_property
    def input_conditions(self) -> tuple[Source, ...]:
        """Parts of the chain's inputs that conditions of stages read."""
        read = (step.condition for step in self.steps)
        return tuple(source for source in read if source is not None and source.step == INPUT)

    def __repr__(self) -> str:
        return f"<chain {self.name}: {' → '.join(step.name for step in self.steps)}>"


def values_in(output: Any) -> list[Value]:
    """The values in an output."""
    if isinstance(output, Value):
        return [output]
    if isinstance(output, Mapping):
        return [value for part in output.values() for value in values_in(part)]
    if isinstance(output, list | tuple):
        return [value for part in output for value in values_in(part)]
    return []
