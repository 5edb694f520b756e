"""An event loop in virtual time: its clock jumps to the next timer when nothing can run.

Everything that waits by the loop's own time follows: timers, `asyncio.sleep`, timeouts. Work in other threads
takes no virtual time, and the clock does not wait for it.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Final

RESOLUTION_S: Final = 1e-7  # timers that lie closer fire together; floats keep it for years


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time stands still while any callback can run. Without a timer it waits for other threads."""

    def __init__(self) -> None:
        self._virtual_s = 0.0
        super().__init__(_LeapingSelector(self._leap))
        self._clock_resolution = RESOLUTION_S  # asyncio's own name

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._virtual_s

    def _leap(self, by_s: float) -> None:
        self._virtual_s += by_s


class _LeapingSelector(selectors.DefaultSelector):
    """Calls `leap` in place of waiting for so long."""

    def __init__(self, leap: Callable[[float], None]) -> None:
        super().__init__()
        self._leap = leap

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select(None)
        ready = super().select(0.0)
        if not ready and timeout > 0.0:
            self._leap(timeout)
        return ready
