"""Structured logs, as JSON or text, optionally a line per request. No bodies, keys or query strings.

Logs errors that reach the event loop, in the gateway's own form, and rarely.

A client can repeat whatever makes a step fail, so the log gets the 1st, 2nd, 4th, 8th … error of a place in
the code, and the traceback of the first only.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import time
from collections.abc import Sequence
from enum import Enum
from typing import Any, Final, TextIO

import orjson

from trimtab.gateway.model import Exchange, Kind, Observer, Outcome

ROOT: Final = "trimtab"  # the package's logger; every module logs under its own name
_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_HIDDEN: Final = "[hidden]"
_SECRETS: Final = re.compile(
    r"(?i)(\b(?:bearer|basic)\s+)[^\s\"',;]+"
    r"|((?:api[-_]?key|token|password|secret|authorization|cookie)[\"']?\s*[=:]\s*[\"']?(?:(?:bearer|basic)\s+)?)"
    r"[^\s\"',;&]+"
    r"|(\b[a-z][a-z0-9+.-]*://)[^/\s@]+@"  # user and password of a URL
    r"|\b(?:sk|tt)-[A-Za-z0-9_-]{8,}"
)
_DONE, _FAILED, _EXPIRED = (
    Outcome.DONE,
    Outcome.FAILED,
    Outcome.EXPIRED,
)  # an enum looks its members up in Python
_READY: Final = Kind.READY
_CONTROLS: Final = {code: f"\\x{code:02x}" for code in (*range(32), 127, *range(128, 160))}


def redacted(text: str) -> str:
    """The text without credentials: a safeguard for messages that contain one by mistake."""
    return _SECRETS.sub(lambda match: f"{match[1] or match[2] or match[3] or ''}{_HIDDEN}", text)


class JsonFormatter(logging.Formatter):
    """One JSON object per line; `extra` fields become its keys."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        fields: dict[str, Any] = {
            "time": _stamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": redacted(record.getMessage()),
        }
        fields.update({name: _clean(value) for name, value in _extra(record).items()})
        if record.exc_info:
            fields["error"] = redacted(self.formatException(record.exc_info))
        return orjson.dumps(fields, default=str).decode()


class TextFormatter(logging.Formatter):
    """Time, level, event and `name=value` pairs on one line, for people."""

    def format(self, record: logging.LogRecord) -> str:
        """The line. Control characters are escaped, so that clients cannot forge lines."""
        pairs = " ".join(
            f"{name}={_clean(value)}" for name, value in _extra(record).items() if value is not None
        )
        event = redacted(record.getMessage())
        line = f"{_stamp(record.created)} {record.levelname:<7} {event} {pairs}".rstrip().translate(_CONTROLS)
        return f"{line}\n{redacted(self.formatException(record.exc_info))}" if record.exc_info else line


def _stamp(created_s: float) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(created_s))}.{int(created_s % 1 * 1000):03d}Z"


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in record.__dict__.items() if name not in _STANDARD}


def _clean(value: Any) -> Any:
    return redacted(value) if isinstance(value, str) else value


def set_up_logs(form: str = "text", level: str = "info", stream: TextIO | None = None) -> logging.Handler:
    """Write the gateway's logs to `stream` (standard error) as `form`: json or text. Returns the handler.

    Raises ValueError for another form or level.
    """
    if form not in ("json", "text"):
        raise ValueError(f"a form of logs is json or text, not {form!r}")
    logger = logging.getLogger(ROOT)
    logger.setLevel(level.upper())
    for old in list(logger.handlers):
        logger.removeHandler(old)
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logger.addHandler(handler)
    logger.propagate = False
    return handler


class Which(Enum):
    """Which requests get a line."""

    NONE = "none"
    FAILED = "failed"  # failed, expired, or answered with 5xx
    ALL = "all"


class RequestLog(Observer):
    """An Observer that writes one line per request that ended."""

    def __init__(self, which: Which = Which.FAILED) -> None:
        self._writes_bad, self._writes_good = which is not Which.NONE, which is Which.ALL
        self._log = logging.getLogger(f"{ROOT}.gateway.requests")

    def ended(self, exchanges: Sequence[Exchange]) -> None:
        """Write a line for each exchange that the setting selects."""
        for exchange in exchanges:
            outcome, status = exchange.outcome, exchange.response_status
            if outcome is _DONE and status < 500 and not self._writes_good:
                continue  # the usual case
            bad = outcome is _FAILED or outcome is _EXPIRED or status >= 500
            if exchange.endpoint is not None and exchange.endpoint.kind is _READY:
                bad = False  # asked every second, and "no" is no failure
            if self._writes_bad if bad else self._writes_good:
                level = logging.WARNING if bad else logging.INFO
                if self._log.isEnabledFor(level):
                    self._log.log(level, "request", extra=_fields(exchange))


def _fields(exchange: Exchange) -> dict[str, Any]:
    facts, attempts, refusal, usage = exchange.facts, exchange.attempts, exchange.refusal, exchange.usage
    last = attempts[-1] if attempts else None
    return {
        "id": exchange.id,
        "method": exchange.method,
        "path": exchange.path.partition("?")[0],
        "status": exchange.response_status if refusal is None else refusal.status,
        "outcome": exchange.outcome.value if exchange.outcome is not None else None,
        "refusal": refusal.code if refusal is not None else None,
        "model": facts.model if facts is not None else None,
        "tenant": exchange.tenant.name if exchange.tenant is not None else None,
        "node": last.node.name if last is not None else None,
        "attempts": len(attempts),
        "lost_by": last.cause.value if last is not None and last.cause is not None else None,
        "duration_s": _rounded(exchange.ended_s, exchange.arrived_s),
        "wait_s": _rounded(exchange.started_s, exchange.arrived_s),
        "first_byte_s": _rounded(last.first_byte_s, exchange.arrived_s) if last is not None else None,
        "response_bytes": exchange.response_bytes,
        "prompt_tokens": usage.prompt_tokens if usage is not None else None,
        "completion_tokens": usage.completion_tokens if usage is not None else None,
    }


def _rounded(at_s: float, from_s: float) -> float | None:
    return round(at_s - from_s, 6) if at_s > 0.0 and from_s > 0.0 else None


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
