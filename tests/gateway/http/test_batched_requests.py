"""Requests for embeddings that go to a node together: each gets its own answer, whatever fails."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from support.gateway.parts_backend import PartsBackend, answer_to
from support.gateway.plane import Plane, closed, gateway
from support.waiting import until
from trimtab.gateway.api.endpoints import Endpoints
from trimtab.gateway.api.grouped_bodies import divided, texts_of
from trimtab.gateway.http.grouped_requests import GroupedRequests
from trimtab.gateway.model import Outcome, Tenant
from trimtab.gateway.tenancy.admission import Admission

EMBEDDINGS = "/v1/embeddings"
TENANTS = {hashlib.sha256(name).digest(): Tenant(name.decode(), i) for i, name in enumerate((b"k", b"other"))}


def embed(given: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m", "input": given, **more}


def request(said: dict[str, Any], key: str = "k", more: str = "") -> bytes:
    body = json.dumps(said).encode()
    head = (
        f"POST {EMBEDDINGS} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\nconnection: close\r\n{more}"
    )
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def ask(plane: Plane, said: dict[str, Any], *how: str) -> tuple[bytes, Any]:
    """Head and JSON of the answer."""
    head, _, body = (await plane.raw(request(said, *how))).partition(b"\r\n\r\n")
    return head, json.loads(body)


@asynccontextmanager
async def on_plane(*backends: PartsBackend, most: int = 3, window_s: float = 0.2) -> AsyncIterator[Plane]:
    async with gateway(*backends, look=Admission(Endpoints(), TENANTS.get)) as plane:
        plane.context.grouping = GroupedRequests(
            frozenset(), lambda _, n: [n], frozenset({"m"}), lambda _: (most, window_s)
        )
        yield plane


async def test_requests_that_fill_a_batch_go_at_once_and_each_gets_its_own_answer() -> None:
    backend = PartsBackend()
    said = [embed("a"), embed(["bb", "ccc"]), embed("dddd")]
    async with on_plane(backend, window_s=60.0) as plane:
        found = await asyncio.gather(*(ask(plane, one) for one in said))
        assert [answer for _, answer in found] == [answer_to(EMBEDDINGS, one) for one in said]
        assert all(b"x-trimtab-batch: 3" in head for head, _ in found)
        assert len(backend.asked) == 1
        assert sorted(backend.asked[0]["input"]) == ["a", "bb", "ccc", "dddd"]
        assert sorted(end.usage.prompt_tokens for end in plane.notes.ends if end.usage) == [1, 4, 5]
        assert {(end.outcome, end.is_inner) for end in plane.notes.ends} == {(Outcome.DONE, False)}


async def test_a_batch_goes_when_its_window_ends_and_one_alone_goes_as_it_came() -> None:
    backend = PartsBackend()
    async with on_plane(backend, window_s=0.1) as plane:
        alone = embed("a", user="u")
        head, answer = await ask(plane, alone)
        assert answer == answer_to(EMBEDDINGS, alone)
        assert b"x-trimtab-batch" not in head
        both = [await plane.connect() for _ in range(2)]
        await until(lambda: len(plane.context.connections) == 2)
        for (_, writer), text in zip(both, ("bb", "ccc"), strict=True):  # read in one turn of the loop
            writer.write(request(embed(text)))
        for reader, writer in both:
            assert b"x-trimtab-batch: 2" in await reader.read()
            await closed(writer)
        assert len(backend.asked) == 2
        assert backend.asked[0] == alone


@pytest.mark.parametrize(
    ("said", "key"),
    [
        (embed("bb"), "other"),  # of another tenant
        (embed("bb", dimensions=2), "k"),
        (embed([1, 2]), "k"),  # tokens
        ({"model": "n", "input": "bb"}, "k"),
    ],
)
async def test_unlike_requests_are_never_in_one_batch(said: dict[str, Any], key: str) -> None:
    backend = PartsBackend()
    async with on_plane(backend) as plane:
        (_, first), (_, second) = await asyncio.gather(ask(plane, embed("a")), ask(plane, said, key))
        assert first == answer_to(EMBEDDINGS, embed("a"))
        assert second == answer_to(EMBEDDINGS, said)
        assert len(backend.asked) == 2


async def test_a_text_that_a_node_refuses_fails_its_own_request_only() -> None:
    backend = PartsBackend(refuses="bad")
    async with on_plane(backend, window_s=60.0) as plane:
        texts = ("a", "bad", "ccc")
        found = await asyncio.gather(*(ask(plane, embed(text)) for text in texts))
        assert [b" 200 " in head for head, _ in found] == [True, False, True]
        assert b" 400 " in found[1][0]
        assert found[2][1] == answer_to(EMBEDDINGS, embed("ccc"))
        assert len(backend.asked) == 4


async def test_batches_that_a_node_refuses_for_their_number_become_smaller_until_none_is_sent() -> None:
    backend = PartsBackend(refuses='["')  # any list of texts
    async with on_plane(backend, most=4, window_s=60.0) as plane:
        for sizes in ([4, 1, 1, 1, 1], [2, 1, 1, 1, 1], [1, 1, 1, 1]):
            backend.asked.clear()
            said = [embed(f"text {k}") for k in range(4)]
            found = await asyncio.gather(*(ask(plane, one) for one in said))
            assert [answer for _, answer in found] == [answer_to(EMBEDDINGS, one) for one in said]
            asked = [len(one["input"]) if isinstance(one["input"], list) else 1 for one in backend.asked]
            if sizes[0] == 2 and asked.count(2) == 2:
                sizes = [2, *sizes]  # the second pair was on its way before the first was judged
            assert sorted(asked, reverse=True) == sizes


async def test_requests_of_a_lost_batch_go_on_alone() -> None:
    backends = [PartsBackend(fails=1), PartsBackend(fails=1)]
    async with on_plane(*backends) as plane:
        found = await asyncio.gather(*(ask(plane, embed(text)) for text in ("a", "bb", "ccc")))
        assert [answer for _, answer in found] == [
            answer_to(EMBEDDINGS, embed(text)) for text in ("a", "bb", "ccc")
        ]


async def test_a_client_that_leaves_does_not_disturb_the_others() -> None:
    backend = PartsBackend(waits=True)
    async with on_plane(backend) as plane:
        others = [asyncio.create_task(ask(plane, embed(text))) for text in ("a", "bb")]
        _, writer = await plane.connect()
        writer.write(request(embed("gone")))
        await until(lambda: backend.asked)
        writer.close()
        await until(lambda: plane.notes.ends)
        backend.go.set()
        found = [await other for other in others]
        assert [answer for _, answer in found] == [
            answer_to(EMBEDDINGS, embed("a")),
            answer_to(EMBEDDINGS, embed("bb")),
        ]
        assert sorted(end.outcome.value for end in plane.notes.ends if end.outcome) == [
            "cancelled",
            "done",
            "done",
        ]


async def test_a_batch_ends_when_all_its_clients_have_left() -> None:
    backend = PartsBackend(waits=True)
    async with on_plane(backend) as plane:
        writers = [(await plane.connect())[1] for _ in range(3)]
        for k, writer in enumerate(writers):
            writer.write(request(embed(f"t{k}")))
        await until(lambda: backend.asked)
        for writer in writers:
            writer.close()
        await until(lambda: backend.dropped == 1)
        await until(lambda: len(plane.notes.ends) == 3)


async def test_without_a_window_what_waits_for_a_node_goes_as_one() -> None:
    """The second waits beside the first, the third leaves again, the fourth and fifth fill the batch."""
    backend = PartsBackend()
    async with on_plane(backend, most=4, window_s=0.0) as plane:
        held, tasks = plane.dispatcher.held, []

        async def come(text: str, tokens: float, count: int = 1, *how: str) -> None:
            tasks.append(asyncio.create_task(ask(plane, embed(text), *how)))
            await until(lambda: len(held) == count and held[-1].facts.prompt_tokens == tokens)

        plane.dispatcher.hold = True
        await come("a" * 40, 10.0)
        first = held[0]
        assert not first.is_inner
        await come("b" * 80, 30.0)
        assert held[0].is_inner
        assert held[0].arrived_s == first.arrived_s
        _, writer = await plane.connect()
        writer.write(request(embed("gone"), "k", "x-trimtab-deadline-ms: 60000\r\n"))
        await until(lambda: held[0].facts.prompt_tokens > 30.0)
        writer.close()
        await until(lambda: held[0].facts.prompt_tokens == 30.0)
        await come("c" * 20, 35.0, 1, "k", "x-trimtab-deadline-ms: 60000\r\n")
        await come("d" * 20, 40.0)
        await come("e" * 20, 5.0, 2)  # four are all that a batch takes
        plane.dispatcher.let_go()
        heads = [(await task)[0] for task in tasks]
        assert [b"x-trimtab-batch: 4" in head for head in heads] == [True] * 4 + [False]
        assert [one["input"] for one in backend.asked] == [
            ["a" * 40, "b" * 80, "c" * 20, "d" * 20],
            "e" * 20,
        ]


async def test_a_batch_takes_nothing_more_once_a_node_has_it() -> None:
    backend = PartsBackend(waits=True)
    async with on_plane(backend, window_s=0.0) as plane:
        first = asyncio.create_task(ask(plane, embed("a")))
        await until(lambda: backend.asked)
        second = asyncio.create_task(ask(plane, embed("b")))
        await until(lambda: len(backend.asked) == 2)
        backend.go.set()
        assert [b"x-trimtab-batch" in (await one)[0] for one in (first, second)] == [False] * 2


async def test_what_waits_alone_and_is_given_up_leaves_nothing_behind() -> None:
    async with on_plane(PartsBackend(), window_s=0.0) as plane:
        plane.dispatcher.hold = True
        _, writer = await plane.connect()
        writer.write(request(embed("a")))
        await until(lambda: plane.dispatcher.held)
        writer.close()
        await until(lambda: plane.notes.ends)
        assert plane.dispatcher.log[-1][0] == "abort"
        plane.dispatcher.hold = False
        assert b" 200 " in (await ask(plane, embed("b")))[0]


async def test_a_deadline_ends_its_own_request_only() -> None:
    backend = PartsBackend(waits=True)
    async with on_plane(backend, window_s=0.05) as plane:
        late = asyncio.create_task(ask(plane, embed("a"), "k", "x-trimtab-deadline-ms: 250\r\n"))
        other = asyncio.create_task(ask(plane, embed("bb")))
        assert b" 504 " in (await late)[0]
        backend.go.set()
        assert (await other)[1] == answer_to(EMBEDDINGS, embed("bb"))


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2]], [[1], [2]]),
        ([], []),
        (["a", [1]], []),
        (None, []),
        ([1.5], []),
    ],
)
def test_texts_come_in_four_forms(given: Any, texts: list[Any]) -> None:
    assert texts_of({"input": given}) == texts


@pytest.mark.parametrize("total", [0, 1, 7, 100])
def test_shares_of_the_usage_sum_to_the_whole(total: int) -> None:
    texts = [["a"], ["bb", "c"], ["d" * 7]]
    data = [{"index": k, "embedding": [k]} for k in (3, 1, 0, 2)]  # in any order
    answer = {"data": data, "usage": {"prompt_tokens": total, "details": {"audio": total}}}
    parts = [json.loads(part) for part in divided(json.dumps(answer).encode(), texts)]
    assert sum(part["usage"]["prompt_tokens"] for part in parts) == total
    assert sum(part["usage"]["details"]["audio"] for part in parts) == total
    assert [[one["embedding"] for one in part["data"]] for part in parts] == [[[0]], [[1], [2]], [[3]]]
    assert [[one["index"] for one in part["data"]] for part in parts] == [[0], [0, 1], [0]]


@pytest.mark.parametrize(
    "data", [[], [{"index": 0}], [{"index": 0}, {"index": 0}], [{"index": []}] * 2, [1, 2], "x"]
)
def test_an_answer_that_lacks_an_embedding_is_no_answer(data: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any
        divided(json.dumps({"data": data}).encode(), [["a"], ["b"]])
