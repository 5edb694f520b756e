"""Batches the bytes that were read in one turn of the event loop, and what is written in it.

Code runs faster for one connection after the other than between two reads, because the kernel's reads evict
the processor's caches. So connections only store the bytes that they read. At the end of the turn the inbox
processes all of them, in this order:

1. bytes from nodes, because they free slots;
2. bytes from clients;
3. validation of all complete requests;
4. submission of the valid requests;
5. one dispatch decision for all of them;
6. writes;
7. observers.

A turn with a single read gains nothing from batching: its writes go out at once, and estimates are updated
afterwards. Bytes that arrive after a pause are processed at once, because no other read will share the turn.

Each send may wake the process at the other end. On a busy machine a wake-up costs more if other work lies
between two sends. Deferring all sends of a turn to its end therefore saves a large part of a request's time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import Final, Protocol


class Outbox:
    """Bytes for transports, in the order in which they were put.

    Code that writes to a transport directly, or closes it, must call `flush` first if the outbox may hold
    bytes for that transport. `now` and `close` do so. Bytes for a transport that closes meanwhile are
    dropped, as a direct write would be.
    """

    __slots__ = ("_call_soon", "_flush", "_items", "is_awaited", "is_direct")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._call_soon = loop.call_soon
        self._flush = self.flush  # bound once
        self._items: list[tuple[asyncio.WriteTransport, bytes]] = []
        self.is_awaited = False  # the inbox flushes it at the end of the turn
        self.is_direct = False  # `put` writes at once

    def put(self, transport: asyncio.WriteTransport, data: bytes) -> None:
        """Write bytes at the end of this turn."""
        items = self._items
        if not items:
            if self.is_direct:
                if not transport.is_closing():
                    transport.write(data)
                return
            if not self.is_awaited:
                self._call_soon(self._flush)
        items.append((transport, data))

    def flush(self) -> None:
        """Write all stored bytes now."""
        items = self._items
        if items:
            self._items = []
            for transport, data in items:
                if not transport.is_closing():
                    transport.write(data)

    def now(self, transport: asyncio.WriteTransport, data: bytes) -> None:
        """Write bytes at once, after all stored bytes."""
        if self._items:
            self.flush()
        transport.write(data)

    def close(self, transport: asyncio.WriteTransport) -> None:
        """Write all stored bytes, then close the transport."""
        if self._items:
            self.flush()
        transport.close()


ALONE_S: Final = 1e-4  # a read this long after a turn is alone: the reads of one poll are closer together


class Receiver(Protocol):
    """A connection. Before it handles another event it calls `Inbox.take`, so that read bytes come first."""

    transport: asyncio.Transport

    def received(self, data: bytes) -> None:
        """Process bytes that were read."""


class ClientReceiver(Receiver, Protocol):
    """A client's connection."""

    def validate(self) -> bool:
        """Validate the complete request. Returns whether it goes to the dispatcher."""

    def go_on(self) -> None:
        """Submit the request to the dispatcher."""


def _nothing() -> None:
    """Default callback."""


class Inbox:
    """Bytes from connections, in the order in which they were read."""

    __slots__ = (
        "_alone_s",
        "_answers",
        "_call_soon",
        "_items",
        "_loop",
        "_outbox",
        "_take",
        "_time",
        "_whole",
        "answered",
        "decide",
        "is_answered",
        "read_s",
        "then",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, outbox: Outbox) -> None:
        self._loop, self._outbox = loop, outbox
        self._call_soon, self._time = loop.call_soon, loop.time
        self._take = self.take  # bound once
        self._items: list[tuple[Receiver, bytes]] = []
        self._answers: list[tuple[Receiver, bytes]] = []  # bytes from nodes
        self._whole: list[ClientReceiver] = []  # connections with a complete request
        self._alone_s = -inf  # a read after this is alone; inf = `take` runs
        self.read_s = 0.0  # time of the first read of this turn, or of the last turn with reads
        self.is_answered = True  # False while bytes from nodes are processed
        self.answered: Callable[[], None] = _nothing  # called after all bytes from nodes
        self.decide: Callable[[], None] = _nothing  # called after all bytes and submissions
        self.then: Callable[[], None] = _nothing  # called after the writes

    def put(self, receiver: Receiver, data: bytes) -> None:
        """Process bytes from a client at the end of this turn, or now if they are alone."""
        items = self._items
        is_first = not items and not self._answers
        items.append((receiver, data))
        if is_first:
            self._begin()

    def put_answer(self, receiver: Receiver, data: bytes) -> None:
        """Process bytes from a node likewise. They come before clients' bytes, because they free slots."""
        answers = self._answers
        is_first = not answers and not self._items
        answers.append((receiver, data))
        if is_first:
            self._begin()

    def _begin(self) -> None:
        self.read_s = self._time()
        if self.read_s >= self._alone_s:
            self.take()
        else:
            self._call_soon(self._take)

    def put_whole(self, client: ClientReceiver) -> None:
        """Register a complete request while `take` runs. It goes on after all bytes are processed."""
        self._whole.append(client)

    def take(self) -> None:
        """Process all stored bytes now, and write the results."""
        answers, items = self._answers, self._items
        if answers or items:
            self._answers, self._items = [], []
            self._alone_s = inf
            outbox = self._outbox
            outbox.is_awaited = True
            outbox.is_direct = len(answers) + len(items) == 1
            if answers:
                self.is_answered = False
                self._hand_out(answers)
                self.is_answered = True
                self._call(self.answered)
            self._hand_out(items)
            while self._whole:  # after a refusal the connection may bring its next request
                whole, self._whole = self._whole, []
                sized = [client for client in whole if self._validate(client)]
                for client in sized:
                    try:
                        client.go_on()
                    except Exception as error:
                        self._report(client, error)
            self._call(self.decide)
            outbox.is_awaited = outbox.is_direct = False
            outbox.flush()
            self._call(self.then)
            self._alone_s = self._time() + ALONE_S

    def _hand_out(self, items: list[tuple[Receiver, bytes]]) -> None:
        for receiver, data in items:
            try:
                receiver.received(data)
            except Exception as error:  # an error in one connection must not affect others
                self._report(receiver, error)

    def _validate(self, client: ClientReceiver) -> bool:
        try:
            return client.validate()
        except Exception as error:
            self._report(client, error)
            return False

    def _call(self, who: Callable[[], None]) -> None:
        try:
            who()
        except Exception as error:  # the writes of other connections still go out
            context = {"message": "what follows from what was read failed", "exception": error}
            self._loop.call_exception_handler(context)

    def _report(self, receiver: Receiver, error: Exception) -> None:
        """Report an exception as the event loop does for a protocol that raises, and close the connection."""
        context = {"message": "taking in what was read failed", "exception": error, "protocol": receiver}
        self._loop.call_exception_handler({**context, "transport": receiver.transport})
        receiver.transport.abort()
