"""Whether this process itself ran: it may have been stopped, or its machine too busy to let it run.

What was begun before such a gap and seems late after it says nothing of others: their answer may lie unread
in a socket. Whoever judges by time asks here first. A gap in which nobody waited for anything is no news, so
the stall_detector beats only while somebody does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf

BEAT_S = 0.1
AWAY_S = 0.25  # a timer that fires so much late was held up by more than work of the loop's own


class StallDetector:
    """Notices gaps while it beats; else only those that `was_away` is told of.

    `on_beat` are called at every beat; the beats go on as long as one of them returns True.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.since_s = -inf  # since when it has run without a gap
        self.on_beat: list[Callable[[], bool]] = []
        self._loop = loop
        self._due_s = inf
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Something begins that is waited for: notice every gap from now on. A second call does nothing."""
        if self._timer is None:
            self._arm()

    def close(self) -> None:
        """Notice no more. It can be started again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._due_s = inf

    def was_away(self, due_s: float) -> bool:
        """Whether what was due then and runs only now shows a gap, which ends now."""
        now_s = self._loop.time()
        if now_s - due_s < AWAY_S:
            return False
        self.since_s = now_s
        return True

    def notice(self) -> None:
        """Look for a gap that ends with this very turn of the loop."""
        if self.was_away(self._due_s):
            self._due_s = self.since_s + BEAT_S  # noticed once; the beat itself is still to come

    def ran_since_s(self) -> float:
        """Since when it has run without a gap, as of this turn of the loop."""
        if self._loop.time() - self._due_s >= AWAY_S:
            self.notice()
        return self.since_s

    def spans_gap(self, begun_s: float) -> bool:
        """Whether there was a gap since then."""
        return begun_s < self.ran_since_s()

    def _arm(self) -> None:
        self._due_s = self._loop.time() + BEAT_S
        self._timer = self._loop.call_at(self._due_s, self._beat)

    def _beat(self) -> None:
        self.was_away(self._due_s)
        self._arm()  # first: what raises must not end the beats
        is_needed = [beat() for beat in self.on_beat]  # all are called
        if not any(is_needed):
            self.close()
