"""What became of each attempt, told once, to those who judge nodes by it.

An attempt ends in one of three ways: a good answer, a loss, or nothing that speaks for or against the node
(the client left, another attempt won, this process did not run all the time).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trimtab.gateway.model import Attempt, Cause, Exchange, Node, Observer, Outcome
from trimtab.gateway.pulse import Pulse

Answer = tuple[Exchange, Attempt]


class Judge:
    """Who draws conclusions. Calls must not raise or wait; those that a judge leaves out are not made."""

    def began(self, exchange: Exchange, attempt: Attempt) -> None:
        """It is on its way to `attempt.node`."""

    def answered(self, answers: Sequence[Answer]) -> None:
        """Whole responses with a status below 500, 429 excepted: some that came in one turn of the loop."""

    def lost(self, exchange: Exchange, attempt: Attempt, cause: Cause) -> None:
        """No such response, for this cause."""

    def left(self, exchange: Exchange, attempt: Attempt) -> None:
        """It ended, and the node is not to be judged by it."""

    def forget(self, node: Node) -> None:
        """It is gone. What is told of it afterwards is told as of a new one."""


class Signals(Observer):
    """An Observer that tells the judges. It does not matter whether a final loss is told as `lost` too."""

    def __init__(self, judges: Sequence[Judge], pulse: Pulse) -> None:
        self._pulse = pulse
        self._ran_since_s = pulse.ran_since_s
        self._began = [judge.began for judge in judges if type(judge).began is not Judge.began]
        self._answered = [judge.answered for judge in judges if type(judge).answered is not Judge.answered]
        self._lost = [judge.lost for judge in judges if type(judge).lost is not Judge.lost]
        self._left = [judge.left for judge in judges if type(judge).left is not Judge.left]
        self._open: set[Attempt] = set()
        pulse.on_beat.append(lambda: bool(self._open))

    def started(self, exchange: Exchange, attempt: Attempt) -> None:
        """An observer's call."""
        if not self._open:
            self._pulse.start()
        self._open.add(attempt)
        for began in self._began:
            began(exchange, attempt)

    def lost(self, exchange: Exchange, attempt: Attempt) -> None:
        """An observer's call."""
        if attempt in self._open:
            self._close(exchange, attempt)

    def ended(self, exchanges: Sequence[Exchange]) -> None:
        """An observer's call."""
        is_open, answers, since_s = self._open, [], self._ran_since_s()
        for exchange in exchanges:
            for attempt in exchange.attempts:
                if attempt not in is_open:
                    continue
                status = attempt.status
                if (  # not where the client left, nor for a hedge that lost, nor across a gap of our own
                    exchange.outcome is _DONE
                    and attempt.cause is None
                    and 0 < status < 500
                    and status != _BUSY
                    and attempt.ended_s >= attempt.begun_s >= since_s
                ):
                    is_open.remove(attempt)
                    answers.append((exchange, attempt))
                    continue
                if answers:  # all is told in its order
                    self._tell(answers)
                    answers = []
                self._close(exchange, attempt)
        if answers:
            self._tell(answers)

    def _tell(self, answers: Sequence[Answer]) -> None:
        for answered in self._answered:
            answered(answers)

    def _close(self, exchange: Exchange, attempt: Attempt) -> None:
        """Tell of an attempt that came to nothing, or of which nothing can be said."""
        self._open.remove(attempt)
        cause = attempt.cause or _cause_of(attempt.status)
        if cause is None or attempt.begun_s < self._ran_since_s():  # why it broke may be our own doing
            for left in self._left:
                left(exchange, attempt)
        else:
            for lost in self._lost:
                lost(exchange, attempt, cause)


_DONE: Final = Outcome.DONE  # an enum looks its members up in Python
_BUSY: Final = 429


def _cause_of(status: int) -> Cause | None:
    """What a status says, for an answer that was handed on as it was."""
    if status in (_BUSY, 503):
        return Cause.BUSY
    return Cause.SERVER_ERROR if status >= 500 else None
