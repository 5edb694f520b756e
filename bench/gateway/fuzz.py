"""Mutated requests and responses against the wire's parsers: `python -m bench.gateway.fuzz --inputs 1000000`.

What must hold for each: nothing is raised but what is meant to be; what was understood does not depend on how
the bytes were cut; a request before the mutated one is as if it were alone, and nothing of it is in those
after it; what goes on is well-formed; a response ends once, and llhttp reads the same body or refuses it.
"""

from __future__ import annotations

import argparse
import faulthandler
import random
import re
import sys
import time
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import httptools

from bench.gateway.mutate import RESPONSES, mutated, pieces, request
from trimtab.gateway.http.framing import Length, ResponseHead
from trimtab.gateway.http.request import KnownHeads, MalformedError, Request
from trimtab.gateway.http.request_reader import RequestReader
from trimtab.gateway.http.upstream_connection import UpstreamConnection

LINE = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[^\x00\r\n]*\r\n")
TARGET = re.compile(rb"[!-~]*")
FIRST = b"@1st@@"  # no mutation of the other marks makes it
KNOWN = KnownHeads()  # of all inputs: what was parsed once must mean the same when it is not parsed again
HANG_S = 60.0  # for a hundred inputs
Seen = tuple[bytes, ...]  # of one request: method, target, lines, body


class Wrong(Exception):  # noqa: N818 - reads as the sentence it makes
    """Something that must hold does not; says what."""


def must(holds: bool, what: str) -> None:
    """Raises Wrong."""
    if not holds:
        raise Wrong(what)


class Requests:
    """Takes requests from a reader."""

    def __init__(self) -> None:
        self.whole: list[Seen] = []
        self.is_tunnel = False  # what follows is no HTTP
        self._body: dict[int, list[bytes]] = {}

    def request_head(self, request: Request) -> None:
        for line in request.forward:
            must(LINE.fullmatch(line) is not None, f"a line that is none goes on: {line!r}")
        must(TARGET.fullmatch(request.target) is not None, f"target {request.target!r}")
        self._body[id(request)] = []

    def request_body(self, request: Request, piece: bytes) -> None:
        must(id(request) in self._body, "a body before its head")
        self._body[id(request)].append(piece)

    def request_complete(self, request: Request) -> None:
        self.is_tunnel = request.websocket
        body = b"".join(self._body.pop(id(request)))
        self.whole.append((request.method.encode(), request.target, b"".join(request.forward), body))


def read(data: Iterable[bytes]) -> tuple[list[Seen], bool]:
    """The requests within, and whether the rest was refused."""
    requests = Requests()
    reader = RequestReader(requests, 65_536, 1_000, 65_536, KNOWN)
    try:
        for piece in data:
            reader.feed(piece)
            if requests.is_tunnel:
                break
    except MalformedError:
        return requests.whole, True
    return requests.whole, False


def fuzz_request(rng: random.Random) -> bytes:
    """One input. Raises Wrong, or whatever should not be raised, with the input as an argument."""
    clean = request(rng, FIRST)
    while b"websocket" in clean:
        clean = request(rng, FIRST)
    data = clean + mutated(rng, request(rng, b"second") + request(rng, b"third."))
    try:
        alone, _ = read([clean])
        whole, refused = read([data])
        must(whole[:1] == alone, "the request before is another")
        must(not any(FIRST in part for seen in whole[1:] for part in seen), "bytes of the request before")
        in_pieces, refused_in_pieces = read(pieces(rng, data))
        must(in_pieces == whole, f"cut otherwise: {in_pieces} instead of {whole}")
        must(refused == refused_in_pieces, "refused only when cut otherwise")
    except Exception as error:
        error.add_note(f"input: {data!r}")
        raise
    return data


