"""Logs of stages' own code: each record has the run, stage and attempt in which it was made.

A stage that configures logging itself finds `record.run`, `record.stage`, `record.instance` and
`record.attempt`. Elsewhere warnings go to standard error with them.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import Any

from trimtab.live.stage_backend import Attempt

CURRENT: ContextVar[Attempt | None] = ContextVar("attempt", default=None)
"""The attempt that runs here."""

FORMAT = "%(levelname)s [%(run)s %(stage)s[%(instance)s] attempt %(attempt)s] %(name)s: %(message)s"


def install() -> None:
    """Give all records of this process the attempt in which they are made."""
    make = logging.getLogRecordFactory()

    def made(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record, attempt = make(*args, **kwargs), CURRENT.get()
        record.run = attempt.run if attempt else ""
        record.stage = attempt.stage if attempt else ""
        record.instance, record.attempt = (attempt.index, attempt.attempt) if attempt else ("", "")
        return record

    logging.setLogRecordFactory(made)
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(logging.Formatter(FORMAT))
