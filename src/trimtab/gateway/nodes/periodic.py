"""A task that runs again and again, with jitter, until it is closed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable

logger = logging.getLogger(__name__)


class PeriodicTask:
    """Calls `run_once` every `period_s`. An exception is logged and the next call follows."""

    def __init__(
        self,
        name: str,
        run_once: Callable[[], Awaitable[None]],
        period_s: float,
        jitter_frac: float = 0.1,
        first_after_s: float = 0.0,
    ) -> None:
        self._name, self._run_once, self._period_s = name, run_once, period_s
        self._jitter_frac, self._first_after_s = jitter_frac, first_after_s
        self._task: asyncio.Task[None] | None = None
        self._soon = asyncio.Event()

    def start(self) -> None:
        """Begin; a second call does nothing."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=self._name)

    def now(self) -> None:
        """Do not wait for the period: run at once, or right after the run under way."""
        self._soon.set()

    async def close(self) -> None:
        """Stop, in the middle of a run too. `start` begins again."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        await self._wait(self._first_after_s)
        while True:
            try:
                await self._run_once()
            except Exception:
                logger.exception("%s failed; it runs again", self._name)
            await self._wait(self._period_s * (1 + self._jitter_frac * random.uniform(-1, 1)))

    async def _wait(self, for_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(for_s):
                await self._soon.wait()
        self._soon.clear()
