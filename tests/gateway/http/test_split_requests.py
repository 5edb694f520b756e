"""Requests that nodes serve in parts: the answer is the one of an unsplit request."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from support.gateway.parts_backend import PartsBackend, answer_to
from support.gateway.plane import Plane, gateway
from support.waiting import until
from trimtab.gateway.api.grouped_bodies import items_of, join, split
from trimtab.gateway.http.grouped_requests import GroupedRequests
from trimtab.gateway.model import Exchange, Kind, Outcome, Usage

EMBEDDINGS, COMPLETIONS, IMAGES = "/v1/embeddings", "/v1/completions", "/v1/images/generations"
TEXTS = ["a", "bb", "ccc", "dddd", "eeeee"]
EMBED = {"model": "m", "input": TEXTS}


def asked(said: dict[str, Any], path: str = EMBEDDINGS, more: str = "connection: close\r\n") -> bytes:
    body = json.dumps(said).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer k\r\nx-request-id: abc\r\n{more}"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def ask(plane: Plane, *how: Any, **more: Any) -> tuple[bytes, Any]:
    """Head and JSON of the answer."""
    head, _, body = (await plane.raw(asked(*how, **more))).partition(b"\r\n\r\n")
    return head, json.loads(body)


def halves(_: Exchange, items: int) -> list[int]:
    return [items // 2, items - items // 2]


@asynccontextmanager
async def on_plane(*backends: PartsBackend, sizes: Any = halves) -> AsyncIterator[Plane]:
    async with gateway(*backends) as plane:
        plane.context.grouping = GroupedRequests(frozenset({"m"}), sizes)
        yield plane


@pytest.mark.parametrize(
    "how", [{}, {"chunked": True}, {"compresses": True}, {"chunked": True, "compresses": True}]
)
@pytest.mark.parametrize(
    ("path", "said"),
    [
        (EMBEDDINGS, EMBED),
        (EMBEDDINGS, {"model": "m", "input": [[1, 2], [3]]}),
        (COMPLETIONS, {"model": "m", "prompt": TEXTS, "n": 2}),
        (IMAGES, {"model": "m", "prompt": "a cat", "n": 5}),
    ],
)
async def test_the_parts_answers_are_joined_to_the_answer_of_the_whole(
    path: str, said: dict[str, Any], how: dict[str, bool]
) -> None:
    backends = [PartsBackend(**how), PartsBackend(**how)]
    async with on_plane(*backends) as plane:
        head, answer = await ask(plane, said, path)
        assert answer == answer_to(path, said)
        assert b" 200 " in head
        assert b"x-trimtab-parts: 2" in head
        assert b"x-request-id: abc\r\n" in head + b"\r\n"
        assert [len(backend.asked) for backend in backends] == [1, 1]
        (outer,) = plane.notes.ends
        assert (outer.id, outer.outcome, outer.is_inner) == ("abc", Outcome.DONE, False)
        if path == EMBEDDINGS and said is EMBED:
            assert outer.usage == Usage(prompt_tokens=15)


async def test_part_sizes_are_the_plan_s() -> None:
    backends = [PartsBackend(), PartsBackend(), PartsBackend()]
    async with on_plane(*backends, sizes=lambda _, items: [3, 1, 1]) as plane:
        _, answer = await ask(plane, EMBED)
        assert answer == answer_to(EMBEDDINGS, EMBED)
        assert [backend.asked[0]["input"] for backend in backends] == [TEXTS[:3], TEXTS[3:4], TEXTS[4:]]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (EMBEDDINGS, {"model": "m", "input": "one text"}),
        (EMBEDDINGS, {"model": "m", "input": [1, 2, 3]}),  # one text, in tokens
        (EMBEDDINGS, {"model": "m", "input": ["one"]}),
        (EMBEDDINGS, {"model": "other", "input": TEXTS}),
        (IMAGES, {"model": "m", "prompt": "a", "n": 1}),
        (IMAGES, {"model": "m", "prompt": "a", "n": 4, "seed": 1}),  # all parts would draw the same
    ],
)
async def test_other_requests_go_to_one_node_as_they_are(path: str, said: dict[str, Any]) -> None:
    backends = [PartsBackend(), PartsBackend()]
    async with on_plane(*backends) as plane:
        head, answer = await ask(plane, said, path)
        assert answer == answer_to(path, said)
        assert b"x-trimtab-parts" not in head
        assert backends[0].asked + backends[1].asked == [said]


def test_a_stream_is_never_split() -> None:
    assert items_of(Kind.COMPLETION, {"prompt": TEXTS, "stream": True}) == 1
    assert items_of(Kind.COMPLETION, {"prompt": TEXTS}) == 5
    assert items_of(Kind.CHAT, {"n": 5, "messages": []}) == 1


async def test_a_lost_part_is_served_by_another_node() -> None:
    backends = [PartsBackend(fails=1), PartsBackend()]
    async with on_plane(*backends) as plane:
        _, answer = await ask(plane, EMBED)
        assert answer == answer_to(EMBEDDINGS, EMBED)
        assert [len(backend.asked) for backend in backends] == [1, 2]


async def test_a_part_that_a_node_refuses_is_the_answer_and_ends_the_others() -> None:
    backends = [PartsBackend(refuses="bb"), PartsBackend(waits=True)]
    async with on_plane(*backends) as plane:
        head, answer = await ask(plane, EMBED)
        assert b" 400 " in head
        assert answer["error"]["message"] == "bad text"
        await until(lambda: backends[1].dropped == 1)


async def test_a_part_that_no_node_can_serve_fails_the_request() -> None:
    backends = [PartsBackend(fails=9), PartsBackend(fails=9)]
    async with on_plane(*backends) as plane:
        head, _ = await ask(plane, EMBED)
        assert b" 502 " in head
        assert len(plane.notes.ends) == 1


async def test_all_parts_end_when_the_client_leaves() -> None:
    backends = [PartsBackend(waits=True), PartsBackend(waits=True)]
    async with on_plane(*backends) as plane:
        _, writer = await plane.connect()
        writer.write(asked(EMBED))
        await until(lambda: all(backend.asked for backend in backends))
        writer.close()
        await until(lambda: [backend.dropped for backend in backends] == [1, 1])
        await until(lambda: [end.outcome for end in plane.notes.ends] == [Outcome.CANCELLED])


async def test_several_split_requests_on_one_connection_are_answered_in_order() -> None:
    backends = [PartsBackend(), PartsBackend()]
    async with on_plane(*backends) as plane:
        others = {"model": "m", "input": ["x", "yy"]}
        found = await plane.raw(asked(EMBED, more="") + asked(others))
        first, second = found.split(b"HTTP/1.1 200 OK\r\n")[1:]
        for answer, said in ((first, EMBED), (second, others)):
            assert json.loads(answer.partition(b"\r\n\r\n")[2]) == answer_to(EMBEDDINGS, said)


def test_answers_of_another_form_are_no_answer() -> None:
    for answer in (b"{}", b"[]", b"no json", b'{"data": 1}'):
        with pytest.raises(ValueError):  # noqa: PT011 - any
            join(Kind.EMBEDDING, [answer, answer])


@pytest.mark.parametrize("count", range(1, 6))
def test_parts_hold_every_item_once_in_order(count: int) -> None:
    sizes = [5 // count + (k < 5 % count) for k in range(count)]
    parts = [json.loads(part) for part in split(Kind.EMBEDDING, EMBED | {"dimensions": 2}, sizes)]
    assert [text for part in parts for text in part["input"]] == TEXTS
    assert all(part["dimensions"] == 2 and part["model"] == "m" for part in parts)
