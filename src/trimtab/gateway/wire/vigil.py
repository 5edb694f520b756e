"""While its only request waits for a node that answers at once, the process stays awake.

To fall asleep and to be woken takes a processor longer than such an answer takes to come, and longer still
on a virtual machine. Halt polling as KVM does it for guests: how long waits have lasted lately decides.
"""

from __future__ import annotations

import asyncio
from typing import Final

WAIT_S: Final = 3e-4  # a wait that is over sooner is worth staying awake for
MEMORY: Final = 8.0  # waits that count


class Vigil:
    """Keeps the loop from sleeping for up to `WAIT_S` where most waits were over sooner than that.

    Only where one request is in the hands of the process: with more of them, or slower nodes, it would take
    a processor for nothing.
    """

    __slots__ = ("_is_awake", "_keep_awake", "_loop", "_since_s", "_soon_frac", "_until_s")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._keep_awake = self._stay_awake  # bound once
        self._soon_frac = 0.0  # of the waits lately
        self._since_s = 0.0  # of a wait; 0 = none
        self._until_s = 0.0
        self._is_awake = False

    def turn_over(self, read_s: float, in_flight: int) -> None:
        """What was read at `read_s` is taken in, and so many requests are in flight now."""
        if self._since_s:
            is_soon = read_s - self._since_s < WAIT_S
            self._soon_frac += (is_soon - self._soon_frac) / MEMORY
            self._since_s = self._until_s = 0.0
        if in_flight == 1:
            self._since_s = now_s = self._loop.time()
            if self._soon_frac > 0.5:
                self._until_s = now_s + WAIT_S
                if not self._is_awake:
                    self._is_awake = True
                    self._loop.call_soon(self._keep_awake)

    def _stay_awake(self) -> None:
        if self._loop.time() < self._until_s:
            self._loop.call_soon(self._keep_awake)  # with something to call the loop does not sleep
        else:
            self._is_awake = False
