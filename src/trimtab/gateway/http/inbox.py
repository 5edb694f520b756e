"""What is read in one turn of the loop is worked through in one go, and so is what it has led to.

Between two reads the kernel uses the processor's caches for itself: the same code is quicker where it runs
for one connection after the other. So connections only put down what they have read. As the turn ends all of
it is taken in, what nodes sent before what clients did. Then all requests that are whole are sized up, then
handed on, then decided about together; all that came of it is written, and those are told who look on. Where
only one has read nothing is gained by putting off: what comes of it is written at once, lessons follow. And
what is read when nothing was for a while is taken in at once, as it will be the only one in its turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import Final, Protocol

from trimtab.gateway.http.outbox import Outbox

ALONE_S: Final = 1e-4  # after a turn: what is read after that long comes alone; one poll's reads are closer


class Receiver(Protocol):
    """A connection. Whatever else happens to it, what it has read comes first: it calls `Inbox.take`."""

    transport: asyncio.Transport

    def received(self, data: bytes) -> None:
        """Take in what was read."""


class Asker(Receiver, Protocol):
    """A client's connection."""

    def validate(self) -> bool:
        """Size up the request that is whole; returns whether it goes on to the dispatcher."""

    def go_on(self) -> None:
        """Hand it on."""


def _nothing() -> None:
    """Nobody wants to know."""


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
        self._answers: list[tuple[Receiver, bytes]] = []  # what nodes sent
        self._whole: list[Asker] = []  # with a request that came whole
        self._alone_s = -inf  # from then on the first to be read is alone; inf = something is being taken in
        self.read_s = 0.0  # when the first of this turn, or of the last one, was read
        self.is_answered = True  # nothing of what nodes sent is being taken in
        self.answered: Callable[[], None] = _nothing  # called once that is
        self.decide: Callable[[], None] = _nothing  # called once all is taken in
        self.then: Callable[[], None] = _nothing  # called once it is written, too

    def put(self, receiver: Receiver, data: bytes) -> None:
        """Take it in at the end of this turn, or now if it is alone."""
        items = self._items
        is_first = not items and not self._answers
        items.append((receiver, data))
        if is_first:
            self._begin()

    def put_answer(self, receiver: Receiver, data: bytes) -> None:
        """The same with what a node sent, which is taken in first: it gives back places."""
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

    def put_whole(self, asker: Asker) -> None:
        """While bytes are taken in: it goes on once all are."""
        self._whole.append(asker)

    def take(self) -> None:
        """Take in what was read, now, and write what comes of it."""
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
            while self._whole:  # what was refused is followed by more
                whole, self._whole = self._whole, []
                sized = [asker for asker in whole if self._validate(asker)]
                for asker in sized:
                    try:
                        asker.go_on()
                    except Exception as error:
                        self._report(asker, error)
            self._call(self.decide)
            outbox.is_awaited = outbox.is_direct = False
            outbox.flush()
            self._call(self.then)
            self._alone_s = self._time() + ALONE_S

    def _hand_out(self, items: list[tuple[Receiver, bytes]]) -> None:
        for receiver, data in items:
            try:
                receiver.received(data)
            except Exception as error:  # a fault with one connection is its own
                self._report(receiver, error)

    def _validate(self, asker: Asker) -> bool:
        try:
            return asker.validate()
        except Exception as error:
            self._report(asker, error)
            return False

    def _call(self, who: Callable[[], None]) -> None:
        try:
            who()
        except Exception as error:  # what others have to write goes out all the same
            context = {"message": "what follows from what was read failed", "exception": error}
            self._loop.call_exception_handler(context)

    def _report(self, receiver: Receiver, error: Exception) -> None:
        """As the loop does where a protocol raises."""
        context = {"message": "taking in what was read failed", "exception": error, "protocol": receiver}
        self._loop.call_exception_handler({**context, "transport": receiver.transport})
        receiver.transport.abort()
