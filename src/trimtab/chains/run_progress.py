"""The state of one run of a chain: which outputs are there, and which instances became ready.

It follows the data only. When and where a ready instance runs is decided by the loop.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, NamedTuple

from trimtab.chains.graph import INPUT, Chain, Source, StageCall
from trimtab.live.stage_backend import Argument, Ref


class Output(NamedTuple):
    """The output of an instance: the whole, the items of its split lists, and the tests of conditions."""

    whole: Ref
    splits: tuple[tuple[Ref, ...], ...] = ()
    tests: tuple[bool, ...] = ()

    @property
    def refs(self) -> list[Ref]:
        """All values of it."""
        return [self.whole, *(ref for items in self.splits for ref in items)]


class StageInstance(NamedTuple):
    """An instance of a stage in a run."""

    step: int
    idx: int


class Presence(IntEnum):
    """What a stage has of an input: nothing, a left-out instance of a map, or something."""

    ABSENT = 1
    EMPTY = 2
    PRESENT = 3


class Mismatch(ValueError):  # noqa: N818 - reads as the sentence it prints
    """Two lists that a stage maps over together have different lengths."""


@dataclass(frozen=True)
class GivenInputs:
    """The inputs of a run, by parameter; the items of those lists that stages map over; true ones."""

    refs: Mapping[str, Ref]
    splits: Sequence[tuple[Ref, ...]] = ()
    true_conditions: frozenset[tuple[str, tuple[str | int, ...]]] = frozenset()


@dataclass(frozen=True)
class FlowShape:
    """The common part of all runs of a chain: successors, and maps with equal numbers of instances."""

    successors: tuple[tuple[tuple[int, bool], ...], ...]  # and whether instance i reads that of i alone
    alike: tuple[tuple[int, ...], ...]  # of each step, itself among them
    n_each: tuple[int, ...]  # predecessors that a step reads instance by instance


def flow_shape(chain: Chain) -> FlowShape:
    """The shape of a chain."""
    n = len(chain.steps)
    successors = tuple(
        tuple((m, step.after[k]) for m, step in enumerate(chain.steps) if k in step.after) for k in range(n)
    )
    label = list(range(n))
    for _ in range(n):
        for k in range(n):
            for m, each in successors[k]:
                if each:
                    label[k] = label[m] = min(label[k], label[m])
    alike = tuple(tuple(m for m in range(n) if label[m] == label[k]) for k in range(n))
    n_each = tuple(sum(step.after.values()) for step in chain.steps)
    return FlowShape(successors, alike, n_each)


@dataclass(slots=True)
class Progress:
    """One run of a chain."""

    chain: Chain
    shape: FlowShape
    given: GivenInputs
    counts: list[int] = field(init=False)
    is_known: list[bool] = field(init=False)  # whether the count is final
    outputs: list[list[Output | None]] = field(init=False)
    _left_out: set[StageInstance] = field(init=False, default_factory=set)  # of maps that were taken
    _missing: list[int] = field(init=False)
    _missing_each: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        steps = self.chain.steps
        self.counts, self.is_known = [1] * len(steps), [not step.is_map for step in steps]
        for k, step in enumerate(steps):
            if not self.is_known[k] and (count := self._count_from_inputs(step)) is not None:
                for m in self.shape.alike[k]:
                    self._fix(m, count)
        self.outputs = [[None] * max(1, n) for n in self.counts]
        self._missing = [
            sum(max(1, self.counts[b]) for b, each in step.after.items() if not each) for step in steps
        ]
        self._missing_each = [[self.shape.n_each[k]] * max(1, n) for k, n in enumerate(self.counts)]

    def first_ready(self) -> list[StageInstance]:
        """The instances that read no other stage."""
        return [at for k, step in enumerate(self.chain.steps) if not step.after for at in self.instances(k)]

    def done(
        self, at: StageInstance, output: Output | None, *, is_left_out: bool = False
    ) -> list[StageInstance]:
        """An instance is over; None = without an output. Returns the instances that are ready now.

        What reads all of a map is given the others of an instance that is left out.
        """
        self.outputs[at.step][at.idx] = output
        if is_left_out:
            self._left_out.add(at)
        ready = []
        for m, each in self.shape.successors[at.step]:
            if each:
                self._missing_each[m][at.idx] -= 1
                if self._missing_each[m][at.idx] == 0 and self._missing[m] == 0:
                    ready.append(StageInstance(m, at.idx))
            else:
                self._missing[m] -= 1
                if self._missing[m] == 0:
                    ready += [new for new in self.instances(m) if self._missing_each[m][new.idx] == 0]
        return ready

    def counts_from(self, step: int, output: Output) -> list[tuple[int, int]]:
        """The maps whose count this output tells, each once with its count. Raises Mismatch."""
        found: dict[int, int] = {}
        for m, _ in self.shape.successors[step]:
            for source in self.chain.steps[m].sources:
                if source.step == step and source.split >= 0:
                    self._note(found, m, len(output.splits[source.split]))
        return list(found.items())

    def _note(self, found: dict[int, int], m: int, count: int) -> None:
        first = self.shape.alike[m][0]
        known = found.get(first, self.counts[m] if self.is_known[m] else count)
        if known != count:
            name = self.chain.steps[m].name
            raise Mismatch(f"{name} maps over lists of {known} and {count} items")
        if not self.is_known[m]:
            found[first] = count

    def expand(self, step: int, count: int) -> None:
        """A map and all that are like it have this many instances."""
        for m in self.shape.alike[step]:
            self._fix(m, count)
            many = max(1, count)
            self.outputs[m] = [None] * many
            self._missing_each[m] = [self.shape.n_each[m]] * many
            for successor, each in self.shape.successors[m]:
                if not each:
                    self._missing[successor] += many - 1

    def presence(self, at: StageInstance) -> Presence:
        """Whether a ready instance is to be served: only if PRESENT.

        EMPTY: there is no item for it, its own input is left out, or its own condition is false.
        ABSENT: its stage as a whole is skipped.
        """
        step = self.chain.steps[at.step]
        inputs = (self._presence(before, at.idx, is_each=each) for before, each in step.after.items())
        found = max(inputs, default=Presence.PRESENT)
        has_item = not step.is_map or self.counts[at.step] > 0
        if step.condition is not None and (has_item or not step.condition.each):
            found = min(found, self._tested(step, step.condition, at.idx))
        return found if has_item else min(found, Presence.EMPTY)

    def _tested(self, step: StageCall, condition: Source, index: int) -> Presence:
        if self._holds(step, condition, index):
            return Presence.PRESENT
        return Presence.EMPTY if condition.each else Presence.ABSENT

    def _presence(self, before: int, index: int, *, is_each: bool) -> Presence:
        if is_each:
            if self.outputs[before][index] is not None:
                return Presence.PRESENT
            return Presence.EMPTY if StageInstance(before, index) in self._left_out else Presence.ABSENT
        is_there = any(output is not None for output in self.outputs[before])
        is_list = is_there or any(at.step == before for at in self._left_out)
        return Presence.PRESENT if is_list else Presence.ABSENT

    def _holds(self, step: StageCall, condition: Source, index: int) -> bool:
        if condition.step == INPUT:
            return (condition.parameter, condition.path) in self.given.true_conditions
        outputs = self.outputs[condition.step]
        chosen = [outputs[index]] if condition.each else outputs
        return any(output is not None and output.tests[step.test] for output in chosen)

    def arguments(self, at: StageInstance) -> list[Argument]:
        """The arguments of an instance whose inputs are all over; constants are not among them."""
        step = self.chain.steps[at.step]
        return [
            self._argument(argument.name, argument.source, at.idx)
            for argument in step.arguments
            if argument.source is not None
        ]

    def outputs_of(self, step: int) -> list[Output | None]:
        """The outputs of a stage's instances; none of a map over no items, or over a list that never came."""
        if not self.chain.steps[step].is_map:
            return self.outputs[step]
        return self.outputs[step][: self.counts[step]] if self.is_known[step] else []

    def _argument(self, name: str, source: Source, index: int) -> Argument:
        if source.step == INPUT:
            if source.split >= 0:
                return Argument(name, (self.given.splits[source.split][index],))
            return Argument(name, (self.given.refs[source.parameter],), False, source.path)
        outputs = self.outputs[source.step]
        if source.split >= 0:
            output = outputs[0]
            return Argument(name, (None if output is None else output.splits[source.split][index],))
        if source.is_map and not source.each:
            refs = tuple(None if output is None else output.whole for output in outputs)
            return Argument(name, refs, True, source.path)
        output = outputs[index if source.each else 0]
        return Argument(name, (None if output is None else output.whole,), False, source.path)

    def _count_from_inputs(self, step: StageCall) -> int | None:
        counts = {len(self.given.splits[s.split]) for s in step.sources if s.step == INPUT and s.split >= 0}
        if len(counts) > 1:
            raise Mismatch(f"{step.name} maps over lists of {' and '.join(map(str, sorted(counts)))} items")
        return counts.pop() if counts else None

    def _fix(self, step: int, count: int) -> None:
        if self.is_known[step] and self.counts[step] != count:
            name = self.chain.steps[step].name
            raise Mismatch(f"{name} maps over lists of {self.counts[step]} and {count} items")
        self.counts[step], self.is_known[step] = count, True

    def instances(self, step: int) -> list[StageInstance]:
        """The instances of a stage; a map over no items has one, which is not served."""
        return [StageInstance(step, i) for i in range(max(1, self.counts[step]))]


INLINE_BYTES: Final = 16_384  # larger values go to the store


def is_inline(ref: Ref) -> bool:
    """Whether the journal itself keeps a value."""
    return ref.data is not None and ref.size_bytes <= INLINE_BYTES


def packed(output: Output) -> bytes:
    """An output for the journal: small values, and digests of large ones."""

    def told(ref: Ref) -> tuple[Any, ...]:
        return ref.digest, ref.size_bytes, ref.data if is_inline(ref) else None

    return pickle.dumps(
        (told(output.whole), [[told(r) for r in items] for items in output.splits], output.tests)
    )


def unpacked(data: bytes) -> Output:
    """The other end of `packed`."""
    whole, splits, tests = pickle.loads(data)
    return Output(Ref(*whole), tuple(tuple(Ref(*ref) for ref in items) for items in splits), tests)


def digests_in(data: bytes) -> list[str]:
    """The values of a kept output that are in the store."""
    return [ref.digest for ref in unpacked(data).refs if ref.data is None]
