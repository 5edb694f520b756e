"""Heartbeats: which workers give no sign of life any more, processes of this machine and actors elsewhere.

A late beat of a process alone is no sign: a stage may hold the interpreter in C code.
It uses the processor then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

BEAT_S: Final = 1.0  # between two beats of a worker, or two questions to an actor
CUT_S: Final = 5.0  # of silence after which a worker process is out of reach
CUT_BEATS: Final = 5  # without an answer of a machine and of all actors on it: it cannot be reached

_USER, _SYSTEM = 11, 12  # fields of /proc/PID/stat behind the name


class ProcessSilence:
    """How long a process has given no sign of life."""

    def __init__(self, pid: int, now_s: float) -> None:
        self._pid, self._alive_s = pid, now_s
        self._ticks = ticks_used(pid)

    def heard(self, now_s: float) -> None:
        """A message of the process has come."""
        self._alive_s = now_s

    def lasted_s(self, now_s: float) -> float:
        """Seconds since the last message, or since it last used the processor. 0 where that is not known."""
        if now_s - self._alive_s > BEAT_S and (ticks := ticks_used(self._pid)) != self._ticks:
            self._ticks, self._alive_s = ticks, now_s
        return now_s - self._alive_s if self._ticks >= 0 else 0.0


def ticks_used(pid: int) -> int:
    """The processor time that a process has used, in ticks of the kernel; -1 = not known."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return -1
    return int(fields[_USER]) + int(fields[_SYSTEM])


class ActorPulse:
    """Asks one actor once a beat, and counts the beats without an answer.

    Beats are counted, not seconds: a host that was stopped itself takes no actor for dead.

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
