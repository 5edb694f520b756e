"""The service model of a fake backend: slots, first come first served, and seconds of work."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from support.backends.options import Options
from support.backends.surroundings import OthersWork


@dataclass(slots=True)
class Counts:
    """What a backend has done since it started."""

    received: int = 0
    served: int = 0
    aborted: int = 0  # the caller went away
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    busy_s: float = 0.0  # slot seconds


class Service:
    """Slots and time. `async with service.slot():` waits for a slot and holds it."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.counts = Counts()
        self.others = OthersWork(options)
        self.running = 0
        self.waiting = 0
        self.tokens_held = 0  # of the requests that hold a slot
        self._slots = asyncio.Semaphore(options.slots)
        self._random = random.Random(options.seed)

    def paced_s(self, work_s: float, factor: float | None = None) -> float:
        """Seconds that this work takes here: by speed, times a factor; None = a random one of mean 1."""
        return work_s * (self.factor() if factor is None else factor) / self.options.speed

    def factor(self) -> float:
        """The next random factor."""
        sigma = self.options.sigma
        return math.exp(self._random.gauss(-sigma * sigma / 2, sigma)) if sigma else 1.0

    @asynccontextmanager
    async def slot(self, tokens: int = 0) -> AsyncIterator[None]:
        """Hold a slot, and room for so many tokens. One who is cancelled leaves both."""
        self.counts.received += 1
        try:
            await self._enter()
        except asyncio.CancelledError:
            self.counts.aborted += 1
            raise
        begun_s = asyncio.get_running_loop().time()
        self.running += 1
        self.tokens_held += tokens
        try:
            yield
            self.counts.served += 1
        except BaseException:
            self.counts.aborted += 1
            raise
        finally:
            self.running -= 1
            self.tokens_held -= tokens
            self.counts.busy_s += asyncio.get_running_loop().time() - begun_s
            self._slots.release()

    async def _enter(self) -> None:
        self.waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self.waiting -= 1

    async def work(self, work_s: float, factor: float | None = None) -> None:
        """Hold a slot for as long as this work takes; `base_s` is added."""
        async with self.slot():
            await self._spend(self.paced_s(self.options.base_s + work_s, factor))

    async def _spend(self, work_s: float) -> None:
        """So much work takes longer while others use the machine."""
        loop, left_s = asyncio.get_running_loop(), work_s
        begun_s = loop.time()
        while True:
            pace = 1.0 - self.others.level(begun_s)
            ends_s = begun_s + min(left_s / pace, self.others.until_change_s(begun_s))
            left_s -= (ends_s - begun_s) * pace
            await asyncio.sleep(ends_s - loop.time())
            if left_s <= 1e-9:
                return
            begun_s = ends_s
