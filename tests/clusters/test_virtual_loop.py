"""The event loop in virtual time: who runs when, and that it waits for nobody but other threads."""

from __future__ import annotations

import asyncio
import threading

import pytest

from trimtab.clusters.simulated_workers import VirtualLoop


def test_a_year_of_sleeps_and_timeouts_passes_in_order() -> None:
    woken: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        woken.append((name, asyncio.get_running_loop().time()))

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(100.0):
                await asyncio.gather(sleeper("late", 101.0), sleeper("early", 99.5))
        await asyncio.gather(sleeper("year", 31_536_000.0), sleeper("minute", 60.0))

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())
    assert woken == [("early", 99.5), ("minute", 160.0), ("year", pytest.approx(31_536_100.0))]


def test_without_a_timer_it_waits_for_another_thread_and_time_stands_still() -> None:
    async def main() -> float:
        loop, told = asyncio.get_running_loop(), asyncio.Event()
        threading.Timer(0.05, loop.call_soon_threadsafe, [told.set]).start()
        await told.wait()
        return loop.time()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(main()) == 0.0
