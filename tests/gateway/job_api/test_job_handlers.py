"""Jobs over HTTP: the official client's videos, respond-async, and backends that are busy, broken or lost."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import openai
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from support.waiting import until
from trimtab.gateway.api.endpoints import Endpoints
from trimtab.gateway.job_api.job_handlers import JobRequest, JobsApi
from trimtab.gateway.job_api.job_views import VideoFields
from trimtab.gateway.job_api.node_runner import NodeJobs, NodeRunner, RunnerSettings, Surroundings
from trimtab.gateway.model import Cause, Endpoint, Exchange, Facts, Node, Outcome, Refusal, Tenant
from trimtab.gateway.tenancy.admission import wants_async
from trimtab.jobs import JobQueue, JobSettings, JobStore


class Backend:
    """A backend that answers as the test wishes."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.statuses = ["queued", "in_progress", "completed"]
        self.create: tuple[int, dict[str, str]] = (200, {})
        self.drop = self.compresses = False

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(f"{request.method} {request.path}")
        await request.read()
        if self.drop:
            assert request.transport is not None
            request.transport.close()
        if request.method == "DELETE":
            return web.json_response({"deleted": True})
        if request.path == "/v1/videos/v9/content":
            return web.Response(body=b"film" * 1000, content_type="video/mp4")
        if request.path == "/v1/videos/v9":
            status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
            return web.json_response({"id": "v9", "status": status, "error": {"message": "too odd"}})
        status_code, headers = self.create
        usage = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
        made = web.json_response({"id": "v9", "usage": usage}, status=status_code, headers=headers)
        if self.compresses:
            made.enable_compression(web.ContentCoding.gzip)
        return made


