"""The video backend: jobs as OpenAI's video API has them; the work goes on when the caller has gone."""

from __future__ import annotations

import asyncio
import struct
import time
import uuid
from dataclasses import dataclass, field
from typing import Any, Literal

from aiohttp import web

from support.backends.answers import Refused, lead_s
from support.backends.chat import check_model
from support.backends.options import Options
from support.backends.service import Service
from support.backends.uploads import read_form_or_json

FILE_BYTES_PER_S = 10_000


@dataclass(slots=True)
class Job:
    """A video being made."""

    id: str
    model: str
    prompt: str
    seconds: str
    size: str
    created_at: int
    status: Literal["queued", "in_progress", "completed", "failed"] = "queued"
    completed_at: int | None = None
    remixed_from_video_id: str | None = None
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    def shown(self) -> dict[str, Any]:
        """It as the API shows it."""
        progress = {"queued": 0, "in_progress": 50}.get(self.status, 100)
        named = {name: getattr(self, name) for name in self.__slots__ if name != "task"}
        return {**named, "object": "video", "progress": progress, "error": None, "expires_at": None}


class Videos:
    """Handlers of the video backend."""

    def __init__(self, options: Options, service: Service) -> None:
        self._options, self._service = options, service
        self._jobs: dict[str, Job] = {}

    def routes(self) -> list[web.RouteDef]:
        """Its paths."""
        return [
            web.post("/v1/videos", self._create),
            web.post("/v1/videos/{id}/remix", self._remix),
            web.get("/v1/videos", self._list),
            web.get("/v1/videos/{id}", self._show),
            web.get("/v1/videos/{id}/content", self._content),
            web.delete("/v1/videos/{id}", self._delete),
        ]

    async def _create(self, request: web.Request) -> web.Response:
        asked = (await read_form_or_json(request)).fields
        check_model(self._options, str(asked.get("model", "")))
        job = Job(
            id=_new_id(),
            model=str(asked["model"]),
            prompt=str(asked.get("prompt", "")),
            seconds=str(asked.get("seconds", "4")),
            size=str(asked.get("size", "720x1280")),
            created_at=int(time.time()),
        )
        return self._begin(job, request)

    async def _remix(self, request: web.Request) -> web.Response:
        source, asked = self._job(request), (await read_form_or_json(request)).fields
        job = Job(
            id=_new_id(),
            model=source.model,
            prompt=str(asked.get("prompt", "")),
            seconds=source.seconds,
            size=source.size,
            created_at=int(time.time()),
            remixed_from_video_id=source.id,
        )
        return self._begin(job, request)

    def _begin(self, job: Job, request: web.Request) -> web.Response:
        self._jobs[job.id] = job
        job.task = asyncio.create_task(self._make(job, lead_s(request)))
        return web.json_response(job.shown())

    async def _make(self, job: Job, more_s: float) -> None:
        try:
            async with self._service.slot():
                job.status = "in_progress"
                work_s = self._options.base_s + self._options.video_s * float(job.seconds)
                await asyncio.sleep(self._service.paced_s(work_s) + more_s)
            job.status = "completed"
        except ValueError:  # its seconds are no number
            job.status = "failed"
        job.completed_at = int(time.time())

    def _job(self, request: web.Request) -> Job:
        job = self._jobs.get(request.match_info["id"])
        if job is None:
            raise Refused(404, f"Video with id '{request.match_info['id']}' not found.", "not_found")
        return job

    async def _list(self, request: web.Request) -> web.Response:
        data = [job.shown() for job in reversed(self._jobs.values())]
        ends = {"first_id": data[0]["id"] if data else None, "last_id": data[-1]["id"] if data else None}
        return web.json_response({"object": "list", "data": data, "has_more": False, **ends})

    async def _show(self, request: web.Request) -> web.Response:
        return web.json_response(self._job(request).shown())

    async def _content(self, request: web.Request) -> web.Response:
        job = self._job(request)
        if job.status != "completed":
            raise Refused(409, f"The video is {job.status}.", "video_not_ready")
        return web.Response(body=_film(float(job.seconds)), content_type="video/mp4")

    async def _delete(self, request: web.Request) -> web.Response:
        job = self._job(request)
        del self._jobs[job.id]
        if job.task is not None:
            job.task.cancel()
        return web.json_response({"id": job.id, "object": "video.deleted", "deleted": True})

    async def close(self) -> None:
        """Cancel what is being made."""
        tasks = [job.task for job in self._jobs.values() if job.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _new_id() -> str:
    return f"video_{uuid.uuid4().hex}"


def _film(seconds: float) -> bytes:
    """The boxes of an MP4 file: its type, and free space in proportion to its length."""
    brand = b"isom\0\0\2\0isomiso2mp41"
    filler = bytes(round(seconds * FILE_BYTES_PER_S))
    return b"".join(
        struct.pack(">I", 8 + len(content)) + name + content
        for name, content in ((b"ftyp", brand), (b"free", filler))
    )
