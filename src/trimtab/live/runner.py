"""The live host: observe, plan, dispatch, apply, over a clock and a backend.

It runs the same event loop as the simulator, with three differences: time passes by itself, arrivals and
completions come from outside, and a backend serves the started requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

import numpy as np

from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Options
from trimtab.domain.planning import Runs
from trimtab.domain.policy import Decider
from trimtab.domain.requests import Requests
from trimtab.engine.driver import Driver, Started
from trimtab.engine.provided import LIVE_RUN, degraded
from trimtab.engine.state import REPLAYED
from trimtab.errors import UsageError
from trimtab.live.clock import Clock, Rank, VirtualClock, WallClock
from trimtab.live.dispatch_loop import DispatchLoop
from trimtab.live.planner import InlinePlanner, Planner, ProcessPlanner


class Backend(Protocol):
    """Serves requests on nodes. An exception from `serve` stops the host."""

    def serve(self, node_idx: int, serial: int, until_s: float) -> Awaitable[None]:
        """Serve request `serial` on a node; done when it is served.

        `until_s` is the end that the host's model of service times predicts. Real backends may take longer or
        shorter.
        """

    def cancel(self, node_idx: int, serial: int) -> None:
        """Stop serving a request: no client waits for it. A later completion is ignored."""


class Workers:
    """In-process workers, which serve by waiting for the drawn service time on the clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waits: dict[int, asyncio.Future[None]] = {}

    def serve(self, node_idx: int, serial: int, until_s: float) -> Awaitable[None]:
        """Wait until `until_s`."""
        wait = self._clock.sleep_until(until_s, Rank.COMPLETION, serial)
        self._waits[serial] = wait
        wait.add_done_callback(lambda _: self._waits.pop(serial, None))
        return wait

    def cancel(self, node_idx: int, serial: int) -> None:
        """Forget the wait."""
        if serial in self._waits:
            self._waits[serial].cancel()


Progress = Callable[[int], None]


class LiveRunner:
    """Replays requests through one policy. Each step of its loop takes one event.

    One event per step keeps equal times in order on a virtual clock: the backend gets the requests that an
    event starts, and may complete them, before the next event is taken.
    """

    def __init__(
        self,
        driver: Driver,
        clock: Clock,
        backend: Backend,
        planner: Planner,
        progress: Progress | None = None,
    ) -> None:
        self._driver, self._clock, self._backend, self._planner = driver, clock, backend, planner
        self._dispatch_loop = DispatchLoop(driver, planner, clock.now_s, lambda _: self._news_came())
        self._progress = progress
        self._arrivals_s: list[float] = driver.state.work["arrival_s"][: driver.n_requests].tolist()
        self._news = asyncio.Event()
        self._inbox: list[Callable[[float], None]] = []  # reports to the driver, called with the time
        self._timer: asyncio.Future[None] | None = None
        self._timer_s = float("inf")
        self._running: dict[int, Started] = {}
        self._n_taken_back = 0
        self._is_stopped = False

    async def run(self) -> None:
        """Run until no events are left, or to the horizon. The driver then holds the final state."""
        replay = None
        try:
            await self._planner.open()
            self._clock.start()
            self._stop_at(self._driver.options.horizon_s)
            replay = asyncio.create_task(self._replay())
            while not (self._is_stopped or self._driver.is_over()):
                now_s = await self.observe()
                self._dispatch_loop.step(now_s, 1)
                self.apply()
        finally:
            self._close(replay)

    async def observe(self) -> float:
        """Wait for the next event and report it to the driver; returns the time."""
        self._set_timer()
        await self._news.wait()
        self._news.clear()
        now_s = self._clock.now_s()
        inbox, self._inbox = self._inbox, []
        for tell in inbox:
            tell(now_s)
        return now_s

    def apply(self) -> None:
        """Cancel requests at the backend that are outdated, and send it those that have started."""
        if self._driver.n_taken_back != self._n_taken_back:
            self._n_taken_back = self._driver.n_taken_back
            self._cancel_outdated()
        for started in self._driver.take_started():
            self._serve(started)

    def _set_timer(self) -> None:
        """Set the timer to the state's own next event."""
        at_s = self._driver.next_event_s()
        if self._timer is not None:
            if at_s == self._timer_s and not self._timer.done():
                return
            self._timer.cancel()
        self._timer, self._timer_s = None, at_s
        if at_s < float("inf"):
            self._timer = self._clock.sleep_until(at_s, Rank.TIMER)
            self._timer.add_done_callback(self._wake)

    def _wake(self, cause: asyncio.Future[None]) -> None:
        if not cause.cancelled():
            self._news.set()

    def _tell(self, message: Callable[[float], None]) -> None:
        self._inbox.append(message)
        self._news.set()

    def _stop_at(self, horizon_s: float) -> None:
        if horizon_s < float("inf"):
            self._clock.sleep_until(horizon_s, Rank.STOP).add_done_callback(self._stop)

    def _stop(self, horizon: asyncio.Future[None]) -> None:
        self._is_stopped = not horizon.cancelled()
        self._wake(horizon)

    async def _replay(self) -> None:
        """Let the requests arrive at their times."""
        for serial, at_s in enumerate(self._arrivals_s):
            await self._clock.sleep_until(at_s, Rank.ARRIVAL, serial)
            self._tell(self._driver.arrive)
            if self._progress is not None:
                self._progress(serial + 1)

    def _news_came(self) -> None:
        self._news.set()

    def _serve(self, started: Started) -> None:
        self._running[started.serial] = started
        served = asyncio.ensure_future(self._backend.serve(started.node_idx, started.serial, started.until_s))
        served.add_done_callback(partial(self._on_served, started))

    def _on_served(self, started: Started, served: asyncio.Future[None]) -> None:
        if not served.cancelled():
            self._tell(partial(self._complete, started, served))

    def _complete(self, started: Started, served: asyncio.Future[None], now_s: float) -> None:
        served.result()  # raises what the backend raised
        self._running.pop(started.serial, None)
        self._driver.complete(started, now_s)

    def _cancel_outdated(self) -> None:
        for started in [s for s in self._running.values() if not self._driver.is_current(s)]:
            del self._running[started.serial]
            self._backend.cancel(started.node_idx, started.serial)

    def _close(self, replay: asyncio.Task[None] | None) -> None:
        if replay is not None:
            replay.cancel()
        if self._timer is not None:
            self._timer.cancel()
        for started in self._running.values():
            self._backend.cancel(started.node_idx, started.serial)
        self._planner.close()


