"""The endpoints of jobs: /v1/jobs…, and /v1/videos… in the form of OpenAI's API."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, fields
from typing import Any
from urllib.parse import parse_qs

import orjson

from trimtab.gateway.api.endpoints import path_id
from trimtab.gateway.api.errors import error_body
from trimtab.gateway.http.connection_context import LocalAnswer
from trimtab.gateway.job_api.job_views import job_view, video_view
from trimtab.gateway.model import Dialect, Endpoint, Facts, Kind, Refusal
from trimtab.jobs import (
    ACTIVE,
    Job,
    JobInput,
    JobQueue,
    JobSpec,
    JobState,
    StoreUnavailable,
    TooManyBytes,
    TooManyJobs,
)

METHOD = "POST"  # of every request that can become a job
VIDEOS = "/v1/videos"  # where videos are made, in OpenAI's API and at nodes that have it

_NAMES = [field.name for field in fields(Facts)]


def parameters_of(facts: Facts) -> dict[str, Any]:
    """The sizes of a request, never its text."""
    return {name: getattr(facts, name) for name in _NAMES}


def facts_of(job: Job) -> Facts:
    """The facts that `parameters_of` has written, possibly in another version."""
    known = {name: job.parameters[name] for name in _NAMES if name in job.parameters}
    known["prefix_blocks"] = tuple(known.get("prefix_blocks", ()))
    return Facts(**known)


logger = logging.getLogger(__name__)

_JSON = ("content-type", "application/json")
_POLL = (("retry-after", "1"), ("openai-poll-after-ms", "1000"))
_STORE_AWAY = Refusal(
    503, "store_unavailable", "Jobs cannot be stored or looked up now. Other requests are served.", 5.0
)
REMIX = f"{VIDEOS}/{{id}}/remix"
_PAGE = 20
_MAX_PAGE = 100
_ID_PREFIX = {Kind.VIDEO.value: "video"}


@dataclass(frozen=True, slots=True)
class JobRequest:
    """The parts of a request that the handlers read."""

    method: str
    target: str  # path and query
    endpoint: Endpoint
    tenant: str
    content_type: str = ""
    facts: Facts | None = None  # of a request that is to become a job
    shown: dict[str, str] = field(default_factory=dict)  # of it, what its API shows again
    priority: int = 0

    @property
    def path(self) -> str:
        """Without the query."""
        return self.target.partition("?")[0]

    @property
    def query(self) -> dict[str, str]:
        """The query's parameters, the last of each name."""
        found = parse_qs(self.target.partition("?")[2], max_num_fields=50, errors="replace")
        return {name: values[-1] for name, values in found.items()}


def store_away(reason: Exception) -> Refusal:
    """The refusal for a client. The reason may name addresses and files, so it goes to the log."""
    logger.warning("a request for jobs is refused: %s", reason)
    return _STORE_AWAY


class RefusedError(Exception):
    """Carries the refusal of a request."""

    def __init__(self, status: int, code: str, message: str, retry_after_s: float = 0.0) -> None:
        self.refusal = Refusal(status, code, message, retry_after_s)


