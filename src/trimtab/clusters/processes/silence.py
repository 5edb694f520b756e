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