class Answer:
    """Takes a response from an upstream connection, as an attempt does."""

    method = "POST"
    upgrade = sending = False

    def __init__(self) -> None:
        self.ends: list[str] = []
        self.response: ResponseHead | None = None
        self.raw = self.payload = b""

    def head(self, head: ResponseHead) -> None:
        must(self.response is None, "two heads")
        for line in head.lines:
            must(LINE.fullmatch(line) is not None, f"a line that is none goes on: {line!r}")
        self.response = head

    def data(self, raw: bytes, payload: bytes) -> None:
        must(self.response is not None and not self.ends, "data outside of a response")
        self.raw += raw
        self.payload += payload

    def whole(self, head: ResponseHead, body: bytes) -> None:
        self.head(head)
        self.data(body, body)

    def flow(self) -> None:
        """Every chunk is to come by `data`."""

    def end(self) -> None:
        self.ends.append("end")

    def lost(self, cause: object) -> None:
        self.ends.append("lost")

    def switched(self, head: object, rest: bytes) -> None:
        raise Wrong("switched without being asked")


class Wire:
    """A pool and a transport that do nothing."""

    def __init__(self) -> None:
        self.node = SimpleNamespace(last_byte_s=0.0)
        self.inbox = self.outbox = self  # which do nothing either
        self.is_closed = False

    def time(self) -> float:
        return 0.0

    def give(self, connection: object) -> None:
        pass

    def forget(self, connection: object) -> None:
        pass

    def put(self, transport: object, data: bytes) -> None:
        pass

    def take(self) -> None:
        pass

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def write(self, data: bytes) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True

    abort = close


def answered(data: Iterable[bytes]) -> Answer:
    """The parsed response, until the node closes."""
    wire: Any = Wire()
    answer: Any = Answer()
    connection = UpstreamConnection(wire)
    connection.connection_made(wire)
    connection.carry(answer, b"")
    for piece in data:
        if wire.is_closed or answer.ends:
            break
        connection.received(piece)
    connection.connection_lost(None)
    must(len(answer.ends) == 1, f"it ended {len(answer.ends)} times")
    return answer  # type: ignore[no-any-return]


class _Body:
    """A chunked body as llhttp reads it."""

    def __init__(self) -> None:
        self.body, self.is_whole = b"", False

    def on_body(self, piece: bytes) -> None:
        self.body += piece

    def on_message_complete(self) -> None:
        self.is_whole = True


def fuzz_response(rng: random.Random) -> bytes:
    """One input. Raises Wrong, or whatever should not be raised, with the input in a note."""
    data = mutated(rng, rng.choice(RESPONSES))
    try:
        answer = answered([data])
        cut = answered(pieces(rng, data))
        must(cut.ends == answer.ends, f"cut otherwise it ends as {cut.ends}, not {answer.ends}")
        if answer.ends == ["end"]:
            must(cut.payload == answer.payload, "cut otherwise it has another body")
            _check_chunks(answer)
    except Exception as error:
        error.add_note(f"input: {data!r}")
        raise
    return data


def _check_chunks(answer: Answer) -> None:
    """A forwarded chunked body must mean the same to another parser."""
    if answer.response is None or answer.response.length is not Length.CHUNKED:
        return
    other = _Body()
    parser: Any = httptools.HttpResponseParser(other)
    try:
        parser.feed_data(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + answer.raw)
    except httptools.HttpParserError as error:
        raise Wrong(f"llhttp refuses what goes on: {error}") from None
    must(other.is_whole and other.body == answer.payload, "llhttp reads another body")


def fuzz(inputs: int, seed: int) -> int:
    """Try so many inputs, half of them requests; returns how many bytes they had. Raises what went wrong."""
    rng, size = random.Random(seed), 0
    try:
        for number in range(inputs):
            if number % 100 == 0:
                faulthandler.dump_traceback_later(HANG_S, exit=True)
            size += len((fuzz_request if number % 2 else fuzz_response)(rng))
    finally:  # else it ends the process that goes on
        faulthandler.cancel_dump_traceback_later()
    return size


def main() -> int:
    """Exit code: 0, or 1 where something does not hold."""
    parser = argparse.ArgumentParser("python -m bench.gateway.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    begun_s = time.perf_counter()
    try:
        size = fuzz(arguments.inputs, arguments.seed)
    except Exception as error:
        notes = "\n".join(getattr(error, "__notes__", []))
        print(f"{type(error).__name__}: {error}\n{notes}", file=sys.stderr)
        return 1
    took_s = time.perf_counter() - begun_s
    print(f"{arguments.inputs:,} inputs, {size / 1e6:.0f} MB, {took_s:.0f} s: nothing wrong")
    return 0


if __name__ == "__main__":
    sys.exit(main())