def run_live(
    cluster: Cluster,
    requests: Requests,
    options: Options,
    decider: Decider,
    *,
    seed: int = 0,
    speed: float | None = None,
    clock: Clock | None = None,
    mode: str = "auto",
    progress: Progress | None = None,
    declared: np.ndarray | Runs | None = None,
) -> Driver:
    """Run one policy over given requests, live. Returns the Driver with the final state.

    Workers inside this process serve by waiting for the drawn service time.

    Args:
        speed: real time times this (default 1); not together with `clock`.
        clock: any other clock. On a VirtualClock, which does not wait, the result equals the simulator's.
        mode: "compiled", "interpreted", or "auto": compiled if the kernels are cached or the run is long.
        progress: called with the number of requests that have arrived.
        declared: possible WORK, or runs of chains, by arrival, for policies that use rollouts.

    Raises UsageError for options that only the simulator has (faults) and for a need of the policy that is
    not met and that it can't do without, PolicyError if the policy raises or
    returns no valid decision, KeyboardInterrupt on Ctrl-C after cleaning up.
    """
    if options.faults is not None and (options.faults["factor"] < 1.0).any():
        raise UsageError(
            "live hosts have the faults and the speed of their nodes only",
            field="faults",
            expected="no faults, and background without slowdown_frac",
        )
    if clock is not None and speed is not None:
        raise UsageError("a clock has its own speed", field="speed", value=speed, expected="speed or clock")
    degraded(decider, cluster, requests, options, LIVE_RUN)
    clock = clock or WallClock(1.0 if speed is None else speed)
    driver = Driver(
        cluster, requests, options, decider, seed=seed, mode=mode, host=REPLAYED, declared=declared
    )
    clock.run(_run(driver, clock, progress))
    return driver


async def _run(driver: Driver, clock: Clock, progress: Progress | None) -> None:
    inline = driver.policy.plan_period_s == 0.0 or isinstance(clock, VirtualClock)
    planner = (InlinePlanner if inline else ProcessPlanner)(driver.policy, driver.planning)
    await LiveRunner(driver, clock, Workers(clock), planner, progress).run()
