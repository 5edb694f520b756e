"""The load: takes jobs as lines of JSON, answers each with one. `python -m bench.gateway.load`.

`closed`: so many connections, each sends its next request when it has the answer to its last. `open`:
requests at a rate, whatever has become of the others. `streams`: so many streams at the same time.
"""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import httptools
import uvloop

from bench.gateway.bodies import EVENTS_AT_END, chat_request

STAMPED = re.compile(rb'"content":\s*"T(\d{20})"')
GIVE_UP_S = 120.0  # for what has begun, when the time is over


@dataclass(slots=True)
class Job:
    """The orders of a load process."""

    mode: str
    port: int
    key: str
    size: int = 1024
    connections: int = 64
    seconds: float = 3.0
    requests: int = 0  # closed: stop after so many instead
    rate: float = 200.0  # open: a second
    timed: bool = False  # closed: measure latencies too
    uncounted: int = 0  # open: the first so many say nothing of latency, as connections are made
    chunks: int = 100  # streams: of each


@dataclass(slots=True)
class Tally:
    """The counts of a load process."""

    requests: int = 0
    errors: int = 0
    chunks: int = 0
    latencies_s: list[float] = field(default_factory=list)
    delays_s: list[float] = field(default_factory=list)  # of chunks
    problem: str = ""


