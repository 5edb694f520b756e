"""What the picker answers to Envoy, as bytes of `ProcessingResponse`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

from trimtab.gateway.picker.ext_proc_messages import ProcessingResponse

DESTINATION: Final = "x-gateway-destination-endpoint"
NAMESPACE: Final = "envoy.lb"
PIECE_BYTES: Final = 62_000  # of a body in full duplex: Envoy's and gRPC's frames stay below 64 KiB
_OVERWRITE: Final = 2  # OVERWRITE_IF_EXISTS_OR_ADD

Header = tuple[str, bytes]


def _go_on(part: str) -> bytes:
    response = ProcessingResponse()
    getattr(response, part).SetInParent()
    return bytes(response.SerializeToString())


GO_ON: Final = {  # part of a request or response → it passes unchanged
    part: _go_on(part)
    for part in (
        "request_headers",
        "response_headers",
        "request_body",
        "response_body",
        "request_trailers",
        "response_trailers",
    )
}


def _set(mutation: Any, headers: Iterable[Header]) -> None:
    for name, value in headers:
        option = mutation.set_headers.add(append_action=_OVERWRITE)
        option.header.key, option.header.raw_value = name, value


@lru_cache(maxsize=1024)
def chosen(part: str, endpoints: str, headers: tuple[Header, ...], removed: tuple[str, ...]) -> bytes:
    """The endpoints of a request, best first, as header and as metadata; and other changes of its head.

    `part`: what this answers, `request_headers` or `request_body`.
    """
    return bytes(_chosen(part, endpoints, headers, removed).SerializeToString())


def _chosen(part: str, endpoints: str, headers: tuple[Header, ...], removed: tuple[str, ...]) -> Any:
    response = ProcessingResponse()
    mutation = getattr(response, part).response.header_mutation
    _set(mutation, ((DESTINATION, endpoints.encode()), *headers))
    mutation.remove_headers.extend(removed)
    fields = response.dynamic_metadata.fields[NAMESPACE].struct_value.fields
    fields[DESTINATION].string_value = endpoints
    return response


def chosen_with_body(
    endpoints: str, headers: tuple[Header, ...], removed: tuple[str, ...], body: bytes
) -> bytes:
    """As `chosen` in answer to a whole body, with another body."""
    response = _chosen("request_body", endpoints, headers, removed)
    response.request_body.response.body_mutation.body = body
    return bytes(response.SerializeToString())


def body_pieces(part: str, body: bytes, *, ends: bool) -> list[bytes]:
    """A body in full duplex. `ends`: no further piece and no trailers follow."""
    answers = []
    for at in range(0, max(len(body), 1), PIECE_BYTES):
        response = ProcessingResponse()
        piece = getattr(response, part).response.body_mutation.streamed_response
        piece.body = body[at : at + PIECE_BYTES]
        piece.end_of_stream = ends and at + PIECE_BYTES >= len(body)
        answers.append(bytes(response.SerializeToString()))
    return answers


def response_head(headers: Iterable[Header]) -> bytes:
    """The response passes with these further headers."""
    response = ProcessingResponse()
    _set(response.response_headers.response.header_mutation, headers)
    return bytes(response.SerializeToString())


def immediate(status: int, headers: Iterable[Header], body: bytes, details: str) -> bytes:
    """The client gets this answer, and no backend the request. `details`: for Envoy's access log."""
    response = ProcessingResponse()
    answer = response.immediate_response
    answer.status.code = status
    _set(answer.headers, headers)
    answer.body, answer.details = body, details.replace(" ", "_")
    return bytes(response.SerializeToString())


def longer(seconds: float) -> bytes:
    """Ask Envoy to wait this long for the next answer. It agrees up to its `max_message_timeout`."""
    response = ProcessingResponse()
    response.override_message_timeout.FromMilliseconds(int(1e3 * seconds))
    return bytes(response.SerializeToString())
