"""What became of each attempt, told once, to those who judge nodes by it.

An attempt ends in one of three ways: a good answer, a loss, or nothing that speaks for or against the node
(the client left, another attempt won).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from trimtab.runtime.gateway.model import Attempt, Cause, Exchange, Outcome


class Judge(Protocol):
    """Who draws conclusions. Calls must not raise or wait."""

    def began(self, exchange: Exchange, attempt: Attempt) -> None:
        """It is on its way to `attempt.node`."""

    def answered(self, exchange: Exchange, attempt: Attempt) -> None:
        """A whole response with a status below 500, 429 excepted."""

    def lost(self, exchange: Exchange, attempt: Attempt, cause: Cause) -> None:
        """No such response, for this cause."""

    def left(self, exchange: Exchange, attempt: Attempt) -> None:
        """It ended, and the node is not to be judged by it."""


class Signals:
    """An Observer that tells the judges. It does not matter whether a final loss is told as `lost` too."""

    def __init__(self, judges: Sequence[Judge]) -> None:
        self._judges = judges
        self._open: set[Attempt] = set()

    def arrived(self, exchange: Exchange) -> None:
        """An observer's call."""

    def started(self, exchange: Exchange, attempt: Attempt) -> None:
        """An observer's call."""
        self._open.add(attempt)
        for judge in self._judges:
            judge.began(exchange, attempt)

    def lost(self, exchange: Exchange, attempt: Attempt) -> None:
        """An observer's call."""
        self._close(exchange, attempt, attempt.cause)

    def ended(self, exchange: Exchange) -> None:
        """An observer's call."""
        for attempt in exchange.attempts:
            self._close(exchange, attempt, attempt.cause)

    def _close(self, exchange: Exchange, attempt: Attempt, cause: Cause | None) -> None:
        if attempt not in self._open:
            return
        self._open.discard(attempt)
        cause = cause or _cause_of(attempt.status)
        if cause is not None:
            for judge in self._judges:
                judge.lost(exchange, attempt, cause)
        elif exchange.outcome is Outcome.DONE and attempt.status > 0 and attempt.ended_s >= attempt.begun_s:
            for judge in self._judges:
                judge.answered(exchange, attempt)
        else:  # the client left, or this was a hedge that lost
            for judge in self._judges:
                judge.left(exchange, attempt)


def _cause_of(status: int) -> Cause | None:
    """What a status says, for an answer that was handed on as it was."""
    if status in (429, 503):
        return Cause.BUSY
    return Cause.SERVER_ERROR if status >= 500 else None
