"""Jobs at the nodes of a whole gateway: a remix goes where its video is, a job found again has its place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from support.gateway.plane import listening
from support.waiting import until
from trimtab.gateway.app.assembly import GatewayCore
from trimtab.gateway.app.gateway_control import GatewayControl
from trimtab.gateway.app.http_plane import HttpPlane
from trimtab.gateway.app.lifecycle import opened
from trimtab.gateway.app.node_changes import NodeChanges
from trimtab.gateway.config import GatewayConfig
from trimtab.gateway.job_api.job_service import JobService
from trimtab.gateway.tenancy.run_time_keys import RunTimeKeys


class Studio:
    """A backend with OpenAI's video API, whose films are done when the test says so, and a chat beside it."""

    def __init__(self, name: str) -> None:
        self.name, self.films, self.seen = name, 0, [""]
        self.done = asyncio.Event()

    async def answer(self, request: web.Request) -> web.Response:
        await request.read()
        self.seen.append(f"{request.method} {request.path}")
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "m"}]})
        if request.path == "/health":
            return web.Response()
        if request.path == "/v1/chat/completions":
            return web.json_response({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})
        if request.path.endswith("/content"):
            return web.Response(body=self.name.encode(), content_type="video/mp4")
        if request.method == "POST":
            self.films += 1
            return web.json_response({"id": f"{self.name}-{self.films}", "status": "queued"})
        return web.json_response({"status": "completed" if self.done.is_set() else "in_progress"})


class Served:
    """What a test holds."""

    def __init__(
        self, gateway: GatewayCore, service: JobService, changes: NodeChanges, keys: RunTimeKeys, url: str
    ) -> None:
        self.gateway, self.service, self.changes, self.keys, self.url = gateway, service, changes, keys, url
        self.client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0)

    async def ended(self, video_id: str) -> Any:
        async def ended() -> Any:
            video = await self.client.videos.retrieve(video_id)
            return None if video.status in ("queued", "in_progress") else video

        return await until(ended, "the video ends", poll_s=0.02)


@asynccontextmanager
async def studios(*names: str) -> AsyncIterator[tuple[list[Studio], list[dict[str, Any]]]]:
    """Backends, and their entries in a configuration; each takes one request at a time."""
    async with AsyncExitStack() as stack:
        made, entries = [], []
        for name in names:
            studio, app = Studio(name), web.Application()
            app.router.add_route("*", "/{path:.*}", studio.answer)
            server = await stack.enter_async_context(TestServer(app))
            entry = {"name": name, "url": str(server.make_url("")), "models": ["m"], "capacity": 1}
            made.append(studio)
            entries.append(entry | {"job_api": "videos"})
        yield made, entries


@asynccontextmanager
async def serving(folder: Path, nodes: list[dict[str, Any]], **limits: object) -> AsyncIterator[Served]:
    """A gateway with its jobs, in this process."""
    store = {"url": f"sqlite:///{folder / 'store.db'}", "results_folder": str(folder / "results")}
    chosen = {"nodes": nodes, "store": store, "queue": {"max_wait_s": 20}, "limits": limits}
    config = GatewayConfig.model_validate({"insecure_no_auth": True} | chosen)
    service = JobService(config)
    gateway, sock = GatewayCore(config, asyncio.get_running_loop(), HttpPlane, jobs=service), listening()
    async with opened(gateway, service, sock) as (changes, keys):
        served = Served(gateway, service, changes, keys, f"http://127.0.0.1:{sock.getsockname()[1]}")
        await until(lambda: not gateway.unready_reason)
        try:
            yield served
        finally:
            await served.client.close()


@pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")
async def test_a_remix_is_made_where_its_video_is(tmp_path: Path) -> None:
    async with studios("left", "right") as (made, nodes), serving(tmp_path, nodes) as served:
        for studio in made:
            studio.done.set()
        videos = served.client.videos
        first = await videos.create(prompt="a boat", model="m", seconds="8")
        await served.ended(first.id)
        (home,) = [studio for studio in made if studio.films]
        for _ in range(3):
            remix = await videos.remix(first.id, prompt="at night")
            assert (remix.remixed_from_video_id, remix.seconds, remix.model) == (first.id, "8", "m")
            assert (await served.ended(remix.id)).status == "completed"
            assert (await videos.download_content(remix.id)).content == home.name.encode()
        assert home.films == 4
        assert home.seen.count(f"POST /v1/videos/{home.name}-1/remix") == 3
        again = await videos.remix(remix.id, prompt="in the rain")  # of a remix
        await served.ended(again.id)
        assert f"POST /v1/videos/{home.name}-4/remix" in home.seen
        with pytest.raises(openai.NotFoundError):
            await videos.remix("video_unknown", prompt="x")
        with pytest.raises(openai.BadRequestError):
            await videos.remix(first.id, prompt=None)  # type: ignore[arg-type]
        home.done.clear()
        unfinished = await videos.remix(first.id, prompt="by day")
        with pytest.raises(openai.ConflictError):
            await videos.remix(unfinished.id, prompt="x")


@pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")
async def test_a_job_that_is_found_again_keeps_its_place_at_its_node(tmp_path: Path) -> None:
    async with studios("only") as ((studio,), nodes):
        async with serving(tmp_path, nodes) as served:
            video = await served.client.videos.create(prompt="a boat", model="m")
            await until(lambda: "GET /v1/videos/only-1" in studio.seen)
            node = served.gateway.fleet.nodes[0]
            assert node.in_flight == 1
        async with serving(tmp_path, nodes) as served:
            node = served.gateway.fleet.nodes[0]
            await until(lambda: node.in_flight == 1)
            async with aiohttp.ClientSession() as session:
                url = f"{served.url}/v1/chat/completions"
                chat = asyncio.ensure_future(session.post(url, json={"model": "m", "messages": []}))
                await asyncio.sleep(0.3)
                assert "POST /v1/chat/completions" not in studio.seen  # it waits: the node takes one
                studio.done.set()
                assert (await chat).status == 200
                (await chat).release()
            assert (await served.ended(video.id)).status == "completed"
            await until(lambda: node.in_flight == 0)
            assert studio.films == 1


@pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")
async def test_jobs_are_counted_as_of_when_somebody_looks(tmp_path: Path) -> None:
    async with studios("only") as ((studio,), nodes), serving(tmp_path, nodes) as served:
        control = GatewayControl(served.gateway, None, served.service, served.changes, served.keys)
        assert b"trimtab_jobs{" not in await control.metrics()
        video = await served.client.videos.create(prompt="a boat", model="m")
        await until(lambda: "GET /v1/videos/only-1" in studio.seen)
        assert b'trimtab_jobs{state="dispatched"} 1' in await control.metrics()
        studio.done.set()
        await served.ended(video.id)
        told = await control.metrics()
        assert b'trimtab_jobs{state="done"} 1' in told
        assert b'trimtab_jobs{state="dispatched"} 0' in told
        assert (await control.status())["jobs"] == {"dispatched": 0, "done": 1}


@pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")
async def test_unfinished_jobs_count_as_concurrent_requests_of_their_tenant(tmp_path: Path) -> None:
    async with studios("only") as ((studio,), nodes), serving(tmp_path, nodes, concurrency=2) as served:
        create = served.client.videos.create
        first = await create(prompt="a boat", model="m")
        second = await create(prompt="a boat", model="m")
        with pytest.raises(openai.RateLimitError, match=r"2 (unfinished jobs|requests at a time)"):
            await create(prompt="a boat", model="m")
        studio.done.set()
        for video in (first, second):
            await served.ended(video.id)
        await served.ended((await create(prompt="a boat", model="m")).id)


@pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")
async def test_the_bodies_and_results_of_a_tenants_jobs_are_bounded(tmp_path: Path) -> None:
    async with studios("only") as (_, nodes), serving(tmp_path, nodes, max_jobs_mib=0.001) as served:
        with pytest.raises(openai.RateLimitError, match=r"may take 0\.00"):
            await served.client.videos.create(prompt="a boat" * 500, model="m")
