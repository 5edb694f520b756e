"""Logs errors that reach the event loop, in the gateway's own form, and rarely.

A client can repeat whatever makes a step fail, so the log gets the 1st, 2nd, 4th, 8th … error of a place in
the code, and the traceback of the first only.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

logger = logging.getLogger(__name__)

MOST_PLACES: Final = 256  # further ones share a count


class LoopErrors:
    """The handler for `loop.set_exception_handler`."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def __call__(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log an error."""
        error, message = context.get("exception"), str(context.get("message", "an error"))
        place = f"{message} at {_place(error)}"
        if len(self._counts) >= MOST_PLACES and place not in self._counts:
            place = "elsewhere"
        self._counts[place] = count = self._counts.get(place, 0) + 1
        if count & (count - 1):
            return
        text = message if error is None else f"{message}: {type(error).__name__}: {error}"
        logger.error("%s (%d so far)", text, count, exc_info=error if count == 1 else None)


def _place(error: object) -> str:
    """The innermost line of the traceback."""
    trace = error.__traceback__ if isinstance(error, BaseException) else None
    if trace is None:
        return type(error).__name__
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f"{type(error).__name__} {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
