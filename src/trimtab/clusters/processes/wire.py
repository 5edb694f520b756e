"""Messages between a host and its worker processes: frames of pickled tuples."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Any, NamedTuple

from trimtab.clusters.messages import attempt_fields, outcome_fields, read_attempt, read_outcome_fields
from trimtab.live.stage_backend import Argument, Attempt, Outcome, StageCode

_LENGTH = Struct("<I")


class Setup(NamedTuple):
    """The first message to a worker."""

    stages: Sequence[StageCode]
    spool: str  # folder of large values; empty = all values travel in messages
    inline_bytes: int  # values up to this size travel in messages
    folder: str  # working directory


def framed(message: Any) -> bytes:
    """A message with its length."""
    data = pickle.dumps(message, 5)
    return _LENGTH.pack(len(data)) + data


class Frames:
    """Messages out of a stream of bytes."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """The messages that are complete now."""
        self._data += data
        at = 0
        while len(self._data) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._data, at)
            end = at + _LENGTH.size + length
            if len(self._data) < end:
                break
            yield pickle.loads(memoryview(self._data)[at + _LENGTH.size : end])
            at = end
        if at:
            self._data = self._data[at:]


def start_message(number: int, attempt: Attempt, inputs: Sequence[Argument]) -> bytes:
    """An attempt for a worker."""
    return framed((number, attempt_fields(attempt, inputs)))


def read_start(message: Any) -> tuple[int, Attempt, list[Argument]]:
    """The other end of `start_message`."""
    return message[0], *read_attempt(message[1])


def outcome_message(number: int, outcome: Outcome) -> bytes:
    """An outcome for the host."""
    return framed((number, outcome_fields(outcome)))


def read_outcome(message: Any) -> tuple[int, Outcome]:
    """The other end of `outcome_message`."""
    return message[0], read_outcome_fields(message[1])
