"""Large values in Ray's object store, owned by the host, and how lost ones are made again."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import ray

from trimtab.clusters.messages import attempt_fields
from trimtab.live.stage_backend import (
    Argument,
    Attempt,
    Following,
    Ref,
    ValueLost,
    digest_of,
    inputs_in_turn,
)

INLINE_BYTES: Final = 65_536  # smaller values travel in messages


@dataclass(frozen=True, slots=True)
class Origin:
    """The attempt that made a bundle."""

    node: int
    attempt: Attempt
    inputs: Sequence[Argument]

    @property
    def bundles(self) -> tuple[int, ...]:
        """The bundles that it reads."""
        return bundles_of(self.attempt, self.inputs)


@dataclass(slots=True)
class Bundle:
    """The large values of one attempt: one object of Ray's, which the host owns."""

    object: Any  # None = released, or lost
    parts: int  # that the host holds
    digests: tuple[str, ...]
    machine: str  # where it was made
    origin: Origin | None = None  # None = put by the host
    heirs: int = 0  # bundles that were made of it: they keep its origin
    copy: Any = None  # the same on another machine
    copy_machine: str = ""

    def lose(self) -> None:
        """What was made is gone: the copy takes its place, if there is one."""
        self.object, self.machine, self.copy = self.copy, self.copy_machine or self.machine, None
        self.copy_machine = ""


@dataclass(slots=True)
class Message:
    """An attempt as it is sent, with the objects of its inputs."""

    data: bytes
    bundles: tuple[int, ...]
    objects: list[Any] = field(default_factory=list)


class Values:
    """The bundles by number. The place of a value is "BUNDLE#PART"."""

    def __init__(self, inline_bytes: int) -> None:
        self._inline_bytes = inline_bytes
        self._numbers = itertools.count()
        self._bundles: dict[int, Bundle] = {}

    def __len__(self) -> int:
        return sum(bundle.object is not None for bundle in self._bundles.values())

    def bundle(self, number: int) -> Bundle:
        """A bundle. Raises ValueLost if nothing is known of it."""
        try:
            return self._bundles[number]
        except KeyError:
            raise ValueLost(f"bundle {number} was released") from None

    def put(self, data: bytes, machine: str) -> Ref:
        """Keep a value of the host's."""
        digest = digest_of(data)
        if len(data) <= self._inline_bytes:
            return Ref(digest, len(data), data)
        number = next(self._numbers)
        self._bundles[number] = Bundle(ray.put((pickle.PickleBuffer(data),)), 1, (digest,), machine)
        return Ref(digest, len(data), None, f"{number}#0")

    def keep(
        self, found: Any, outputs: Sequence[Ref], machine: str, nodes: tuple[int, ...], origin: Origin
    ) -> tuple[Ref, ...]:
        """The outputs of an attempt: those that are not inline are in the object `found`."""
        large = [ref.digest for ref in outputs if ref.data is None]
        if not large:
            return tuple(outputs)
        number = next(self._numbers)
        self._bundles[number] = Bundle(found, len(large), tuple(large), machine, origin)
        for source in origin.bundles:
            self._bundles[source].heirs += 1
        return tuple(
            ref if ref.data is not None else replace(ref, place=f"{number}#{ref.place}", nodes=nodes)
            for ref in outputs
        )

    def release(self, refs: Iterable[Ref]) -> None:
        """The host needs these values no more."""
        for ref in refs:
            if ref.place:
                number = int(ref.place.partition("#")[0])
                if (bundle := self._bundles.get(number)) is not None:
                    bundle.parts -= 1
                    self._forget(number, bundle)

    def _forget(self, number: int, bundle: Bundle) -> None:
        """Drop a bundle that no run holds; what it was made of is known as long as another one needs that."""
        if bundle.parts > 0:
            return
        bundle.object = bundle.copy = None
        if bundle.heirs > 0:
            return
        del self._bundles[number]
        for source in bundle.origin.bundles if bundle.origin is not None else ():
            if (parent := self._bundles.get(source)) is not None:
                parent.heirs -= 1
                self._forget(source, parent)

    def lose_on(self, machine: str) -> set[int]:
        """A machine is lost, and what was made there: the numbers of those bundles, those with a copy too."""
        for bundle in self._bundles.values():
            if bundle.copy_machine == machine:
                bundle.copy, bundle.copy_machine = None, ""
        lost = {n for n, bundle in self._bundles.items() if bundle.machine == machine and bundle.object}
        for number in lost:
            self._bundles[number].lose()
        return lost

    def message(self, attempt: Attempt, inputs: Sequence[Argument]) -> Message:
        """An attempt to send: places in it are positions among the objects that go along."""
        numbers = bundles_of(attempt, inputs)
        if numbers:
            places = {number: k for k, number in enumerate(numbers)}
            attempt, inputs = _moved_to(places, attempt), _inputs_moved(places, inputs)
        data = pickle.dumps(attempt_fields(attempt, inputs), 5)
        return Message(data, numbers, [self.bundle(number).object for number in numbers])

    def clear(self) -> None:
        """Forget all."""
        self._bundles.clear()


def bundles_of(attempt: Attempt, inputs: Sequence[Argument]) -> tuple[int, ...]:
    """The bundles that an attempt and those that follow it read."""
    return tuple(dict.fromkeys(_numbers(inputs_in_turn(attempt, inputs))))


def _numbers(inputs: Sequence[Argument]) -> Iterator[int]:
    for argument in inputs:
        for ref in argument.refs:
            if ref is not None and ref.place:
                yield int(ref.place.partition("#")[0])


def _moved_to(places: dict[int, int], attempt: Attempt) -> Attempt:
    """An attempt whose following ones read other places."""
    if (then := attempt.then) is None:
        return attempt
    moved = Following(_moved_to(places, then.attempt), _inputs_moved(places, then.inputs))
    return replace(attempt, then=moved)


def _inputs_moved(places: dict[int, int], inputs: Sequence[Argument]) -> list[Argument]:
    return [
        replace(argument, refs=tuple(_moved(ref, places) for ref in argument.refs)) for argument in inputs
    ]


def _moved(ref: Ref | None, places: dict[int, int]) -> Ref | None:
    if ref is None or not ref.place:
        return ref
    number, _, part = ref.place.partition("#")
    return replace(ref, place=f"{places[int(number)]}#{part}")
