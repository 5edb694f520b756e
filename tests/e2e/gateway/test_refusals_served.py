"""What a running gateway refuses, in the client's protocol; and starts that fail with a message."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.backends.children import launched
from support.backends.options import Options
from support.gateway_load import BEARER, HELLO, Reply, ask, bad, client
from support.served import KEY, START_S, Served, config_of, key_entry, node_of, served, spawn
from support.waiting import wait_until

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
SLOW_KEY, LIMITED_KEY = "tt-slow-key-00000000000000", "tt-limited-key-00000000000"


def _key(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One slow place, a queue of two, a node that never was."""
    with launched(Options(kind="chat", name="chat", models="demo-chat", base_s=1.0)) as backends:
        nowhere = {"name": "nowhere", "url": "http://127.0.0.1:9", "models": ["absent"], "capacity": 1}
        limits = {"concurrency": 1, "requests_per_minute": 3}
        keys = [
            key_entry("tests", KEY),
            key_entry("limited", LIMITED_KEY, limits=limits),
        ]
        config = config_of(
            *backends,
            nodes=[node_of(backends[0], capacity=1), nowhere],
            keys=keys,
            queue={"max_requests": 2, "max_wait_no_ready_node_s": 0.3},
            limits={"body_bytes": 10_000},
        )
        with served(tmp_path_factory.mktemp("gateway"), config) as running:
            yield running


@contextlib.contextmanager
def _long(gateway: Served, count: int, key: str = KEY) -> Iterator[None]:
    """So many requests that are under way until the block ends, however long that is."""
    body = json.dumps({**HELLO, "max_tokens": 10_000, "stream": True, "ignore_eos": True}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with contextlib.ExitStack() as clients:
        for _ in range(count):
            connection = socket.create_connection(("127.0.0.1", gateway.port))
            clients.enter_context(connection).sendall(head.encode() + body)
        wait_until(lambda: gateway.metric("trimtab_queue_length"), lambda n: n == count - 1)
        wait_until(lambda: gateway.metric("trimtab_in_flight"), lambda n: n == 1)
        yield
    wait_until(lambda: gateway.metric("trimtab_in_flight"), lambda n: n == 0)


def _asked(gateway: Served, *requests: dict[str, Any]) -> list[Reply]:
    async def main() -> list[Reply]:
        async with client() as session:
            return list(await asyncio.gather(*(ask(session, gateway.url, **each) for each in requests)))

    return asyncio.run(main())


CASES: list[tuple[dict[str, Any], int]] = [
    ({"body": b'{"model": '}, 400),
    ({"body": b"[]"}, 400),
    ({"body": b""}, 400),
    ({"body": b"\xff\xfe{"}, 400),
    ({"body": b"[" * 9_000}, 400),
    ({"body": {"messages": []}}, 400),
    ({"body": {**HELLO, "model": 7}}, 400),
    ({"body": {**HELLO, "model": "unknown"}}, 404),
    ({"body": {**HELLO, "model": "absent"}}, 503),
    ({"body": {**HELLO, "x": "a" * 20_000}}, 413),
    ({"headers": {}}, 401),
    ({"headers": _key("wrong")}, 401),
    ({"headers": {**BEARER, "x-trimtab-deadline-ms": "x"}}, 400),
    ({"headers": {**BEARER, "x-trimtab-deadline-ms": "100"}}, 504),
]


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize(("request_", "status"), CASES, ids=lambda value: str(value)[:40])
def test_each_refusal_has_its_status_and_its_protocols_form(
    gateway: Served, path: str, request_: dict[str, Any], status: int
) -> None:
    (answer,) = _asked(gateway, {"body": HELLO, "path": path, **request_})
    assert (answer.status, answer.error) == (status, ""), answer.body
    _is_in_form(answer, path)
    if status == 503:
        assert int(answer.headers["Retry-After"]) >= 1


def _is_in_form(answer: Reply, path: str) -> None:
    said = answer.json()
    assert said["error"]["message"]
    assert said["error"]["type"]
    assert ("code" in said["error"]) is (path == CHAT)
    assert (said.get("type") == "error") is (path == MESSAGES)
    assert answer.headers["x-request-id"]


def test_unknown_paths_and_methods(gateway: Served) -> None:
    unknown, method = _asked(gateway, {"path": "/v1/nothing"}, {"path": CHAT, "method": "GET", "body": None})
    assert (unknown.status, method.status) == (404, 405)
    assert unknown.json()["error"]["message"]
    assert "POST" in method.headers["Allow"]


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_a_full_queue_answers_503_and_says_when_to_come_again(gateway: Served, path: str) -> None:
    with _long(gateway, 3):  # one runs, two wait
        refused = _asked(gateway, *[{"path": path} for _ in range(5)])
    for answer in refused:
        assert answer.status == 503
        _is_in_form(answer, path)
        assert int(answer.headers["Retry-After"]) >= 1
    (after,) = _asked(gateway, {"path": path})
    assert bad([after]) == []


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_a_tenants_limit_answers_429(gateway: Served, path: str) -> None:
    with _long(gateway, 1, LIMITED_KEY):
        limited = _asked(gateway, *[{"path": path, "headers": _key(LIMITED_KEY)} for _ in range(3)])
    for answer in limited:
        assert answer.status == 429
        _is_in_form(answer, path)
        assert int(answer.headers["Retry-After"]) >= 1
    (other,) = _asked(gateway, {})
    assert bad([other]) == []  # another tenant's are served


def _refused_start(config: dict[str, Any], folder: Path) -> str:
    refused = spawn(folder, config)
    assert refused.process.wait(START_S) == 2, refused.said()
    assert "Traceback" not in refused.said()
    return refused.said()


def test_a_port_in_use_ends_the_start_with_a_message(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        said = _refused_start(config_of(listen=address), tmp_path)
        assert re.search(rf"listen.*{address}", said)
        admin = {**config_of()["admin"], "listen": address}
        assert "admin.listen" in _refused_start(config_of(admin=admin), tmp_path)


def test_a_recording_that_cannot_be_written_ends_the_start_with_a_message(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    folder = str(tmp_path / "file" / "traffic")
    said = _refused_start(config_of(record={"folder": folder}), tmp_path)
    assert folder in said
