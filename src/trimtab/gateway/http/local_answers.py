"""Work on a request that takes more than one turn of the loop: the gateway's own responses, long bodies."""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.gateway.http.connection_context import LocalAnswer
from trimtab.gateway.model import Outcome, Refusal

if TYPE_CHECKING:
    from trimtab.gateway.http.proxied_exchange import ProxiedExchange

_log = logging.getLogger(__name__)
FILE_BYTES = 262_144
_REASONS = {status.value: status.phrase for status in HTTPStatus}


async def answer_locally(exchange: ProxiedExchange) -> None:
    """Let the gateway answer the request itself, and write its response."""
    await _to_its_end(exchange, _answer(exchange))


async def validate(exchange: ProxiedExchange) -> None:
    """Read and validate a spooled body piece by piece, then submit the request."""
    await _to_its_end(exchange, _validate(exchange))


async def _to_its_end(exchange: ProxiedExchange, work: Coroutine[Any, Any, None]) -> None:
    """Run `work` on an exchange. An unexpected exception ends the exchange with status 500."""
    try:
        await work
    except Exception:
        _log.exception("the gateway failed on a request", extra={"request_id": exchange.id})
        exchange.task = None
        exchange.give_up(Refusal(500, "internal_error", "The gateway failed on this request."))


async def _answer(exchange: ProxiedExchange) -> None:
    answer = await exchange.context.local(exchange, exchange.body or b"")
    if exchange.over:
        return
    if isinstance(answer, Refusal):
        exchange.refuse(answer)
    elif isinstance(answer.body, Path):
        await _send_file(exchange, answer, answer.body)
    else:
        exchange.answer(answer.status, _head(exchange, answer, len(answer.body)), answer.body)


def _head(exchange: ProxiedExchange, answer: LocalAnswer, size: int) -> bytes:
    lines = [f"HTTP/1.1 {answer.status} {_REASONS.get(answer.status, '')}"]
    lines += [f"{name}: {value}" for name, value in answer.headers]
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a header of the gateway's own has a line break in it")
    if answer.status not in (204, 304):
        lines.append(f"content-length: {size}")
    lines.append(f"x-request-id: {exchange.id}")
    if exchange.closes():
        lines.append("connection: close")
    elif exchange.request.http10:
        lines.append("connection: keep-alive")
    return ("\r\n".join(lines) + "\r\n").encode("latin-1") + exchange.own_lines + b"\r\n"


async def _send_file(exchange: ProxiedExchange, answer: LocalAnswer, path: Path) -> None:
    try:
        with path.open("rb") as file:
            left = file.seek(0, 2)
            file.seek(0)
            transport = exchange.client.transport
            head = _head(exchange, answer, left)
            if exchange.method == "HEAD":
                exchange.answer(answer.status, head, b"")
                return
            exchange.committed = True
            exchange.context.outbox.now(transport, head)
            while left and not exchange.over:
                piece = file.read(min(left, FILE_BYTES))
                if not piece:
                    exchange.finish(Outcome.FAILED, close=True, broken=True)
                    return
                left -= len(piece)
                exchange.response_bytes += len(piece)
                transport.write(piece)
                await exchange.client_takes_more()
    except FileNotFoundError:
        exchange.refuse(Refusal(404, "result_gone", "The result is no longer there."))
        return
    if not exchange.over:
        exchange.answer(answer.status, b"", b"")


async def _validate(exchange: ProxiedExchange) -> None:
    admission = exchange.context.admission
    scan = admission.scan(exchange)
    if isinstance(scan, Refusal):
        exchange.refuse(scan)
        return
    await exchange.request.body.show(scan)
    exchange.body = None
    refusal = admission.scanned(exchange, scan)
    exchange.task = None
    if refusal is not None:
        exchange.refuse(refusal)
    else:
        exchange.submit()
