"""The admin port over real connections: who gets in, what changes, what is streamed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest.mock import patch

import aiohttp
import pytest

from support.gateway.admin_harness import KEY, Admin, open_admin
from support.gateway.fake_control import FakeControl
from trimtab.gateway.admin.auth import MOST_SESSIONS, AdminAuth, digest
from trimtab.gateway.model import Health

BEARER = {"Authorization": f"Bearer {KEY}"}


@asynccontextmanager
async def with_admin(
    control: FakeControl | None = None,
) -> AsyncIterator[tuple[Admin, aiohttp.ClientSession]]:
    async with (
        open_admin(control) as admin,
        aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as client,
    ):
        yield admin, client


async def status_of(answer: object) -> int:
    async with answer as response:  # type: ignore[attr-defined]
        await response.read()
        return int(response.status)


async def sign_in(admin: Admin, client: aiohttp.ClientSession) -> None:
    url = f"{admin.base}/login?token={admin.auth.make_link_token()}"
    async with client.get(url, allow_redirects=False) as response:
        assert response.status == 303
        cookie = response.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie


@pytest.mark.parametrize(
    "path",
    [
        "/metrics",
        "/admin/status",
        "/admin/stream",
        "/admin/nodes",
        "/admin/usage",
        "/admin/keys",
        "/admin/requests/x",
        "/static/nodes.js",
    ],
)
async def test_nothing_is_read_without_a_key(path: str) -> None:
    async with with_admin() as (admin, client):
        assert await status_of(client.get(admin.base + path)) == 401
        wrong = {"Authorization": "Bearer tt-wrong"}
        assert await status_of(client.get(admin.base + path, headers=wrong)) == 401


async def test_health_and_the_sign_in_page_are_open_and_the_dashboard_leads_there() -> None:
    async with with_admin() as (admin, client):
        assert await status_of(client.get(admin.base + "/health")) == 200
        async with client.get(admin.base + "/") as response:
            assert response.url.path == "/login"
            assert "Admin key" in await response.text()
            assert "default-src 'none'" in response.headers["Content-Security-Policy"]


async def test_a_key_reads_everything() -> None:
    async with with_admin() as (admin, client):
        async with client.get(admin.base + "/admin/status", headers=BEARER) as response:
            status = await response.json()
        assert len(status["nodes"]) == 8
        assert status["history"]
        async with client.get(admin.base + "/admin/requests/req-7", headers=BEARER) as response:
            receipt = await response.json()
        assert receipt["decision"]["policy"] == "least-expected-wait"
        assert receipt["decision"]["candidates"][0]["node"] == receipt["node"]
        assert receipt["actual_s"] > 0
        assert await status_of(client.get(admin.base + "/admin/requests/none", headers=BEARER)) == 404
        asked: list[str] = []
        find = admin.control.decision_records.find
        with patch.object(
            admin.control.decision_records, "find", lambda id_: (asked.append(id_), find("req-7"))[1]
        ):
            for path in ("a/b", "a%2Fb/c"):
                assert (
                    await status_of(client.get(f"{admin.base}/admin/requests/{path}", headers=BEARER)) == 200
                )
        assert asked == ["a/b", "a/b/c"]
        async with client.get(admin.base + "/metrics", headers=BEARER) as response:
            assert "trimtab_requests_total" in await response.text()
            assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")


async def test_usage_is_told_of_all_or_of_one_and_not_while_the_store_is_away() -> None:
    async with with_admin() as (admin, client):
        url = admin.base + "/admin/usage"
        for query, tenant in (("", "search"), ("?tenant=design", "design")):
            async with client.get(url + query, headers=BEARER) as response:
                assert (await response.json())["usage"][0]["tenant"] == tenant
        async with client.get(url + "?tenant=gone", headers=BEARER) as response:
            assert response.status == 503
            assert (await response.json())["error"]["code"] == "store_unavailable"


async def test_nodes_are_added_drained_and_removed() -> None:
    control = FakeControl(2, lived_s=3)
    async with with_admin(control) as (admin, client):
        nodes = admin.base + "/admin/nodes"
        spec = {"name": "new", "url": "http://127.0.0.1:9"}
        assert await status_of(client.post(nodes, headers=BEARER, json=spec)) == 201
        async with client.post(nodes, headers=BEARER, json={"name": "bad"}) as response:
            assert response.status == 400
            assert "nodes[0].url" in (await response.json())["error"]["message"]
        assert await status_of(client.post(nodes, headers=BEARER, data=b"{")) == 400
        assert await status_of(client.post(nodes, headers=BEARER, data=b"[]")) == 400
        assert await status_of(client.post(nodes, headers=BEARER, data=b" " * 70_000)) == 413
        assert await status_of(client.post(nodes + "/new/drain", headers=BEARER)) == 202
        assert control.node_list[-1].health is Health.DRAINING
        assert await status_of(client.post(nodes + "/new/undrain", headers=BEARER)) == 202
        assert control.node_list[-1].health is Health.UP
        assert await status_of(client.post(nodes + "/none/undrain", headers=BEARER)) == 404
        assert await status_of(client.delete(nodes + "/new", headers=BEARER)) == 202
        assert [node.name for node in control.node_list] == ["gpu-00", "gpu-01"]
        assert await status_of(client.delete(nodes + "/new", headers=BEARER)) == 404
        assert await status_of(client.put(nodes, headers=BEARER)) == 405


async def test_a_link_is_good_once_and_a_session_ends_with_signing_out() -> None:
    async with with_admin() as (admin, client):
        token = admin.auth.make_link_token()
        async with client.get(f"{admin.base}/login?token={token}") as response:
            assert response.url.path == "/"
            assert "Nodes" in await response.text()
        async with client.get(f"{admin.base}/login?token={token}") as response:
            assert response.status == 401
            assert "used before" in await response.text()
        assert await status_of(client.get(admin.base + "/admin/nodes")) == 200
        out = client.post(admin.base + "/logout", headers={"Origin": admin.base}, allow_redirects=False)
        assert await status_of(out) == 303
        assert await status_of(client.get(admin.base + "/admin/nodes")) == 401


async def test_a_key_signs_in_by_the_form() -> None:
    async with with_admin() as (admin, client):
        own = {"Origin": admin.base}
        assert await status_of(client.post(admin.base + "/login", data={"key": "no"}, headers=own)) == 401
        assert await status_of(client.post(admin.base + "/login", data={"key": KEY}, headers=own)) == 200
        assert await status_of(client.get(admin.base + "/admin/nodes")) == 200


async def test_a_foreign_page_changes_nothing() -> None:
    async with with_admin() as (admin, client):
        await sign_in(admin, client)
        reload = admin.base + "/admin/reload"
        assert await status_of(client.post(reload)) == 403
        assert await status_of(client.post(reload, headers={"Origin": "http://evil.test"})) == 403
        assert admin.control.reloads == 0
        assert await status_of(client.post(reload, headers={"Origin": admin.base})) == 200
        assert await status_of(client.post(reload, headers={"x-trimtab-admin": "1"})) == 200
        assert admin.control.reloads == 2


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.test", 421),
        ("evil.test:80", 421),
        ("localhost:1", 200),
        ("GATEWAY.test", 200),
        ("[::1]:9", 200),
        ("[", 421),
    ],
)
async def test_only_known_hosts(host: str, status: int) -> None:
    async with with_admin() as (admin, client):
        assert await status_of(client.get(admin.base + "/health", headers={"Host": host})) == status


@pytest.mark.parametrize("name", ["..%2fapp.py", "%2e%2e/app.py", "app.py", "none.js", "..%5capp.py"])
async def test_static_files_are_only_those_of_the_page(name: str) -> None:
    async with with_admin() as (admin, client):
        assert await status_of(client.get(f"{admin.base}/static/{name}", headers=BEARER)) == 404


async def test_the_stream_sends_history_once_and_then_seconds() -> None:
    async with with_admin() as (admin, client):
        async with client.get(admin.base + "/admin/stream", headers=BEARER) as response:
            assert response.headers["Content-Type"].startswith("text/event-stream")
            events = []
            while len(events) < 3:
                line = await response.content.readline()
                if line.startswith(b"data: "):
                    events.append(json.loads(line[6:]))
        assert len(events[0]["history"]) > 3
        assert [len(event["history"]) for event in events[1:]] == [1, 1]
        assert events[2]["history"][0]["at_s"] > events[1]["history"][0]["at_s"]


def test_links_and_sessions_expire_and_are_bounded() -> None:
    now_s = 0.0
    auth = AdminAuth([digest(KEY)], clock=lambda: now_s)
    link, session = auth.make_link_token(), auth.open_session()
    assert auth.is_session(session)
    now_s = 601.0
    assert not auth.use_link_token(link)
    assert auth.is_session(session)
    for _ in range(MOST_SESSIONS):
        newest = auth.open_session()
    assert not auth.is_session(session)
    assert auth.is_session(newest)
    now_s += 12 * 3600.0
    assert not auth.is_session(newest)
    assert not auth.is_key("")
    auth.replace_keys([])
    assert not auth.is_key(KEY)
    assert KEY not in repr(vars(auth))
