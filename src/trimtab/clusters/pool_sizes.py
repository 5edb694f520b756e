"""How many workers pools have: more when instances wait for longer than a start takes, fewer when idle.

With a season, also as many as a forecast of arrivals asks for before they come.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from trimtab.errors import UsageError
from trimtab.live.stage_backend import StageCode, StageDemand, StageNode

if TYPE_CHECKING:
    from trimtab.clusters.pool_forecast import PoolForecast

logger = logging.getLogger(__name__)

W = TypeVar("W")  # a worker of some backend

LOOK_S: Final = 0.1  # between two looks at the queue
LEAST: Final = 0.1  # of a worker that is expected to be needed: below it no worker is started for it
IDLE_S: Final = 60.0  # after which a worker that is not needed ends


class PoolSize(Generic[W]):
    """The size of one pool, from `least` to `most` workers."""

    def __init__(self, least: int, most: int, idle_s: float) -> None:
        self._least, self._most, self._idle_s = least, most, idle_s
        self._waits_since_s: float | None = None
        self._idle_since_s: dict[W, float] = {}

    def missing(
        self,
        now_s: float,
        *,
        waiting: int,
        idle: int,
        live: int,
        starting: int,
        start_s: float,
        expected: int = 0,
    ) -> int:
        """Workers to start now, so that there are as many as are `expected` to be needed.

        Also one for each of `waiting` instances that none is on its way for. None is started for them while
        a worker is idle (then something else is scarce), or before they have waited for `start_s`, which a
        start takes.
        """
        wanted = expected - live
        if waiting == 0 or idle:
            self._waits_since_s = None
        elif self._waits_since_s is None:
            self._waits_since_s = now_s
        if self._waits_since_s is not None and now_s - self._waits_since_s >= start_s:
            wanted = max(wanted, waiting)
        return max(0, min(wanted - starting, self._most - live - starting))

    def needless(self, now_s: float, idle: Sequence[W], live: int, expected: int = 0) -> list[W]:
        """Workers to end now, of those that are idle: the last first; the `least` and the `expected` stay."""
        self._idle_since_s = {worker: self._idle_since_s.get(worker, now_s) for worker in idle}
        over = [w for w, since_s in self._idle_since_s.items() if now_s - since_s >= self._idle_s]
        return over[::-1][: max(0, live - max(self._least, expected))]


class PoolSizes(Generic[W]):
    """Keeps the pools of a backend in size, once it knows the queue.

    Args:
        workers: of each node; their owner changes these lists.
        starting: workers of each node that are on their way.
        is_idle: of a worker that could take an attempt.
        start: starts a worker of a node.
        end: ends a worker of a node.
        season_s: after which arrivals repeat: then a forecast decides too. 0 = the queue alone does.
    """

    def __init__(
        self,
        nodes: Sequence[StageNode],
        stages: Sequence[StageCode],
        idle_s: float,
        workers: Sequence[list[W]],
        starting: Sequence[int],
        *,
        is_idle: Callable[[W], bool],
        start: Callable[[int], None],
        end: Callable[[int, W], None],
        season_s: float = 0.0,
    ) -> None:
        if not season_s >= 0.0:
            raise UsageError("not a time", field="season_s", value=season_s, expected="a number from 0 on")
        self._sizes = {
            j: PoolSize[W](node.least, node.slots, idle_s)
            for j, node in enumerate(nodes)
            if node.least < node.slots
        }
        self._served = {j: [s.name for s in stages if not nodes[j].misfit(s)] for j in self._sizes}
        self._workers, self._starting = workers, starting
        self._is_idle, self._start, self._end = is_idle, start, end
        self.start_s = 0.0  # what a start takes
        self._season_s = season_s
        self._forecast: PoolForecast | None = None
        self._learning: asyncio.Task[None] | None = None

    async def follow(self, demand: Callable[[], Mapping[str, StageDemand]]) -> None:
        """Look at the demand for ever."""
        loop = asyncio.get_running_loop()
        if self._sizes and self._season_s:
            self._learning = loop.create_task(asyncio.to_thread(self.learn))
        while self._sizes:
            self.look(loop.time(), demand())
            await asyncio.sleep(LOOK_S)

    def learn(self) -> None:
        """From now on forecast, too. Loading that takes some seconds, compiling it more."""
        try:
            from trimtab.clusters.pool_forecast import PoolForecast

            names = dict.fromkeys(name for served in self._served.values() for name in served)
            self._forecast = PoolForecast(tuple(names), self._season_s, self.start_s)
        except Exception:
            self._end_forecast()

    def _end_forecast(self) -> None:
        """It failed: say so, and go on by the queue."""
        self._forecast = None
        logger.warning(
            "the forecast of pools failed: from now on the queue alone decides their sizes", exc_info=True
        )

    def _ahead(self, now_s: float, demand: Mapping[str, StageDemand]) -> Mapping[str, float]:
        """The workers of each stage that a forecast asks for; nothing without one."""
        if self._forecast is None:
            return {}
        try:
            return self._forecast.workers(now_s, demand)
        except Exception:
            self._end_forecast()
            return {}

    def look(self, now_s: float, demand: Mapping[str, StageDemand]) -> None:
        """Start and end workers."""
        ahead = self._ahead(now_s, demand)
        for j, size in self._sizes.items():
            workers, starting = self._workers[j], self._starting[j]
            idle = [worker for worker in workers if self._is_idle(worker)]
            expected = math.ceil(sum(ahead.get(name, 0.0) for name in self._served[j]) - LEAST)
            missing = size.missing(
                now_s,
                waiting=sum(demand[name].waiting for name in self._served[j]),
                idle=len(idle),
                live=len(workers),
                starting=starting,
                start_s=self.start_s,
                expected=expected,
            )
            for _ in range(missing):
                self._start(j)
            for worker in size.needless(now_s, idle, len(workers), expected):
                self._end(j, worker)
