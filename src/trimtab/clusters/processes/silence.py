"""Which worker processes are out of reach: they send no beat, and use no processor either.

A late beat alone is no sign: a stage may hold the interpreter in C code. It uses the processor then.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

BEAT_S: Final = 1.0  # between two beats of a worker
CUT_S: Final = 5.0  # of silence after which a worker is out of reach

_USER, _SYSTEM = 11, 12  # fields of /proc/PID/stat behind the name


class Silence:
    """How long a process has given no sign of life."""

    def __init__(self, pid: int, now_s: float) -> None:
        self._stat, self._alive_s = Path(f"/proc/{pid}/stat"), now_s
        self._ticks = self._ticks_used()

    def heard(self, now_s: float) -> None:
        """A message of the process has come."""
        self._alive_s = now_s

    def lasted_s(self, now_s: float) -> float:
        """Seconds since the last message, or since it last used the processor. 0 where that is not known."""
        if now_s - self._alive_s > BEAT_S and (ticks := self._ticks_used()) != self._ticks:
            self._ticks, self._alive_s = ticks, now_s
        return now_s - self._alive_s if self._ticks >= 0 else 0.0

    def _ticks_used(self) -> int:
        try:
            fields = self._stat.read_text().rpartition(")")[2].split()
        except OSError:
            return -1
        return int(fields[_USER]) + int(fields[_SYSTEM])
