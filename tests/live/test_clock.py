"""Clocks: who is woken when, in which order, and what a virtual clock does when nobody can go on."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator
from typing import Any

import pytest

from trimtab.errors import UsageError
from trimtab.live.clock import Rank, VirtualClock, WallClock


def test_virtual_sleepers_wake_by_time_then_rank_then_serial() -> None:
    clock, woken = VirtualClock(), []

    async def sleeper(at_s: float, rank: Rank, serial: int) -> None:
        await clock.sleep_until(at_s, rank, serial)
        woken.append((clock.now_s(), rank, serial))

    async def main() -> None:
        wanted = [
            (2.0, Rank.ARRIVAL, 0),
            (2.0, Rank.TIMER, 9),
            (1.5, Rank.STOP, 4),
            (2.0, Rank.COMPLETION, 8),
            (2.0, Rank.COMPLETION, 3),
        ]
        await asyncio.gather(*(sleeper(*w) for w in wanted))

    clock.run(main())
    assert woken == [
        (1.5, Rank.STOP, 4),
        (2.0, Rank.COMPLETION, 3),
        (2.0, Rank.COMPLETION, 8),
        (2.0, Rank.TIMER, 9),
        (2.0, Rank.ARRIVAL, 0),
    ]


def test_virtual_time_stands_still_while_any_task_can_run() -> None:
    clock = VirtualClock()

    async def busy() -> float:
        for _ in range(50):
            await asyncio.sleep(0)
        return clock.now_s()

    async def main() -> tuple[float, float]:
        other = asyncio.create_task(busy())
        await clock.sleep_until(1.0, Rank.TIMER)
        return await other, clock.now_s()

    assert clock.run(main()) == (0.0, 1.0)


def test_who_is_woken_may_sleep_again_at_the_same_time_before_the_next_is_woken() -> None:
    clock, woken = VirtualClock(), []

    async def twice() -> None:
        await clock.sleep_until(1.0, Rank.COMPLETION, 0)
        await clock.sleep_until(1.0, Rank.COMPLETION, 1)
        woken.append("completed twice")

    async def arrives() -> None:
        await clock.sleep_until(1.0, Rank.ARRIVAL, 0)
        woken.append("arrived")

    async def main() -> None:
        await asyncio.gather(arrives(), twice())

    clock.run(main())
    assert woken == ["completed twice", "arrived"]


def test_a_cancelled_sleeper_moves_no_time_and_the_past_is_now() -> None:
    clock = VirtualClock()

    async def main() -> list[float]:
        clock.sleep_until(1.0, Rank.TIMER).cancel()
        await clock.sleep_until(2.0, Rank.TIMER)
        first = clock.now_s()
        await clock.sleep_until(0.5, Rank.TIMER)
        return [first, clock.now_s()]

    assert clock.run(main()) == [2.0, 2.0]


def test_a_deadlock_is_named() -> None:
    clock = VirtualClock()

    async def main() -> None:
        await clock.sleep_until(3.0, Rank.TIMER)
        await asyncio.get_running_loop().create_future()

    with pytest.raises(RuntimeError, match=r"deadlock at 3\.0+ s"):
        clock.run(main())


@pytest.mark.parametrize("speed", [0.0, -1.0, math.nan, math.inf])
def test_a_speed_that_is_none_is_refused(speed: float) -> None:
    with pytest.raises(UsageError, match="speed"):
        WallClock(speed)


def test_the_wall_clock_stands_at_zero_until_it_starts_and_then_runs_at_its_speed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real: Iterator[float] = iter([100.0, 100.5, 102.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(real))
    clock = WallClock(10.0)
    assert clock.now_s() == 0.0
    clock.start()
    assert [clock.now_s(), clock.now_s()] == [5.0, 20.0]


def test_the_wall_clock_never_wakes_early_and_forgets_who_is_cancelled() -> None:
    clock = WallClock(100.0)

    async def main() -> tuple[float, Any]:
        clock.start()
        forgotten = clock.sleep_until(0.5, Rank.TIMER)
        forgotten.cancel()
        await clock.sleep_until(2.0, Rank.TIMER)
        return clock.now_s(), forgotten

    now_s, forgotten = clock.run(main())
    assert now_s >= 2.0 - 1e-6
    assert forgotten.cancelled()