class Client(asyncio.Protocol):
    """One connection: sends a request, reads one answer, tells `done`."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._busy = False
        self.begun_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def send(self, begun_s: float = 0.0) -> None:
        """Send the request; `begun_s` is when it was due."""
        self._parser: Any = httptools.HttpResponseParser(self)
        self._busy, self._is_complete = True, False
        self._chunks, self._tail = 0, b""
        self.begun_s = begun_s or time.monotonic()
        self.transport.write(self._run.request)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(str(error))
            return
        if self._is_complete and self._busy:
            self._busy = False
            self._finish()

    def on_body(self, piece: bytes) -> None:
        if self._run.job.mode == "streams":
            self._chunks += piece.count(b"data: ")
            self._tail = (self._tail + piece)[-32:]
            stamped = STAMPED.search(piece)
            if stamped is not None:
                self._run.tally.delays_s.append((time.monotonic_ns() - int(stamped[1])) / 1e9)

    def on_headers_complete(self) -> None:
        self._may_stay = self._parser.should_keep_alive()  # the parser knows it now, and no more at the end

    def on_message_complete(self) -> None:
        self._is_complete = True

    def _finish(self) -> None:
        status = self._parser.get_status_code()
        tally, job = self._run.tally, self._run.job
        tally.requests += 1
        tally.chunks += self._chunks
        if status != 200:
            tally.errors += 1
            tally.problem = f"status {status}"
        elif job.mode == "streams" and not self._is_whole():
            tally.errors += 1
            tally.problem = f"{self._chunks} events, ending in {self._tail!r}"
        if (job.mode == "open" and self.begun_s >= self._run.counted_from_s) or job.timed:
            tally.latencies_s.append(time.monotonic() - self.begun_s)
        if self._may_stay:
            self._run.done(self)
        else:
            self.transport.close()
            self._run.gone()

    def _is_whole(self) -> bool:
        wanted = self._run.job.chunks
        return wanted <= self._chunks <= wanted + EVENTS_AT_END + 1 and b"[DONE]" in self._tail

    def _fail(self, problem: str) -> None:
        self._run.tally.errors += 1
        self._run.tally.requests += 1
        self._run.tally.problem = problem
        self._busy = False
        self.transport.abort()
        self._run.gone()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._busy:
            self._fail(f"connection lost: {exc}")
        else:
            self._run.lost(self)


class Run:
    """One job being done."""

    def __init__(self, job: Job) -> None:
        self.job, self.tally = job, Tally()
        body = chat_request(job.size, stream=job.mode == "streams")
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{job.port}\r\n"
            f"Authorization: Bearer {job.key}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self.request = head.encode() + body
        self.counted_from_s = 0.0
        self._idle: deque[Client] = deque()
        self._open: set[Client] = set()
        self._pending = 0  # requests without an answer
        self._is_over = False
        self._news = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def go(self) -> dict[str, Any]:
        """Do it; returns what came of it."""
        begun_s = time.monotonic()
        await {"closed": self._closed, "open": self._at_a_rate, "streams": self._streams}[self.job.mode]()
        took_s = time.monotonic() - begun_s
        summary = _summary(self.tally, took_s, self._pending)
        for client in list(self._open):
            client.transport.abort()
        return summary

    async def _connect(self) -> Client:
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(lambda: Client(self), "127.0.0.1", self.job.port)
        self._open.add(client)
        return client

    def _send(self, client: Client, begun_s: float = 0.0) -> None:
        self._pending += 1
        client.send(begun_s)

    def done(self, client: Client) -> None:
        """The connection has its answer and is free."""
        self._pending -= 1
        if self._wants_more():
            self._send(client)
        else:
            self._idle.append(client)
        if not self._pending:
            self._news.set()

    def gone(self) -> None:
        """A connection has closed after its answer, or instead of it."""
        self._pending -= 1
        if self._wants_more():
            self._begin()
        if not self._pending:
            self._news.set()

    def _wants_more(self) -> bool:
        """Whether a connection sends another request when it has its answer."""
        enough = self.job.requests and self.tally.requests + self._pending >= self.job.requests
        return self.job.mode == "closed" and not self._is_over and not enough

    def lost(self, client: Client) -> None:
        """An idle connection was closed."""
        self._open.discard(client)
        if client in self._idle:
            self._idle.remove(client)

    def _begin(self, begun_s: float = 0.0) -> None:
        """Send a request on a new connection."""
        self._pending += 1
        task = asyncio.get_running_loop().create_task(self._again(begun_s))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _again(self, begun_s: float) -> None:
        try:
            client = await self._connect()
        except OSError as error:
            self.tally.requests += 1
            self.tally.errors += 1
            self.tally.problem = str(error)
            self.gone()
            return
        client.send(begun_s)

    async def _closed(self) -> None:
        clients = [await self._connect() for _ in range(self.job.connections)]
        for client in clients:
            self._send(client)
        await self._wait(GIVE_UP_S * 100 if self.job.requests else self.job.seconds)
        self._is_over = True
        await self._drain()

    async def _at_a_rate(self) -> None:
        begun_s = time.monotonic()
        self.counted_from_s = begun_s + self.job.uncounted / self.job.rate
        for number in range(round(self.job.seconds * self.job.rate)):
            due_s = begun_s + number / self.job.rate
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            if self._idle:
                self._send(self._idle.popleft(), due_s)
            else:
                self._begin(due_s)
        await self._drain()

    async def _streams(self) -> None:
        for _ in range(self.job.connections):
            self._begin()
            await asyncio.sleep(1.0 / self.job.connections)  # spread over a second, as they come in life
        await self._drain()

    async def _drain(self) -> None:
        """Wait for what has begun."""
        if self._pending:
            self._news.clear()
            await self._wait(GIVE_UP_S)

    async def _wait(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._news.wait(), seconds)
        except TimeoutError:
            return


def _summary(tally: Tally, took_s: float, pending: int) -> dict[str, Any]:
    return {
        "requests": tally.requests,
        "errors": tally.errors,
        "pending": pending,
        "chunks": tally.chunks,
        "took_s": took_s,
        "latency_p50_s": _quantile(tally.latencies_s, 50),
        "latency_p99_s": _quantile(tally.latencies_s, 99),
        "delay_p50_s": _quantile(tally.delays_s, 50),
        "delay_p99_s": _quantile(tally.delays_s, 99),
        "problem": tally.problem,
    }


def _quantile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100)[percent - 1] if len(values) > 1 else 0.0


def main() -> None:
    """Take jobs until there are no more."""
    for line in sys.stdin:
        result = uvloop.run(Run(Job(**json.loads(line))).go())
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
