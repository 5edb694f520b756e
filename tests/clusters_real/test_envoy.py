"""`trimtab epp` behind the real Envoy, with the configuration in deploy/envoy.yaml."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.envoy import FULL_DUPLEX, HEADERS_ONLY, free_port, program
from support.picking import Answered, NamedBackend, Picking, picking
from support.served import KEY
from support.waiting import until
from trimtab.traces.gateway_format import FILE_NAME

pytestmark = [pytest.mark.clusters, pytest.mark.usefixtures("_envoy")]

MODES = {"buffered": {}, "full duplex": FULL_DUPLEX, "headers only": HEADERS_ONLY}
AT_A_TIME = 16
ARGUMENTS = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=picker -keyout picker.key -out picker.pem"


@pytest.fixture
def _envoy() -> None:
    program()


def backends(n: int = 3) -> list[NamedBackend]:
    return [NamedBackend(f"n{k}") for k in range(n)]


async def many(picking: Picking, n: int, **more: Any) -> list[Answered]:
    """Requests of so many clients, each with its own id; the answers in the order of the ids."""
    left, found = iter(range(n)), {}

    async def client() -> None:
        for k in left:
            found[k] = await picking.chat(f"question {k}", **more)

    await asyncio.gather(*(client() for _ in range(AT_A_TIME)))
    return [found[k] for k in range(n)]


def recorded(folder: Path) -> list[dict[str, Any]]:
    files = sorted(file for file in folder.iterdir() if FILE_NAME.fullmatch(file.name))
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return [line for line in lines if "record" not in line]


async def records_equal_what_served(folder: Path, mode: dict[str, str], n: int, *, stream: bool) -> None:
    recording = folder / "recording"
    changes: dict[str, Any] = {"record": {"folder": str(recording)}, "policy": "power-of-d"}
    async with picking(folder, *backends(), envoy_changes={"mode": mode}, **changes) as made:
        warm = made.by_backend()
        answers = await many(made, n, stream=stream)
        assert Counter(answer.status for answer in answers) == {200: n}
        assert [answer.node for answer in answers] == [answer.backend for answer in answers]
        served = Counter(answer.backend for answer in answers)
        assert made.by_backend() - warm == served
        assert len(served) == 3
        for backend in made.backends:
            for request_id in list(backend.heads)[-100:]:
                receipt = await made.receipt(request_id)
                assert receipt["node"] == backend.name
                assert receipt["decision"]["candidates"][0]["node"] == backend.name
                assert len(receipt["attempts"]) == 1
                assert receipt["state"] == "done"
        made.picker.tell(signal.SIGINT)
        assert await asyncio.to_thread(made.picker.wait) == 0, made.picker.said()
    rows = recorded(recording)
    by_node = Counter(f"n{row['node']}" for row in rows)
    assert by_node == served + warm
    assert not any("retries" in row for row in rows)
    if mode != HEADERS_ONLY:
        assert all(row["output_tokens"] == 3 for row in rows)
        assert all(row["model"] == "demo-chat" for row in rows)


@pytest.mark.parametrize("mode", MODES)
async def test_the_record_is_the_backend_that_answered(tmp_path: Path, mode: str) -> None:
    await records_equal_what_served(tmp_path, MODES[mode], 600, stream=False)


@pytest.mark.parametrize("mode", ["buffered", "full duplex"])
async def test_the_same_of_streams(tmp_path: Path, mode: str) -> None:
    await records_equal_what_served(tmp_path, MODES[mode], 300, stream=True)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("mode", ["buffered", "full duplex"])
async def test_the_same_of_20_000_requests(tmp_path: Path, mode: str) -> None:
    await records_equal_what_served(tmp_path, MODES[mode], 20_000, stream=False)


async def test_long_bodies_pass_whole_in_full_duplex(tmp_path: Path) -> None:
    async with picking(tmp_path, *backends(1), envoy_changes={"mode": FULL_DUPLEX}) as made:
        text = "x" * 3_000_000
        answer = await made.chat(text)
        assert answer.status == 200
        (backend,) = made.backends
        assert [body["messages"][0]["content"] for body in backend.bodies.values()].count(text) == 1


async def test_a_forged_header_never_wins(tmp_path: Path) -> None:
    first, second = backends(2)
    async with picking(tmp_path, first, envoy_changes={"mode": {}}) as made, second:
        forged = {
            "x-gateway-destination-endpoint": f"127.0.0.1:{second.port}",
            "x-gateway-destination-endpoint-subset": f"127.0.0.1:{second.port}",
            "x-gateway-destination-endpoint-served": f"127.0.0.1:{second.port}",
        }
        for _ in range(20):
            answer = await made.chat(headers=forged)
            assert (answer.status, answer.backend, answer.node) == (200, "n0", "n0")
        head = list(first.heads.values())[-1]
        assert head["x-gateway-destination-endpoint"] == f"127.0.0.1:{first.port}"
        made.picker.end()
        answer = await made.chat(headers=forged)
        assert answer.status >= 500  # and not the second backend
        assert second.n_served == 0


async def test_without_the_picker_nothing_passes_and_a_new_one_takes_over(tmp_path: Path) -> None:
    async with picking(tmp_path, *backends(2)) as made:
        before = sum(made.by_backend().values())
        made.picker.end()
        for _ in range(5):
            assert (await made.chat()).status >= 500
        assert sum(made.by_backend().values()) == before
        await made.restarted()
        await made.is_served()
        answers = await many(made, 100)
        assert [answer.node for answer in answers] == [answer.backend for answer in answers]


async def test_a_dead_backend_the_next_of_the_ranking_serves(tmp_path: Path) -> None:
    slow_checks = {"period_s": 60.0, "timeout_s": 5.0, "healthy_threshold": 1}
    async with picking(tmp_path, *backends(), health=slow_checks, policy="round-robin") as made:
        dead = made.backends[0]
        await dead.stop()
        await asyncio.sleep(0.5)  # for Envoy to see that idle connections are closed
        answers = await many(made, 60)
        assert Counter(answer.status for answer in answers) == {200: 60}
        assert {answer.backend for answer in answers} == {"n1", "n2"}
        assert [answer.node for answer in answers] == [answer.backend for answer in answers]
        tried = [await made.receipt(at) for one in made.backends[1:] for at in list(one.heads)[-30:]]
        moved = [one for one in tried if len(one["attempts"]) == 2]
        assert moved
        assert {(one["attempts"][0]["node"], one["attempts"][0]["lost_by"]) for one in moved} == {
            ("n0", "connect")
        }
        nodes = json.loads((await asyncio.to_thread(made.picker.admin, "/admin/nodes")).body)
        assert next(one for one in nodes["nodes"] if one["name"] == "n0")["health"] != "up"
        assert await made.metric("trimtab_node_in_flight") == 0.0


async def test_only_endpoints_that_the_proxy_allows(tmp_path: Path) -> None:
    first, second = backends(2)
    port = free_port()
    hint = {
        "name": "subset",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config",
            "metadata": [
                {
                    "metadata_namespace": "envoy.lb.subset_hint",
                    "value": {"x-gateway-destination-endpoint-subset": [f"127.0.0.1:{port}"]},
                }
            ],
        },
    }
    first.port = port
    async with first, picking(tmp_path, first, second, envoy_changes={"first_filter": hint}) as made:
        answers = await many(made, 40)
        assert {(answer.status, answer.backend, answer.node) for answer in answers} == {(200, "n0", "n0")}
        await first.stop()

        async def is_refused() -> bool:
            answer = await made.chat()
            return answer.status == 503 and b'"code":"no_node"' in answer.body

        await until(is_refused, "no endpoint of the subset is left")
        assert second.n_served == 0


async def test_an_open_proxy_serves_by_its_own_policy_while_the_picker_is_down(tmp_path: Path) -> None:
    async with picking(tmp_path, *backends(2), envoy_changes={"fails_open": True}) as made:
        made.picker.end()
        forged = {"x-gateway-destination-endpoint": "127.0.0.1:1"}
        assert [(await made.chat(headers=forged)).status for _ in range(10)] == [200] * 10


async def test_refusals_come_through_envoy(tmp_path: Path) -> None:
    limited = {"limits": {"requests_per_minute": 3}}
    async with picking(tmp_path, *backends(1), **limited) as made:
        unknown = await made.chat(headers={"Authorization": "Bearer no"})
        assert (unknown.status, json.loads(unknown.body)["error"]["code"]) == (401, "invalid_api_key")
        nothing = await made.chat(model="other")
        assert (nothing.status, json.loads(nothing.body)["error"]["code"]) == (404, "model_not_found")
        statuses = [(answer := await made.chat()).status for _ in range(5)]
        assert statuses[-1] == 429
        assert int(answer.headers["retry-after"]) > 0
        assert answer.headers["x-ratelimit-limit-requests"] == "3"
        async with made.session.get(f"{made.envoy.url}/v1/models") as models:
            assert models.status == 401


async def test_what_is_about_the_gateway_is_answered_by_the_picker(tmp_path: Path) -> None:
    async with picking(tmp_path, *backends(1)) as made:
        async with made.session.get(
            f"{made.envoy.url}/v1/models", headers={"Authorization": f"Bearer {KEY}"}
        ) as answer:
            assert [one["id"] for one in (await answer.json())["data"]] == ["demo-chat"]
        async with made.session.get(f"{made.envoy.url}/ready") as answer:
            assert (answer.status, await answer.json()) == (200, {"ready": True})


async def test_a_held_request_waits_beyond_the_message_timeout(tmp_path: Path) -> None:
    (backend,) = backends(1)
    async with held(tmp_path, backend, {"message_timeout": "0.3s"}) as made:
        first = asyncio.create_task(made.chat("slow"))
        await until(lambda: any(b["messages"][0]["content"] == "slow" for b in backend.bodies.values()))
        second = asyncio.create_task(made.chat("after it"))
        await asyncio.sleep(1.0)
        assert not second.done()
        backend.let_go.set()
        assert [one.status for one in await asyncio.gather(first, second)] == [200, 200]


async def test_where_envoy_does_not_wait_the_held_request_is_given_up(tmp_path: Path) -> None:
    (backend,) = backends(1)
    changes = {"message_timeout": "0.3s", "max_message_timeout": "0.3s"}
    async with held(tmp_path, backend, changes) as made:
        first = asyncio.create_task(made.chat("slow"))
        await until(lambda: any(b["messages"][0]["content"] == "slow" for b in backend.bodies.values()))
        assert (await made.chat("after it")).status >= 500

        async def is_empty() -> bool:
            status = await asyncio.to_thread(made.picker.admin, "/admin/status")
            return json.loads(status.body)["queue"]["length"] == 0

        await until(is_empty, "nothing waits")
        backend.let_go.set()
        assert (await first).status == 200
        await made.is_served()


def held(
    folder: Path, backend: NamedBackend, changes: dict[str, Any]
) -> contextlib.AbstractAsyncContextManager[Picking]:
    """A backend that takes one request at a time, and Envoy with these changes of the filter."""
    backend.capacity = 1
    return picking(folder, backend, envoy_changes={"filter_changes": changes})


async def test_a_client_that_leaves_frees_its_place(tmp_path: Path) -> None:
    (backend,) = backends(1)
    async with picking(tmp_path, backend) as made:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await made.chat("slow")

        async def is_free() -> bool:
            return await made.metric("trimtab_node_in_flight") == 0.0

        await until(is_free, "no request is counted")
        assert await made.metric("trimtab_requests_total", outcome="cancelled") == 1.0


async def test_keys_stay_with_the_picker(tmp_path: Path) -> None:
    (backend,) = backends(1)
    async with picking(tmp_path, backend) as made:
        await made.chat(headers={"x-trimtab-session": "s1", "x-api-key": "secret"})
        head = list(backend.heads.values())[-1]
        assert not {"authorization", "x-api-key", "x-trimtab-session"} & set(head)


async def test_an_alias_is_renamed_in_the_body(tmp_path: Path) -> None:
    for mode in ({}, FULL_DUPLEX):
        (backend,) = backends(1)
        routes = {"routes": {"nice-name": {"targets": "demo-chat"}}}
        folder = tmp_path / str(len(mode))
        folder.mkdir()
        async with picking(folder, backend, envoy_changes={"mode": mode}, **routes) as made:
            assert (await made.chat(model="nice-name")).status == 200
            assert list(backend.bodies.values())[-1]["model"] == "demo-chat"


async def test_tls_between_envoy_and_the_picker(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    tls = {"tls": {"certificate": str(certificate), "key": str(key)}}
    async with picking(tmp_path, *backends(1), envoy_changes={"is_tls": True}, picker=tls) as made:
        assert (await made.chat()).status == 200


def self_signed(folder: Path) -> tuple[Path, Path]:
    certificate, key = folder / "picker.pem", folder / "picker.key"
    subprocess.run(
        ["openssl", *ARGUMENTS.split()],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    return certificate, key
