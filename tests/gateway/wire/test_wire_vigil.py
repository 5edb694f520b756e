"""The loop stays awake for an answer that is due at once, and for nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from trimtab.gateway.wire.vigil import MEMORY, WAIT_S, Vigil


class _Loop:
    """A clock set by hand, and what the loop has to call."""

    def __init__(self) -> None:
        self.now_s = 1.0
        self.calls: list[Callable[[], None]] = []

    def time(self) -> float:
        return self.now_s

    def call_soon(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def turn(self) -> bool:
        """One turn of the loop; returns whether it would sleep after it."""
        calls, self.calls = self.calls, []
        for call in calls:
            call()
        return not self.calls


def _waited(vigil: Vigil, loop: _Loop, waits_s: list[float], in_flight: int = 1) -> None:
    """Requests, one after the other, whose answers came after so long."""
    for wait_s in waits_s:
        vigil.turn_over(loop.now_s, in_flight)
        loop.now_s += wait_s
        vigil.turn_over(loop.now_s, in_flight - 1)
        loop.now_s += 1.0  # what clients leave between two requests does not count
        while not loop.turn():
            pass


def _opened() -> tuple[Vigil, _Loop]:
    loop = _Loop()
    return Vigil(cast(Any, loop)), loop


SOON, LATE = [WAIT_S / 2] * int(MEMORY), [WAIT_S * 2] * int(MEMORY)


def test_it_stays_awake_until_the_answer_is_there() -> None:
    vigil, loop = _opened()
    _waited(vigil, loop, SOON)
    vigil.turn_over(loop.now_s, 1)
    for _ in range(3):
        loop.now_s += WAIT_S / 4
        assert not loop.turn()
    vigil.turn_over(loop.now_s, 0)
    assert loop.turn()
    assert loop.turn()


def test_it_sleeps_once_the_wait_is_a_long_one() -> None:
    vigil, loop = _opened()
    _waited(vigil, loop, SOON)
    vigil.turn_over(loop.now_s, 1)
    assert not loop.turn()
    loop.now_s += WAIT_S
    assert loop.turn()
    vigil.turn_over(loop.now_s, 0)
    vigil.turn_over(loop.now_s, 1)
    assert not loop.turn()  # one late answer among many does not matter


def test_two_requests_in_a_row_keep_one_call_going() -> None:
    vigil, loop = _opened()
    _waited(vigil, loop, SOON)
    for _ in range(3):
        vigil.turn_over(loop.now_s, 1)
        loop.now_s += WAIT_S / 2
    assert len(loop.calls) == 1
    loop.now_s += WAIT_S / 4
    assert not loop.turn()  # it counts from the last one
    loop.now_s += WAIT_S / 4
    assert loop.turn()


@pytest.mark.parametrize(
    ("waits_s", "in_flight"),
    [([], 1), (LATE, 1), (SOON + LATE, 1), (SOON, 0), (SOON, 2)],
    ids=["at first", "slow nodes", "nodes that became slow", "none in flight", "more in flight"],
)
def test_it_sleeps_where_staying_awake_would_be_for_nothing(waits_s: list[float], in_flight: int) -> None:
    vigil, loop = _opened()
    _waited(vigil, loop, waits_s)
    vigil.turn_over(loop.now_s, in_flight)
    assert loop.turn()
