"""A turn of the loop: what nodes sent is taken in first, all is decided together, then it is written.

What is read alone is taken in at once.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from trimtab.gateway.http.inbox import ALONE_S, Inbox, Outbox


class _Peer:
    """A connection and its transport in one: it answers what it gets. A client hands on what is sized up."""

    def __init__(self, log: list[str], name: str, inbox: Inbox, outbox: Outbox) -> None:
        self._log, self._name, self._outbox = log, name, outbox
        self._inbox, self.transport = inbox, cast(Any, self)

    def received(self, data: bytes) -> None:
        self._log.append(f"{self._name} got {data.decode()}")
        self._outbox.put(self.transport, data)
        if self._name == "client":
            self._inbox.put_whole(self)

    def validate(self) -> bool:
        self._log.append(f"{self._name} sizes up")
        if self._log.count("client sizes up") == 2:
            self._inbox.put_whole(self)  # this one is refused, and the next one waited behind it
            return False
        return True

    def go_on(self) -> None:
        self._log.append(f"{self._name} goes on")

    def write(self, data: bytes) -> None:
        self._log.append(f"{self._name} wrote {data.decode()}")

    def is_closing(self) -> bool:
        return False


@pytest.mark.parametrize("fails", [False, True])
async def test_answers_come_first_and_all_are_sized_up_before_one_goes_on(fails: bool) -> None:
    loop, log, problems = asyncio.get_running_loop(), cast(list[str], []), cast(list[str], [])
    now_s = 0.0
    cast(Any, loop).time = lambda: now_s
    loop.set_exception_handler(lambda loop, said: problems.append(str(said["exception"])))
    outbox = Outbox(loop)
    inbox = Inbox(loop, outbox)
    client, node = (_Peer(log, name, inbox, outbox) for name in ("client", "node"))

    def decide() -> None:
        log.append("decided")
        if fails:
            raise RuntimeError("undecided")

    inbox.answered = lambda: log.append(f"answered {inbox.is_answered}")
    inbox.decide, inbox.then = decide, lambda: log.append("told")
    for _ in range(2):  # what comes after a while comes alone
        log.clear()
        now_s += 2 * ALONE_S
        inbox.put_answer(node, b"0")
        assert log == ["node got 0", "node wrote 0", "answered True", "decided", "told"]
    for turn in range(2):
        log.clear()
        inbox.put(client, b"1")
        inbox.put_answer(node, b"2")
        inbox.put(client, b"3")
        assert log == []
        await asyncio.sleep(0)
        assert log == [
            "node got 2",
            "answered True",
            "client got 1",
            "client got 3",
            *["client sizes up"] * 2,
            "client goes on",
            "client sizes up",
            "client goes on",
            "decided",
            "node wrote 2",
            "client wrote 1",
            "client wrote 3",
            "told",
        ], turn
        await asyncio.sleep(0)
        assert len(log) == 14  # each once
    assert problems == (["undecided"] * 4 if fails else [])