class JobsApi:
    """Answers requests for jobs. A tenant finds its own jobs only."""

    def __init__(self, jobs: JobQueue, progress: Callable[[str], Any] | None = None) -> None:
        """`progress`: how far a job that runs here is, by its id; None = not known."""
        self._jobs, self._progress = jobs, progress
        self._handlers: dict[tuple[str, str], Callable[[JobRequest], Awaitable[LocalAnswer]]] = {
            ("GET", "/v1/jobs"): self._list,
            ("GET", "/v1/jobs/{id}"): self._show,
            ("DELETE", "/v1/jobs/{id}"): self._delete,
            ("POST", "/v1/jobs/{id}/cancel"): self._cancel,
            ("GET", "/v1/jobs/{id}/result"): self._result,
            ("GET", "/v1/videos"): self._list,
            ("GET", "/v1/videos/{id}"): self._show,
            ("DELETE", "/v1/videos/{id}"): self._delete,
            ("GET", "/v1/videos/{id}/content"): self._content,
        }

    async def answer(self, request: JobRequest, body: JobInput = b"") -> LocalAnswer:
        """Any request for one of the paths of jobs and videos; HEAD is answered as GET."""
        method = "GET" if request.method == "HEAD" else request.method
        if (method, request.endpoint.path) == ("POST", VIDEOS):
            return await self.submit(request, body)
        if (method, request.endpoint.path) == ("POST", REMIX):
            return await guarded(self._remix(request, body), request)
        handler = self._handlers.get((method, request.endpoint.path))
        if handler is None:
            return _refusal(Refusal(404, "unsupported", "The gateway does not offer this on jobs."), request)
        return await guarded(handler(request), request)

    async def submit(self, request: JobRequest, body: JobInput) -> LocalAnswer:
        """Make a job of a request: POST /v1/videos, or any inference path with `Prefer: respond-async`."""
        return await guarded(self._submit(request, body), request)

    async def _submit(self, request: JobRequest, body: JobInput) -> LocalAnswer:
        if request.facts is None:
            raise RefusedError(400, "no_model", "The request names no model.")
        kind = request.endpoint.kind.value
        video = request.endpoint.kind is Kind.VIDEO
        spec = JobSpec(
            tenant=request.tenant,
            queue=request.facts.model,
            kind=kind,
            target=request.target,
            input_type=request.content_type,
            parameters=parameters_of(request.facts),
            labels=request.shown,
            priority=request.priority,
            id_prefix=_ID_PREFIX.get(kind, "job"),
        )
        job = await self._jobs.submit(spec, body)
        if video:
            return json_answer(200, video_view(job), *_POLL)
        location = ("location", f"/v1/jobs/{job.id}")
        return json_answer(202, job_view(job), location, ("preference-applied", "respond-async"), _POLL[0])

    async def _remix(self, request: JobRequest, body: JobInput) -> LocalAnswer:
        """A new video from an old one, at the node that keeps the old one."""
        source = await self._found(request)
        _check_done(source)
        if not source.remote_id:
            raise RefusedError(409, "not_remixable", "The backend that made this video does not keep it.")
        spec = JobSpec(
            tenant=request.tenant,
            queue=source.queue,
            kind=source.kind,
            target=f"{VIDEOS}/{source.remote_id}/remix",
            input_type=request.content_type,
            parameters=source.parameters,  # it will be as long and as large
            labels=source.labels | {"remixed_from_video_id": source.id},
            priority=request.priority,
            only_worker=source.worker,
            id_prefix=_ID_PREFIX.get(source.kind, "job"),
        )
        return json_answer(200, video_view(await self._jobs.submit(spec, body)), *_POLL)

    async def _list(self, request: JobRequest) -> LocalAnswer:
        query, videos = request.query, _is_video(request)
        limit = page_of(request)
        found = await self._jobs.list(
            request.tenant,
            kind=Kind.VIDEO.value if videos else "",
            after=query.get("after", ""),
            limit=limit + 1,
            oldest_first=query.get("order") == "asc",
        )
        page = [video_view(job) if videos else job_view(job) for job in found[:limit]]
        ends = {"first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None}
        return json_answer(200, {"object": "list", "data": page, "has_more": len(found) > limit, **ends})

    async def _show(self, request: JobRequest) -> LocalAnswer:
        job = await self._found(request)
        if _is_video(request):
            return json_answer(200, video_view(job), *(_POLL if job.state in ACTIVE else ()))
        position = await self._jobs.position(job) if job.state is JobState.QUEUED else None
        progress = self._progress(job.id) if self._progress is not None else None
        return json_answer(
            200, job_view(job, position, progress), *(_POLL[:1] if job.state in ACTIVE else ())
        )

    async def _cancel(self, request: JobRequest) -> LocalAnswer:
        job = await self._found(request)
        if job.state not in ACTIVE:
            raise RefusedError(409, "job_over", f"The job is {job.state.value}.")
        after = await self._jobs.cancel(job.id, request.tenant) or job
        return json_answer(202 if after.state in ACTIVE else 200, job_view(after))

    async def _delete(self, request: JobRequest) -> LocalAnswer:
        """A video is cancelled and hidden; a job is cancelled, or hidden once it is over."""
        job = await self._found(request)
        if _is_video(request):
            await self._jobs.cancel(job.id, request.tenant, delete=True)
            return json_answer(200, {"id": job.id, "object": "video.deleted", "deleted": True})
        if job.state in ACTIVE:
            return await self._cancel(request)
        await self._jobs.cancel(job.id, request.tenant, delete=True)
        return json_answer(200, {"id": job.id, "object": "job.deleted", "deleted": True})

    async def _content(self, request: JobRequest) -> LocalAnswer:
        if request.query.get("variant", "video") != "video":
            raise RefusedError(404, "no_such_variant", "Only the video itself is kept.")
        return await self._result(request)

    async def _result(self, request: JobRequest) -> LocalAnswer:
        job = await self._found(request)
        _check_done(job)
        path = self._jobs.result_path(job)
        if path is None:
            raise RefusedError(410, "result_expired", "The result is not kept any more.")
        safe = ("x-content-type-options", "nosniff")
        return LocalAnswer(200, (("content-type", job.result_type), safe), path)

    async def _found(self, request: JobRequest) -> Job:
        job = await self._jobs.find(path_id(request.endpoint, request.path), request.tenant)
        if job is None or (_is_video(request) and job.kind != Kind.VIDEO.value):
            raise RefusedError(404, "no_such_job", "There is no such job.")
        return job


def page_of(request: JobRequest) -> int:
    """The rows of a page that a request asks for. Raises RefusedError."""
    try:
        return min(max(int(request.query.get("limit", _PAGE)), 1), _MAX_PAGE)
    except ValueError:
        raise RefusedError(400, "bad_limit", "`limit` is not a number.") from None


async def guarded(work: Awaitable[LocalAnswer], request: JobRequest) -> LocalAnswer:
    """The answer of `work`, or that to what it raised."""
    try:
        return await work
    except RefusedError as refused:
        return _refusal(refused.refusal, request)
    except StoreUnavailable as error:
        return _refusal(store_away(error), request)
    except TooManyJobs as error:
        message = f"At most {error.most} unfinished jobs are allowed now."
        return _refusal(Refusal(429, "too_many_jobs", message, 10.0), request)
    except TooManyBytes as error:
        message = f"The bodies and results of jobs may take {error.most / 2**20:g} MiB; delete some."
        return _refusal(Refusal(429, "too_many_job_bytes", message, 60.0), request)


def _check_done(job: Job) -> None:
    if job.state in ACTIVE:
        raise RefusedError(409, "job_not_done", f"The job is {job.state.value}.", 1.0)
    if job.state is not JobState.DONE:
        raise RefusedError(409, f"job_{job.state.value}", job.error or f"The job is {job.state.value}.")


def _is_video(request: JobRequest) -> bool:
    return request.endpoint.kind is Kind.VIDEO


def json_answer(status: int, body: dict[str, Any], *headers: tuple[str, str]) -> LocalAnswer:
    """An answer with a JSON object."""
    return LocalAnswer(status, (_JSON, *headers), orjson.dumps(body))


def _refusal(refusal: Refusal, request: JobRequest) -> LocalAnswer:
    dialect = request.endpoint.dialect if request.endpoint.kind is not Kind.JOB else Dialect.OPENAI
    wait = (("retry-after", str(math.ceil(refusal.retry_after_s))),) if refusal.retry_after_s else ()
    return LocalAnswer(refusal.status, (_JSON, *wait), error_body(refusal, dialect))
