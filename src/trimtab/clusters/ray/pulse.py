"""The heartbeat of actors: asks once a beat, and counts the beats without an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

BEAT_S: Final = 1.0
CUT_BEATS: Final = 5  # without an answer of a machine and of all workers on it: it cannot be reached


class Pulse:
    """Of one actor. Beats are counted, not seconds: a host that was stopped itself takes no actor for dead.

    Args:
        ask: sends the question.
        told: called with the answer.
        failed: called with the error that came in its place.
    """

    def __init__(
        self,
        ask: Callable[[], Awaitable[Any]],
        told: Callable[[Any], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._ask, self._told, self._failed = ask, told, failed
        self._is_answered = True
        self._asked: asyncio.Task[None] | None = None
        self.missed = 0

    def beat(self) -> None:
        """Count, and ask unless a question is outstanding."""
        self.missed = 0 if self._is_answered else self.missed + 1
        if self._asked is None or self._asked.done():
            self._is_answered = False
            self._asked = asyncio.get_running_loop().create_task(self._question())

    def stop(self) -> None:
        """Ask no more."""
        if self._asked is not None:
            self._asked.cancel()

    async def _question(self) -> None:
        try:
            answer = await self._ask()
        except Exception as error:
            self._failed(error)
        else:
            self._is_answered, self.missed = True, 0
            self._told(answer)
