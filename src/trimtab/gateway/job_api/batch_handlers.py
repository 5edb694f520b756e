"""The endpoints of files and batches: /v1/files… and /v1/batches…, in the form of OpenAI's API."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import sqlalchemy as sa

from trimtab.gateway.api.endpoints import Endpoints, path_id
from trimtab.gateway.api.multipart import MultipartScan, Part, boundary_of
from trimtab.gateway.config.maintenance import BatchesSpec
from trimtab.gateway.config.traffic import MIB
from trimtab.gateway.http.connection_context import LocalAnswer
from trimtab.gateway.http.proxied_exchange import ProxiedExchange
from trimtab.gateway.job_api.batch_runner import BATCH_KIND, WINDOW_S
from trimtab.gateway.job_api.client_files import ClientFile, ClientFiles
from trimtab.gateway.job_api.job_handlers import (
    METHOD,
    JobRequest,
    RefusedError,
    guarded,
    json_answer,
    page_of,
)
from trimtab.gateway.model import Kind, Refusal
from trimtab.jobs import ACTIVE, Job, JobFiles, JobQueue, JobSpec, JobState, JobStore
from trimtab.jobs.store.schema import batches
from trimtab.words import counted

_WINDOW = "24h"
_PIECE_BYTES = 1 << 20
_MOST_METADATA = 16
_FORMS = (Kind.TRANSCRIPTION,)  # kinds whose requests are forms, not JSON
_STATUS = {
    JobState.QUEUED: "validating",
    JobState.DISPATCHED: "in_progress",
    JobState.DONE: "completed",
    JobState.CANCELLED: "cancelled",
}


class BatchApi:
    """Answers requests for files and batches. A tenant finds its own only."""

    def __init__(
        self, store: JobStore, jobs: JobQueue, files: ClientFiles, inputs: JobFiles, settings: BatchesSpec
    ) -> None:
        """`inputs`: where the inputs of jobs are staged."""
        self._store, self._jobs, self._files, self._inputs = store, jobs, files, inputs
        self._settings, self._endpoints = settings, Endpoints()
        self._handlers: dict[tuple[str, str], Callable[[JobRequest], Awaitable[LocalAnswer]]] = {
            ("GET", "/v1/files"): self._list_files,
            ("GET", "/v1/files/{id}"): self._show_file,
            ("DELETE", "/v1/files/{id}"): self._delete_file,
            ("GET", "/v1/files/{id}/content"): self._content,
            ("GET", "/v1/batches"): self._list,
            ("GET", "/v1/batches/{id}"): self._show,
            ("POST", "/v1/batches/{id}/cancel"): self._cancel,
        }

    async def answer(self, exchange: ProxiedExchange, body: bytes) -> LocalAnswer:
        """Any request for these paths."""
        endpoint, tenant = exchange.endpoint, exchange.tenant
        assert endpoint is not None
        assert tenant is not None
        method = "GET" if exchange.method == "HEAD" else exchange.method
        request = JobRequest(
            method, exchange.target.decode(), endpoint, tenant.name, exchange.request.content_type,
            priority=exchange.priority,
        )  # fmt: skip
        if (method, endpoint.path) == ("POST", "/v1/files"):
            return await guarded(self._upload(request, exchange, body), request)
        if (method, endpoint.path) == ("POST", "/v1/batches"):
            return await guarded(self._create(request, exchange, body), request)
        return await guarded(self._handlers[method, endpoint.path](request), request)

    # --- files

    async def _upload(self, request: JobRequest, exchange: ProxiedExchange, body: bytes) -> LocalAnswer:
        boundary = boundary_of(request.content_type)
        if boundary is None:
            raise RefusedError(400, "invalid_form", "Expected multipart/form-data with purpose and file.")
        scan, spooled = MultipartScan(boundary), exchange.request.body.spooled
        if spooled:
            await exchange.request.body.show(scan)
        else:
            scan.feed(body)
        if scan.problem or not scan.done:
            raise RefusedError(400, "invalid_form", scan.problem or "The form has no end.")
        parts = {part.name: part for part in scan.parts}
        purpose, file = parts.get("purpose"), parts.get("file")
        if purpose is None or purpose.text != "batch":
            raise RefusedError(400, "invalid_purpose", "purpose: expected batch.")
        if file is None or not file.is_file or not file.size:
            raise RefusedError(400, "invalid_file", "file: expected a file that is not empty.")
        most = int(self._settings.max_file_mib * MIB)
        if file.size > most:
            raise RefusedError(413, "file_too_large", f"file: expected at most {most} bytes.")
        add = partial(self._files.add, request.tenant, "batch", file.filename or "upload.jsonl")
        if spooled:
            with exchange.request.body.file() as source:
                kept = await add(_cut(source.read, file), file.size)
        else:
            kept = await add(iter((body[file.at : file.at + file.size],)), file.size)
        return json_answer(200, kept.shown())

    async def _list_files(self, request: JobRequest) -> LocalAnswer:
        limit, query = page_of(request), request.query
        found = await self._files.list(
            request.tenant,
            purpose=query.get("purpose", ""),
            after=query.get("after", ""),
            limit=limit + 1,
            oldest_first=query.get("order") == "asc",
        )
        return _page([file.shown() for file in found], limit)

    async def _show_file(self, request: JobRequest) -> LocalAnswer:
        return json_answer(200, (await self._file(request)).shown())

    async def _delete_file(self, request: JobRequest) -> LocalAnswer:
        file = await self._file(request)
        await self._files.delete(file)
        return json_answer(200, {"id": file.id, "object": "file", "deleted": True})

    async def _content(self, request: JobRequest) -> LocalAnswer:
        headers = (("content-type", "application/jsonl"), ("x-content-type-options", "nosniff"))
        return LocalAnswer(200, headers, self._files.path(await self._file(request)))

    async def _file(self, request: JobRequest) -> ClientFile:
        file = await self._files.find(path_id(request.endpoint, request.path), request.tenant)
        if file is None:
            raise RefusedError(404, "no_such_file", "There is no such file.")
        return file

    # --- batches

    async def _create(self, request: JobRequest, exchange: ProxiedExchange, body: bytes) -> LocalAnswer:
        asked = _object(body)
        endpoint = self._endpoint(asked.get("endpoint"))
        if asked.get("completion_window") != _WINDOW:
            raise RefusedError(400, "invalid_window", f"completion_window: expected {_WINDOW}.")
        metadata = _metadata(asked.get("metadata"))
        file_id = asked.get("input_file_id")
        file = await self._files.find(file_id, request.tenant) if type(file_id) is str else None
        if file is None or file.purpose != "batch":
            raise RefusedError(400, "invalid_file", "input_file_id: expected a file with the purpose batch.")
        tenant = exchange.tenant
        if tenant is not None and tenant.rules is not None and tenant.rules.spent is not None:
            raise RefusedError(429, tenant.rules.spent.code, tenant.rules.spent.message)
        path = self._files.path(file)
        if not path.exists():
            raise RefusedError(409, "file_elsewhere", "input_file_id: another replica's folder has the file.")
        total = await asyncio.to_thread(_count_lines, path)
        if not 0 < total <= self._settings.max_lines:
            expected = f"expected 1 to {self._settings.max_lines} lines"
            raise RefusedError(
                400, "invalid_file", f"input_file_id: it has {counted(total, 'line')}; {expected}."
            )
        spec = JobSpec(
            tenant=request.tenant,
            queue=BATCH_KIND,
            kind=BATCH_KIND,
            target=endpoint,
            input_type="application/jsonl",
            parameters={"input_file_id": file.id, "metadata": metadata, "total": total},
            priority=request.priority,
            id_prefix="batch",
        )
        staged = await asyncio.to_thread(self._staged, path)
        try:
            job = await self._jobs.submit(spec, staged)
        finally:
            self._inputs.drop_staged(staged)
        return json_answer(200, await self._view(job))

    def _staged(self, path: Path) -> Any:
        with path.open("rb") as file:
            return self._inputs.stage_input(file)

    def _endpoint(self, path: object) -> str:
        found = self._endpoints.find(METHOD, path) if type(path) is str else None
        if found is None or isinstance(found, Refusal) or not found.replayable or found.kind in _FORMS:
            expected = "endpoint: expected a path such as /v1/chat/completions or /v1/embeddings."
            raise RefusedError(400, "invalid_endpoint", expected)
        return found.path

    async def _list(self, request: JobRequest) -> LocalAnswer:
        limit = page_of(request)
        after = request.query.get("after", "")
        found = await self._jobs.list(request.tenant, kind=BATCH_KIND, after=after, limit=limit + 1)
        return _page([await self._view(job) for job in found], limit)

    async def _show(self, request: JobRequest) -> LocalAnswer:
        return json_answer(200, await self._view(await self._found(request)))

    async def _cancel(self, request: JobRequest) -> LocalAnswer:
        job = await self._found(request)
        if job.state not in ACTIVE:
            raise RefusedError(409, "batch_over", "The batch has ended.")
        return json_answer(200, await self._view(await self._jobs.cancel(job.id, request.tenant) or job))

    async def _found(self, request: JobRequest) -> Job:
        job = await self._jobs.find(path_id(request.endpoint, request.path), request.tenant)
        if job is None or job.kind != BATCH_KIND:
            raise RefusedError(404, "no_such_batch", "There is no such batch.")
        return job

    async def _view(self, job: Job) -> dict[str, Any]:
        query = sa.select(batches).where(batches.c.id == job.id)
        row = await self._store.read(lambda connection: connection.execute(query).first())
        return _view(job, {} if row is None else dict(row._mapping))


def _view(job: Job, row: dict[str, Any]) -> dict[str, Any]:
    """A batch in OpenAI's form."""
    status = _STATUS.get(job.state, "failed")
    if job.state in ACTIVE and job.cancel_requested:
        status = "cancelling"
    ended_at = None if job.ended_s is None else int(job.ended_s)
    failed = {"object": "list", "data": [{"code": job.error_code, "message": job.error}]}
    counts = {"total": job.parameters["total"]} | {name: row.get(name, 0) for name in ("completed", "failed")}
    return {
        "id": job.id,
        "object": "batch",
        "endpoint": job.target,
        "errors": failed if status == "failed" else None,
        "input_file_id": job.parameters["input_file_id"],
        "completion_window": _WINDOW,
        "status": status,
        "output_file_id": row.get("output_file_id") or None,
        "error_file_id": row.get("error_file_id") or None,
        "created_at": int(job.created_s),
        "in_progress_at": None if job.dispatched_s is None else int(job.dispatched_s),
        "expires_at": int(job.created_s + WINDOW_S),
        "completed_at": ended_at if status == "completed" else None,
        "failed_at": ended_at if status == "failed" else None,
        "cancelled_at": ended_at if status == "cancelled" else None,
        "request_counts": counts,
        "metadata": job.parameters["metadata"],
    }


def _page(rows: list[dict[str, Any]], limit: int) -> LocalAnswer:
    page = rows[:limit]
    ends = {"first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None}
    return json_answer(200, {"object": "list", "data": page, "has_more": len(rows) > limit, **ends})


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RefusedError(400, "invalid_json", f"The body is not JSON: {error}.") from None
    if type(found) is not dict:
        raise RefusedError(400, "invalid_json", "The body is not a JSON object.")
    return found


def _metadata(given: object) -> dict[str, str] | None:
    if given is None:
        return None
    texts = type(given) is dict and all(type(value) is str for value in given.values())
    if not texts or len(given) > _MOST_METADATA:  # type: ignore[arg-type]
        message = f"metadata: expected an object of at most {_MOST_METADATA} texts."
        raise RefusedError(400, "invalid_metadata", message)
    return given  # type: ignore[return-value]


def _count_lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for text in file if text.strip())


def _cut(read: Callable[[int], bytes], part: Part) -> Iterator[bytes]:
    """The content of a part of a long body."""
    at = 0
    while at < part.at + part.size and (piece := read(_PIECE_BYTES)):
        start, end = max(0, part.at - at), min(len(piece), part.at + part.size - at)
        if start < end:
            yield piece[start:end]
        at += len(piece)
