"""Values of inputs in flight are bounded, and something always goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from trimtab.chains import Session, chain, stage
from trimtab.chains.stage_limits import StageLimit
from trimtab.clusters.in_process import InProcess
from trimtab.clusters.processes import Processes
from trimtab.errors import UsageError
from trimtab.live.stage_backend import StageBackend, StageNode

MIB = 1 << 20
INPUTS, SLOTS = 24, 4


class Alive:
    """Values that stages have made and that nobody has read yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = self.most = 0

    def add(self, count: int) -> None:
        with self._lock:
            self._now += count
            self.most = max(self.most, self._now)


ALIVE = Alive()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    ALIVE.most = 0


@stage
def made(n: int) -> bytes:
    ALIVE.add(1)
    return bytes([n]) * MIB


@stage
def read(data: bytes) -> int:
    ALIVE.add(-1)
    return len(data) + data[0]


@stage
def plain(n: int) -> list[bytes]:
    return [bytes([n]) * 100_000, bytes([n]) * 200_000]


@stage(batch=3, batch_wait_s=0.01)
def doubled(parts: list[bytes]) -> list[bytes]:
    return [2 * part for part in parts]


@stage(concurrency=2, rate_per_s=400.0)
def measured(data: bytes) -> int:
    return len(data) + data[0]


@stage
def summed(found: list[int]) -> int:
    return sum(found)


@chain
def line(n: int) -> Any:
    return read(made(n))


@chain
def wide(n: int) -> Any:
    return summed(measured.map(doubled.map(plain(n))))


@chain
def large(n: int) -> Any:
    return made(n)


def most_alive(values_gib: float | None) -> int:
    """With a policy that runs all first stages first."""
    on, policy = InProcess([StageNode("one", slots=SLOTS)]), "least-connections+fcfs"
    with Session(line, on=on, policy=policy, values_gib=values_gib, fuse_s=0.0) as session:
        assert session.run(line, range(INPUTS)).values() == [MIB + n for n in range(INPUTS)]
    return ALIVE.most


def test_values_of_inputs_in_flight_are_bounded() -> None:
    """Below 2.5 values there are at most 2. All slots may then make one more, and the first input its own."""
    assert most_alive(2.5 / 1024) <= 2 + SLOTS + 1


def test_without_a_budget_they_are_not() -> None:
    assert most_alive(None) > 2 + SLOTS + 1


@pytest.mark.parametrize("make", [InProcess, Processes])
def test_inputs_go_on_one_after_another_when_one_value_is_too_much(
    make: Callable[[Sequence[StageNode]], StageBackend], tmp_path: Path
) -> None:
    """Through maps, batches and limits, whose instances wait for each other."""
    backend = make([StageNode("one", slots=2, depth=2)])
    with Session(wide, on=backend, journal=tmp_path, values_gib=1e-9) as session:
        handle = session.run(wide, range(12))
        assert handle.values() == [2 * 300_000 + 2 * n for n in range(12)]
        again = session.run(wide, range(12, 24))
        again.cancel()
        again.wait()
        assert session.run(wide, [3]).values() == [600_006]
    assert handle.counts["measured"].done == 24


def test_an_input_follows_while_the_output_of_the_one_before_is_fetched() -> None:
    with Session(large, on=Processes([StageNode("one")]), in_flight=1) as session:
        handle = session.run(large, range(3))
        assert [len(r.value) for r in handle.wait(timeout_s=30.0)] == [MIB] * 3


def test_worker_processes_say_how_much_room_they_have() -> None:
    backend = Processes([StageNode("one")])
    with Session(large, on=backend):
        assert backend.value_bytes > MIB


def test_a_turn_that_is_not_taken_goes_to_who_waits() -> None:
    limit = StageLimit[str](concurrency=1, rate_per_s=0.0)
    assert [limit.begin(who, 0.0) for who in "abc"] == [True, False, False]
    limit.forget("x")
    assert list(limit.turns(lambda who: True)) == []  # none is free
    limit.end()
    assert [who for who, _ in limit.turns(lambda who: True)] == ["b"]
    limit.forget("b")
    assert [who for who, _ in limit.turns(lambda who: True)] == ["c"]
    assert limit.begin("c", 1.0)


def test_a_budget_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match=r"values_gib: not a size .*0.*more than 0"):
        Session(line, on="in-process", values_gib=0.0)
