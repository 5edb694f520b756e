"""The plain way of a request and its response through the data plane."""

from __future__ import annotations

from collections.abc import Sequence

from support.gateway.plane import CHAT, answers, gateway, ok, post
from trimtab.gateway.model import Exchange, Observer


async def test_a_request_goes_to_the_node_and_its_answer_back() -> None:
    seen: list[tuple[bytes, bytes]] = []
    async with gateway(answers(ok(b'{"a":1}'), seen)) as g:
        answer = await g.raw(post(more=b"x-request-id: abc\r\nx-trimtab-priority: 3\r\ncookie: a=b\r\n"))
    head, body = answer.split(b"\r\n\r\n", 1)
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert body == b'{"a":1}'
    assert b"x-request-id: abc" in head
    assert b"x-trimtab-node: n0" in head
    sent_head, sent_body = seen[0]
    assert sent_body == CHAT
    low = sent_head.lower()
    for gone in (b"authorization", b"x-trimtab", b"cookie", b"connection"):
        assert gone not in low
    assert b"x-forwarded-for: 127.0.0.1" in low
    assert b"x-request-id: abc" in low
    assert g.dispatcher.log == [("submit", "/v1/chat/completions"), ("done", 200)]


async def test_observers_are_called_for_what_they_have_methods_of_their_own() -> None:
    class Ends(Observer):
        def __init__(self) -> None:
            self.n = 0

        def ended(self, exchanges: Sequence[Exchange]) -> None:
            self.n += len(exchanges)

    ends = Ends()
    async with gateway(answers(ok(b"{}"))) as g:
        g.context.observe((g.notes, ends))
        assert len(g.context.on_ended) == 2
        assert len(g.context.on_arrived) == len(g.context.on_started) == len(g.context.on_lost) == 1
        await g.raw(post())
        assert (ends.n, g.notes.n_arrived, len(g.notes.ends)) == (1, 1, 1)
