"""The event loop of programs that serve."""

from __future__ import annotations

import asyncio
from time import monotonic


def new_runner() -> asyncio.Runner:
    """A runner with an event loop: uvloop's if it is installed, with a finer clock.

    uvloop's own clock counts whole milliseconds and stands still during an iteration. That is too coarse for
    estimates from durations, and for recordings.
    """
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()

    class Loop(uvloop.Loop):
        time = staticmethod(monotonic)  # same origin as uvloop's clock

    return asyncio.Runner(loop_factory=Loop)
