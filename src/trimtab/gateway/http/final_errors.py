"""The errors that a client gets when no retry of its request is left."""

from __future__ import annotations

from trimtab.gateway.api.errors import stream_event
from trimtab.gateway.model import Cause, Dialect, Endpoint, Kind, Refusal

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
