"""The result cache: which requests it answers, for whom, for how long, and what it never keeps."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from support.gateway.node_world import Backend
from support.gateway.plane import Plane, gateway, read_request
from support.gateway.served_gateway import serving_here
from trimtab.gateway.api.endpoints import Endpoints
from trimtab.gateway.config import parse_config
from trimtab.gateway.config.routes import Resolved
from trimtab.gateway.http.cached_answers import (
    CacheControl,
    ResultCache,
    ResultCacheOptions,
    cache_control,
    is_deterministic,
)
from trimtab.gateway.model import Kind, Outcome, Tenant
from trimtab.gateway.observe.exposition import exposition
from trimtab.gateway.tenancy.admission import Admission

TENANTS = {hashlib.sha256(name).digest(): Tenant(name.decode(), i) for i, name in enumerate((b"k", b"other"))}
CHAT, EMBEDDINGS = "/v1/chat/completions", "/v1/embeddings"
GREEDY = {"model": "kept", "messages": [], "temperature": 0}
CONFIG = """
insecure_no_auth: true
record: {{folder: '{folder}'}}
routes: {{kept: {{targets: [m], cache: true}}}}
nodes: [{{name: n, url: '{url}', models: [m]}}]
"""
JSON = "content-type: application/json\r\n"


def look() -> Admission:
    routes = {name: Resolved(name, ("m",), (1.0,), ((),), None, ()) for name in ("kept", "plain")}
    return Admission(Endpoints(), TENANTS.get, routes=routes)


class Counting:
    """A backend whose answers are numbered."""

    def __init__(self, head: str = JSON, status: str = "200 OK", pieces: int = 1, pad: int = 0) -> None:
        self.n, self._head, self._status, self._pieces, self._pad = 0, head, status, pieces, pad

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            self.n += 1
            body = json.dumps({"n": self.n, "usage": {"prompt_tokens": 5}, "pad": "x" * self._pad}).encode()
            begin = f"HTTP/1.1 {self._status}\r\n{self._head}".encode()
            if self._pieces == 1:
                writer.write(begin + b"content-length: %d\r\n\r\n" % len(body) + body)
            else:
                writer.write(begin + b"transfer-encoding: chunked\r\n\r\n")
                for k in range(0, len(body), 10):
                    writer.write(b"%x\r\n%b\r\n" % (len(body[k : k + 10]), body[k : k + 10]))
                    await writer.drain()
                    await asyncio.sleep(0.001)
                writer.write(b"0\r\n\r\n")


async def ask(
    plane: Plane, said: dict[str, Any] = GREEDY, path: str = CHAT, key: str = "k", more: str = ""
) -> tuple[bytes, bytes]:
    """Head and body of the answer."""
    body = json.dumps(said).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\nconnection: close\r\n{more}"
    found = await plane.raw(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    answered, _, rest = found.partition(b"\r\n\r\n")
    return answered, rest


@asynccontextmanager
async def with_cache(*how: Any, **options: Any) -> AsyncIterator[tuple[Plane, Counting]]:
    backend = Counting(*how)
    async with gateway(backend, look=look()) as plane:
        plane.context.results = ResultCache(ResultCacheOptions(frozenset({"kept"}), **options))
        yield plane, backend


@pytest.mark.parametrize("pieces", [1, 2])
async def test_an_equal_request_of_the_tenant_gets_the_same_answer_without_a_node(pieces: int) -> None:
    async with with_cache(JSON, "200 OK", pieces) as (plane, backend):
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        first = await ask(plane)
        second = await ask(plane)
        assert backend.n == 1
        assert b"x-trimtab-cache" not in first[0]
        age_s = re.search(rb"x-trimtab-cache: hit\r\nage: (\d+)\r\n", second[0] + b"\r\n")
        assert age_s is not None
        assert int(age_s[1]) <= loop.time() - begun_s
        assert json.loads(second[1])["n"] == 1
        assert b"content-type: application/json" in second[0]
        hit = plane.notes.ends[-1]
        assert (hit.attempts, hit.outcome, hit.usage) == ([], Outcome.DONE, None)
        assert (plane.context.results.hits, plane.context.results.misses) == (1, 1)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("said", "path", "key"),
    [
        (GREEDY, CHAT, "other"),  # of another tenant
        (GREEDY | {"messages": [1]}, CHAT, "k"),
        (GREEDY | {"model": "plain"}, CHAT, "k"),  # a route without a cache
        (GREEDY, CHAT + "?a=1", "k"),
        (GREEDY, EMBEDDINGS, "k"),
    ],
)
async def test_any_other_request_goes_to_a_node(said: dict[str, Any], path: str, key: str) -> None:
    async with with_cache() as (plane, backend):
        await ask(plane)
        await ask(plane, said, path, key)
        assert backend.n == 2


async def test_what_a_tenant_was_answered_never_reaches_another() -> None:
    async with with_cache() as (plane, backend):
        for key, n in (("k", 1), ("other", 2), ("k", 1), ("other", 2)):
            assert json.loads((await ask(plane, key=key))[1])["n"] == n
        assert backend.n == 2


@pytest.mark.parametrize(
    ("kind", "said", "expected"),
    [
        (Kind.CHAT, {"temperature": 0}, True),
        (Kind.CHAT, {"temperature": 0.0}, True),
        (Kind.CHAT, {"temperature": 0.1}, False),
        (Kind.CHAT, {"temperature": False}, False),
        (Kind.CHAT, {"seed": 7, "temperature": 1}, True),
        (Kind.CHAT, {"seed": None}, False),
        (Kind.CHAT, {}, False),
        (Kind.CHAT, {"temperature": 0, "stream": True}, False),
        (Kind.COMPLETION, {"seed": 0}, True),
        (Kind.MESSAGES, {"seed": 1}, False),
        (Kind.MESSAGES, {"temperature": 0}, True),
        (Kind.IMAGE, {"seed": 1}, True),
        (Kind.IMAGE, {"temperature": 0}, False),
        (Kind.EMBEDDING, {"input": "a"}, True),
        (Kind.RERANK, {}, True),
        (Kind.RESPONSE, {"temperature": 0}, False),
        (Kind.SPEECH, {"seed": 1}, False),
    ],
)
def test_requests_are_deterministic_by_what_they_say(
    kind: Kind, said: dict[str, Any], expected: bool
) -> None:
    assert is_deterministic(kind, json.dumps(said).encode()) is expected
    assert not is_deterministic(kind, b"[1]")
    assert not is_deterministic(kind, b"{")


@pytest.mark.parametrize(
    ("control", "goes"),
    [("no-store", [1, 2, 1]), ("no-cache", [1, 2, 2]), ("max-age=0", [1, 2, 2]), ("max-age=60", [1, 1, 1])],
)
async def test_a_request_says_what_it_takes_by_cache_control(control: str, goes: list[int]) -> None:
    async with with_cache() as (plane, _):
        found = [await ask(plane, more=more) for more in ("", f"cache-control: {control}\r\n", "")]
        assert [json.loads(body)["n"] for _, body in found] == goes


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (JSON + "cache-control: no-store\r\n", "200 OK"),
        (JSON + "Cache-Control: max-age=0\r\n", "200 OK"),
        (JSON + "cache-control: public, private\r\n", "200 OK"),
        (JSON + "cache-control: no-cache\r\n", "200 OK"),
        (JSON + "set-cookie: a=b\r\n", "200 OK"),
        (JSON + "vary: *\r\n", "200 OK"),
        (JSON + "content-encoding: gzip\r\n", "200 OK"),
        ("content-type: text/plain\r\n", "200 OK"),
        (JSON, "206 Partial Content"),
        (JSON, "400 Bad Request"),
        (JSON, "500 Oh"),
    ],
)
async def test_some_answers_are_never_kept(head: str, status: str) -> None:
    async with with_cache(head, status) as (plane, backend):
        await ask(plane)
        before = backend.n
        await ask(plane)
        assert backend.n > before
        assert len(plane.context.results or ()) == 0


async def test_an_answer_ends_with_its_age() -> None:
    async with with_cache(max_age_s=0.05) as (plane, backend):
        await ask(plane)
        await asyncio.sleep(0.06)
        await ask(plane)
        assert backend.n == 2


@pytest.mark.parametrize(
    ("pad", "bound"), [(0, {"max_entries": 2}), (1000, {"max_bytes": 3500})], ids=["entries", "bytes"]
)
async def test_the_cache_is_bounded_and_the_least_recently_used_goes(pad: int, bound: dict[str, int]) -> None:
    async with with_cache(JSON, "200 OK", 1, pad, **bound) as (plane, _):

        async def n(k: int) -> int:
            number: int = json.loads((await ask(plane, GREEDY | {"messages": [k]}))[1])["n"]
            return number

        assert [await n(k) for k in (1, 2, 1, 3, 1, 2)] == [1, 2, 1, 3, 1, 4]
        assert len(plane.context.results or ()) == 2


async def test_an_answer_larger_than_the_cache_is_not_kept() -> None:
    async with with_cache(JSON, "200 OK", 1, 5000, max_bytes=4000) as (plane, backend):
        await ask(plane)
        await ask(plane)
        assert backend.n == 2
        assert plane.context.results is not None
        assert plane.context.results.n_bytes == 0


async def test_a_served_gateway_counts_hits_and_records_them(tmp_path: Path) -> None:
    async with Backend() as backend:
        backend.answers[EMBEDDINGS] = (200, '{"data": [], "usage": {"prompt_tokens": 3}}')
        backend.headers["Content-Type"] = "application/json"
        text = CONFIG.format(url=backend.url, folder=tmp_path)
        async with serving_here(text) as (gateway, url), aiohttp.ClientSession() as session:
            for expected in (None, "hit"):
                async with session.post(url + EMBEDDINGS, json={"model": "kept", "input": "a"}) as answer:
                    assert (answer.status, answer.headers.get("x-trimtab-cache")) == (200, expected)
            page = exposition(gateway.metrics.store()).decode()
            assert 'trimtab_result_cache_requests_total{result="hit"} 1' in page
            assert (
                'trimtab_requests_total{code_class="2xx",kind="embedding",model="m",outcome="done"} 2' in page
            )
            await gateway.reload(parse_config(text, "g.yaml"))
            assert len(gateway.results) == 0
        assert [seen[0] for seen in backend.seen].count(EMBEDDINGS) == 1
        lines = [line for file in tmp_path.glob("*.jsonl") for line in file.read_text().splitlines()]
        assert sum('"kind":"embedding"' in line for line in lines) == 2


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"", CacheControl()),
        (b"No-Store , max-age=5", CacheControl(no_store=True, max_age_s=5.0)),
        (b"max-age=60, s-maxage=7", CacheControl(max_age_s=7.0)),
        (b'max-age="3"', CacheControl(max_age_s=3.0)),
        (b"max-age=soon", CacheControl(max_age_s=0.0)),
    ],
)
def test_cache_control_is_read(value: bytes, expected: CacheControl) -> None:
    assert cache_control(value) == expected