class FirstNode:
    """A dispatcher that takes the first node an exchange has not lost."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.ended: list[tuple[str, Exchange]] = []

    def submit(self, exchange: Exchange) -> None:
        lost = {attempt.node.name for attempt in exchange.attempts}
        free = [node for node in self.nodes if node.name not in lost]
        if free:
            exchange.start(free[0])
        else:
            exchange.refuse(Refusal(503, "no_node", "no node"))

    def decide(self) -> None:
        """All is decided about already."""

    def lost(self, exchange: Exchange, cause: Cause) -> None:
        self.submit(exchange)

    def done(self, exchanges: Sequence[Exchange]) -> None:
        self.ended += (("done", exchange) for exchange in exchanges)

    def failed(self, exchange: Exchange, cause: Cause) -> None:
        self.ended.append((cause.value, exchange))

    def abort(self, exchange: Exchange) -> None:
        self.ended.append(("abort", exchange))

    def progress(self, exchange: Exchange, chunks: int) -> None: ...

    def committed(self, exchange: Exchange) -> None: ...

    def hedge(self, exchange: Exchange) -> Node | None:
        return None

    def release(self, node: Node, exchange: Exchange) -> None: ...

    def resume(self, exchange: Exchange, node: Node) -> None:
        self.ended.append(("resumed", exchange))


def _node(name: str, port: int, idx: int = 0) -> Node:
    return Node(
        name, f"http://127.0.0.1:{port}", idx, "127.0.0.1", port, False, (), 4, authorization=b"Bearer b"
    )


@asynccontextmanager
async def gateway(folder: Path, api: bool = True, idempotent: bool = False) -> AsyncIterator[SimpleNamespace]:
    """A backend, jobs, and a small server in front of them; `g.client(tenant)` is the official client."""
    backend, dispatcher, endpoints = Backend(), FirstNode(), Endpoints()
    upstream = web.Application()
    upstream.router.add_route("*", "/{path:.*}", backend.answer)
    async with TestServer(upstream) as server:
        dispatcher.nodes = [_node("n1", server.port or 0)]
        around = Surroundings(
            node=lambda name: next((node for node in dispatcher.nodes if node.name == name), None),
            declared=lambda _: NodeJobs(api, idempotent),
            tenant=lambda name: Tenant(name, 0),
            endpoint=endpoints.find,
        )
        quick = RunnerSettings(poll_first_s=0.01, poll_most_s=0.02, lost_after_s=1.0, again_s=0.05)
        runner = NodeRunner(dispatcher, around, quick)
        store = JobStore(f"sqlite:///{folder / 'store.db'}")
        await store.open()
        jobs = JobQueue(store, runner, JobSettings(folder / "jobs", poll_s=0.02, min_free_bytes=0))
        await jobs.open()
        api_of_jobs = JobsApi(jobs)

        async def front(request: web.Request) -> web.StreamResponse:
            endpoint = endpoints.find(request.method, request.path)
            assert isinstance(endpoint, Endpoint)
            body, content_type = await request.read(), request.headers.get("Content-Type", "")
            fields = VideoFields(content_type)
            fields.feed(body)
            asked = JobRequest(
                request.method,
                request.path_qs,
                endpoint,
                request.headers["Authorization"],
                content_type,
                Facts("film-1", video_s=8.0),
                fields.found(),
            )
            if wants_async(request.headers.get("Prefer", "").encode()):
                answer = await api_of_jobs.submit(asked, body)
            else:
                answer = await api_of_jobs.answer(asked, body)
            content = answer.body if isinstance(answer.body, bytes) else answer.body.read_bytes()
            return web.Response(status=answer.status, headers=dict(answer.headers), body=content)

        served = web.Application()
        served.router.add_route("*", "/{path:.*}", front)
        async with TestServer(served) as door:
            url = str(door.make_url("/"))
            clients: list[openai.AsyncOpenAI] = []

            def client(key: str) -> openai.AsyncOpenAI:
                clients.append(openai.AsyncOpenAI(base_url=f"{url}v1", api_key=key, max_retries=0))
                return clients[-1]

            async with aiohttp.ClientSession(url, headers={"Authorization": "Bearer a"}) as session:
                try:
                    yield SimpleNamespace(
                        backend=backend, dispatcher=dispatcher, jobs=jobs, client=client, http=session
                    )
                finally:
                    for made in clients:
                        await made.close()
                    await jobs.close()
                    await runner.close()
                    await store.close()


async def _ended(g: SimpleNamespace, job_id: str) -> dict[str, Any]:
    async def ended() -> dict[str, Any]:
        async with g.http.get(f"/v1/jobs/{job_id}") as response:
            job: dict[str, Any] = await response.json()
        return job if job["status"] not in ("queued", "dispatched") else {}

    return await until(ended, "the job ends")


async def _sent(g: SimpleNamespace, times: int) -> None:
    await until(lambda: g.backend.seen.count("POST /v1/videos") >= times)


async def _submitted(g: SimpleNamespace) -> str:
    body = {"model": "film-1", "prompt": "x", "seconds": 8}
    async with g.http.post("/v1/videos", json=body) as response:
        assert response.status == 200
        found: dict[str, Any] = await response.json()
        assert (found["seconds"], found["size"]) == ("8", "720x1280")
        return str(found["id"])


@pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")
async def test_the_official_client_makes_and_fetches_a_video(tmp_path: Path) -> None:
    async with gateway(tmp_path) as g:
        videos = g.client("a").videos
        made = await videos.create(prompt="a boat", model="film-1", seconds="8", size="1280x720")
        assert (made.status, made.seconds, made.size) == ("queued", "8", "1280x720")
        ready = await videos.poll(made.id, poll_interval_ms=20)
        assert (ready.status, ready.progress, ready.model) == ("completed", 100, "film-1")
        content = await videos.download_content(made.id)
        assert content.content == b"film" * 1000
        assert [video.id async for video in await videos.list()] == [made.id]
        with pytest.raises(openai.NotFoundError):
            await g.client("other").videos.retrieve(made.id)
        assert (await videos.delete(made.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await videos.retrieve(made.id)
        assert g.backend.seen.count("POST /v1/videos") == 1
        assert [how for how, _ in g.dispatcher.ended] == ["done"]


@pytest.mark.parametrize("compresses", [False, True], ids=["plain", "compressed"])
async def test_respond_async_makes_a_job_of_any_request(tmp_path: Path, compresses: bool) -> None:
    async with gateway(tmp_path) as g:
        g.backend.compresses = compresses
        prefer = {"Prefer": "wait=10, respond-async"}
        async with g.http.post("/v1/chat/completions", json={"model": "m"}, headers=prefer) as response:
            assert response.status == 202
            location = response.headers["Location"]
            assert (await response.json())["status"] == "queued"
        done = await _ended(g, location.rsplit("/", 1)[1])
        assert done["status"] == "done"
        async with g.http.get(f"{location}/result") as response:
            assert response.status == 200
            assert response.content_type == "application/json"
            assert (await response.json())["usage"]["completion_tokens"] == 5
        _, exchange = g.dispatcher.ended[0]
        assert exchange.outcome is Outcome.DONE
        assert (exchange.usage.prompt_tokens, exchange.usage.completion_tokens) == (3, 5)
        assert g.backend.seen == ["POST /v1/chat/completions"]


async def test_a_busy_or_absent_node_is_passed_over(tmp_path: Path) -> None:
    async with gateway(tmp_path) as g:
        g.dispatcher.nodes.insert(0, _node("absent", 9, 1))
        assert (await _ended(g, await _submitted(g)))["status"] == "done"
        g.dispatcher.nodes.pop(0)
        g.backend.create = (503, {"Retry-After": "0"})
        job_id = await _submitted(g)
        await _sent(g, 3)
        g.backend.create = (200, {})
        assert (await _ended(g, job_id))["status"] == "done"


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"create": (400, {})}, "failed", "backend_400"),
        ({"create": (500, {})}, "failed", "backend_error"),
        ({"drop": True}, "unknown", "backend_lost"),
        ({"statuses": ["failed"]}, "failed", "backend_failed"),
        ({"statuses": ["?", ""]}, "unknown", "backend_lost"),
    ],
)
async def test_a_backend_that_fails_gets_the_job_once(
    tmp_path: Path, change: dict[str, Any], status: str, code: str
) -> None:
    async with gateway(tmp_path) as g:
        vars(g.backend).update(change)
        job_id = await _submitted(g)
        ended = await _ended(g, job_id)
        assert (ended["status"], ended["error"]["code"]) == (status, code)
        assert g.backend.seen.count("POST /v1/videos") == 1
        async with g.http.get(f"/v1/jobs/{job_id}/result") as response:
            assert response.status == 409
            assert (await response.json())["error"]["code"] == f"job_{status}"


async def test_an_idempotent_job_runs_again(tmp_path: Path) -> None:
    async with gateway(tmp_path, idempotent=True) as g:
        g.backend.drop = True
        job_id = await _submitted(g)
        await _sent(g, 2)
        g.backend.drop = False
        assert (await _ended(g, job_id))["status"] == "done"


async def test_cancel_reaches_the_backend_and_answers_fit(tmp_path: Path) -> None:
    async with gateway(tmp_path) as g:
        g.backend.statuses = ["in_progress"]
        job_id = await _submitted(g)
        await until(lambda: "GET /v1/videos/v9" in g.backend.seen)
        async with g.http.get(f"/v1/jobs/{job_id}/result") as response:
            assert response.status == 409
            assert response.headers["Retry-After"] == "1"
        async with g.http.post(f"/v1/jobs/{job_id}/cancel") as response:
            assert (response.status, (await response.json())["status"]) == (200, "cancelled")
        assert "DELETE /v1/videos/v9" in g.backend.seen
        async with g.http.post(f"/v1/jobs/{job_id}/cancel") as response:
            assert response.status == 409
        async with g.http.delete(f"/v1/jobs/{job_id}") as response:
            assert (await response.json())["deleted"]
        async with g.http.get("/v1/jobs/job_unknown") as response:
            assert response.status == 404


async def test_without_a_database_jobs_are_refused_with_503_and_the_log_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with gateway(tmp_path) as g:
        g.jobs.settings = dataclasses.replace(g.jobs.settings, min_free_bytes=1 << 60)
        async with g.http.post("/v1/videos", json={"model": "film-1"}) as response:
            assert response.status == 503
            assert response.headers["Retry-After"] == "5"
            assert (await response.json())["error"]["code"] == "store_unavailable"
    assert f"the disk of {tmp_path}" in caplog.text
