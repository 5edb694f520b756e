"""A database that goes away: what counts as that, and work that waits until it is back."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from time import monotonic
from typing import Final, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

OUTAGE_S: Final = 60.0  # how long work that a user would lose waits for its database
_FIRST_PAUSE_S: Final = 0.05
_MOST_PAUSE_S: Final = 1.0
# States of SQL, or their classes: connection failures, the server stops or starts, too many connections.
_AWAY_STATES: Final = ("08", "57P", "53300")
_LOST_CONNECTION: Final = frozenset({"OperationalError", "InterfaceError"})  # PEP 249


def is_away(error: BaseException) -> bool:
    """Whether a server cannot be reached, or has ended the connection: it may be back soon.

    Not so: a statement that took too long, a full or read-only disk, and all errors of SQLite.

    Args:
        error: SQLAlchemy's, or the driver's own.
    """
    cause = getattr(error, "orig", None) or error
    if not hasattr(cause, "sqlstate") or _LOST_CONNECTION.isdisjoint(
        kind.__name__ for kind in type(cause).__mro__
    ):
        return False
    return cause.sqlstate is None or cause.sqlstate.startswith(_AWAY_STATES)


def reason_of(error: BaseException) -> str:
    """The driver's first line: SQLAlchemy's own text holds the statement and its values."""
    cause = getattr(error, "orig", None) or error
    return next(iter(str(cause).strip().splitlines()), type(cause).__name__)


class OutageRetry:
    """Repeats work while the database is away, and logs where that begins, goes on too long, and ends.

    For one thread, which works in order: what comes meanwhile waits behind it.

    Args:
        who: what uses the database, for the log.
    """

    def __init__(self, who: str) -> None:
        self._who, self._since_s = who, 0.0  # 0: it is there
        self._has_given_up = False
        self._ending = threading.Event()

    def run(self, work: Callable[[], T], until_s: float) -> T:
        """`work`'s result, as soon as the database is there.

        Args:
            until_s: when to give up, by `time.monotonic`. Then the error of the last attempt is raised.
        """
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                result = work()
            except Exception as error:
                if not is_away(error):
                    raise
                left_s = until_s - monotonic()
                self._note_away(reason_of(error), left_s)
                if left_s <= 0.0 or self._ending.wait(min(pause_s, left_s)):
                    raise
                pause_s = min(2 * pause_s, _MOST_PAUSE_S)
            else:
                self._note_back()
                return result

    def end(self) -> None:
        """Wait no more: the process ends. From another thread."""
        self._ending.set()

    def _note_away(self, reason: str, left_s: float) -> None:
        if not self._since_s:
            self._since_s = monotonic()
            waits = f"; work waits for it for {left_s:.0f} s" if left_s > 0.0 else ""
            logger.warning("%s: the database is away: %s%s", self._who, reason, waits)
        elif left_s <= 0.0 and not self._has_given_up:
            self._has_given_up, away_s = True, monotonic() - self._since_s
            logger.error("%s: the database has been away for %.0f s: nothing waits longer", self._who, away_s)

    def _note_back(self) -> None:
        if self._since_s:
            logger.warning("%s: the database is back after %.1f s", self._who, monotonic() - self._since_s)
            self._since_s, self._has_given_up = 0.0, False
