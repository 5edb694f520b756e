"""kill -9 of the gateway with jobs of all states: none is lost, none runs twice; a store that is away."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.backends.children import BackendProcess, launched
from support.backends.options import Options
from support.gateway_load import BEARER, ask, bad, client, comes
from support.served import Served, config_of, node_of, served

ASYNC = {"Prefer": "respond-async"}
VIDEO = {"model": "demo-video", "prompt": "a ship turns", "seconds": "4"}
IMAGE = {"model": "demo-image", "prompt": "a rudder", "size": "512x512"}
JOBS = 5


@pytest.fixture
def backends() -> Iterator[tuple[BackendProcess, BackendProcess]]:
    """A node with jobs of its own, and one that answers when it is done."""
    video = Options(kind="video", name="video", slots=1, video_s=0.1)
    image = Options(kind="image", name="image", slots=1, base_s=1.0)
    with launched(video, image) as (first, second):
        yield first, second


def test_killed_with_jobs_queued_and_dispatched(
    backends: tuple[BackendProcess, BackendProcess], tmp_path: Path
) -> None:
    video, image = backends
    nodes = [node_of(video, job_api="videos", capacity=1), node_of(image, capacity=1)]
    config = config_of(*backends, nodes=nodes)
    with served(tmp_path, config) as gateway:
        ids = asyncio.run(_submitted(gateway))
        gateway.process.kill()
        gateway.wait()
    with served(tmp_path, config) as heir:
        states = asyncio.run(_ended(heir, ids))
    videos, images = states[:JOBS], states[JOBS:]
    assert set(videos) <= {"completed"}  # attached again where they ran
    assert images.count("unknown") <= 1  # the one that ran: nobody knows
    assert set(images) <= {"done", "unknown"}
    assert _sends(video, "/v1/videos") == JOBS
    assert _sends(image, "/v1/images/generations") == JOBS


def _sends(backend: BackendProcess, path: str) -> int:
    return sum(seen["method"] == "POST" and seen["path"] == path for seen in backend.requests())


async def _submitted(gateway: Served) -> list[str]:
    """Ids of accepted jobs, videos first; at least one of each kind runs, others wait."""
    async with client() as session:
        path = "/v1/images/generations"
        headers = {**BEARER, **ASYNC}
        videos = [await ask(session, gateway.url, VIDEO, path="/v1/videos") for _ in range(JOBS)]
        images = [await ask(session, gateway.url, IMAGE, path=path, headers=headers) for _ in range(JOBS)]
        ids = [answer.json()["id"] for answer in (*videos, *images)]

        async def one_is_done_and_one_runs() -> bool:
            states = await asyncio.gather(*(_state(session, gateway, id_) for id_ in ids[JOBS:]))
            return {"done", "dispatched"} <= set(states)

        await comes(one_is_done_and_one_runs, "one job is done and another runs")
        return ids


async def _state(session: Any, gateway: Served, id_: str) -> str:
    path = f"/v1/videos/{id_}" if id_.startswith("video") else f"/v1/jobs/{id_}"
    answer = await ask(session, gateway.url, None, path=path, method="GET")
    assert answer.status == 200, (id_, answer.body)
    return str(answer.json()["status"])


async def _ended(gateway: Served, ids: list[str]) -> list[str]:
    async with client() as session:

        async def all_ended() -> bool:
            states = [await _state(session, gateway, id_) for id_ in ids]
            return not {"queued", "dispatched", "in_progress"} & set(states)

        await comes(all_ended, "all jobs end")
        for id_ in ids[:JOBS]:
            content = await ask(session, gateway.url, None, path=f"/v1/videos/{id_}/content", method="GET")
            assert content.status == 200
            assert content.body
        return [await _state(session, gateway, id_) for id_ in ids]


def test_without_its_store_requests_go_on_and_jobs_are_refused(tmp_path: Path) -> None:
    blocked = tmp_path / "no-folder"
    blocked.write_text("a file, where a folder is wanted")
    chat = Options(kind="chat", name="chat", models="demo-chat,demo-video")
    with launched(chat) as backends:
        store = {"url": f"sqlite:///{blocked}/gateway.db", "results_folder": str(tmp_path / "results")}
        with served(tmp_path, config_of(*backends, store=store)) as gateway:
            asyncio.run(_without_store(gateway))
        store = {"url": f"sqlite:///{tmp_path}/gateway.db", "results_folder": str(blocked / "results")}
        with served(tmp_path, config_of(*backends, store=store)) as gateway:
            asyncio.run(_without_store(gateway))
            assert "jobs" in gateway.said()


async def _without_store(gateway: Served) -> None:
    async with client() as session:
        answers = [await ask(session, gateway.url) for _ in range(3)]
        assert bad(answers) == []
        refused = await ask(session, gateway.url, VIDEO, path="/v1/videos")
        assert refused.status == 503
        assert refused.json()["error"]["message"]
        assert os.sep not in refused.json()["error"]["message"]  # no paths of this machine
        gateway.tell(signal.SIGTERM)
        assert await asyncio.to_thread(gateway.wait) == 0
