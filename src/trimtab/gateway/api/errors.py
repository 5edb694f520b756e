"""The gateway's own refusals as bytes: HTTP responses and last events of streams, in each dialect.

The error types are those of the official clients and their servers. The clients choose their exception by
status. All external text passes through JSON encoding or a filter of header characters.
"""

from __future__ import annotations

import math
import re
from http import HTTPStatus
from typing import Any, Final

import orjson

from trimtab.gateway.model import Cause, Dialect, Endpoint, Kind, Refusal

_OPENAI_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    408: "timeout_error",
    429: "rate_limit_error",
    504: "timeout_error",
}
_ANTHROPIC_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_NOT_HEADER: Final = re.compile(r"[^\x20-\x7e]")
_REASONS: Final = {status.value: status.phrase for status in HTTPStatus}


def error_type(status: int, dialect: Dialect) -> str:
    """A dialect's error type for this status."""
    if dialect is Dialect.ANTHROPIC:
        return _ANTHROPIC_TYPES.get(status) or ("api_error" if status >= 500 else "invalid_request_error")
    return _OPENAI_TYPES.get(status) or ("server_error" if status >= 500 else "invalid_request_error")


def error_body(refusal: Refusal, dialect: Dialect, request_id: str = "") -> bytes:
    """The JSON of a refusal."""
    return orjson.dumps(_as_json(refusal, dialect, request_id))


def _as_json(refusal: Refusal, dialect: Dialect, request_id: str) -> dict[str, Any]:
    kind = error_type(refusal.status, dialect)
    if dialect is Dialect.ANTHROPIC:
        body: dict[str, Any] = {"type": "error", "error": {"type": kind, "message": _text(refusal.message)}}
        return {**body, "request_id": _text(request_id)} if request_id else body
    return {
        "error": {
            "message": _text(refusal.message),
            "type": kind,
            "param": refusal.param,
            "code": refusal.code,
        }
    }


def _text(message: str) -> str:
    """The message without lone surrogates, which JSON cannot hold."""
    return message if message.isascii() else message.encode("utf-8", "replace").decode("utf-8")


def refusal_headers(refusal: Refusal, dialect: Dialect, request_id: str) -> list[tuple[str, str]]:
    """The headers of a refusal, without its length."""
    headers = [("content-type", "application/json")]
    if request_id:
        shown = _NOT_HEADER.sub("", request_id)
        headers.append(("x-request-id", shown))
        if dialect is Dialect.ANTHROPIC:
            headers.append(("request-id", shown))
    if refusal.retry_after_s > 0:
        headers.append(("retry-after", str(math.ceil(min(refusal.retry_after_s, 1e9)))))
    if refusal.allow:
        headers.append(("allow", _NOT_HEADER.sub("", ", ".join(refusal.allow))))
    if refusal.status == 401:
        headers.append(("www-authenticate", "Bearer"))
    return headers


def response_bytes(
    refusal: Refusal,
    dialect: Dialect,
    request_id: str = "",
    *,
    head_only: bool = False,
    close: bool = False,
    own: bytes = b"",
) -> bytes:
    """A complete HTTP response.

    `head_only`: for HEAD; `close`: the connection closes after it; `own`: further header lines, with CRLF.
    """
    body = error_body(refusal, dialect, request_id)
    lines = [
        f"HTTP/1.1 {refusal.status} {_REASONS.get(refusal.status, 'Error')}",
        *(f"{name}: {value}" for name, value in refusal_headers(refusal, dialect, request_id)),
        f"content-length: {len(body)}",
    ]
    if close:
        lines.append("connection: close")
    head = ("\r\n".join(lines) + "\r\n").encode("ascii") + own + b"\r\n"
    return head if head_only else head + body


def stream_event(refusal: Refusal, dialect: Dialect, kind: Kind = Kind.CHAT) -> bytes:
    """The event that ends a broken stream. No `[DONE]` follows, because the response is incomplete."""
    if dialect is Dialect.ANTHROPIC:
        return b"event: error\ndata: " + error_body(refusal, dialect) + b"\n\n"
    if kind is Kind.RESPONSE:
        return b"event: error\ndata: " + orjson.dumps(_response_error(refusal)) + b"\n\n"
    return b"data: " + error_body(refusal, dialect) + b"\n\n"


def _response_error(refusal: Refusal) -> dict[str, Any]:
    """The Responses API's error event. The extra field `error` makes the official client raise."""
    error = _as_json(refusal, Dialect.OPENAI, "")["error"]
    fields = {"code": refusal.code, "message": error["message"], "param": refusal.param}
    return {"type": "error", **fields, "sequence_number": 0, "error": error}


_FINAL = {
    Cause.CONNECT: (502, "node_unreachable", "The node could not be reached."),
    Cause.BUSY: (503, "nodes_busy", "The nodes have no capacity."),
    Cause.RATE_LIMITED: (429, "rate_limited", "The node limits the rate of such requests."),
    Cause.SERVER_ERROR: (502, "node_error", "The node answered with an error."),
    Cause.RESET: (502, "node_lost", "The node was lost before it had answered."),
    Cause.BAD_RESPONSE: (502, "bad_response", "The node's answer was not understood."),
    Cause.FIRST_BYTE: (504, "first_byte_timeout", "The node did not answer in time."),
    Cause.IDLE: (504, "idle_timeout", "The node stopped answering."),
    Cause.TOTAL: (504, "total_timeout", "The answer took too long."),
    Cause.PREEMPTED: (503, "preempted", "Its place went to other work."),
    Cause.LOAD: (503, "load_failed", "The node could not load the model."),
}


def final_refusal(cause: Cause, retry_after_s: float = 0.0) -> Refusal:
    """The error response, for failures before the first byte of a response."""
    status, code, message = _FINAL[cause]
    return Refusal(status, code, message, retry_after_s)


def final_event(cause: Cause, endpoint: Endpoint | None) -> bytes:
    """The last event of a stream that has already begun."""
    dialect, kind = (Dialect.OPENAI, Kind.CHAT) if endpoint is None else (endpoint.dialect, endpoint.kind)
    return stream_event(final_refusal(cause), dialect, kind)
