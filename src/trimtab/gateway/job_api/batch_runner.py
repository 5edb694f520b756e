"""Runs batches: a batch is one job, whose lines go through the dispatcher as other jobs do.

What a line gave is appended to a file at once, so a batch that is resumed goes on behind the lines that it
has. A line that was at a node when the process died is sent again.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import orjson
import sqlalchemy as sa

from trimtab.gateway.api.parse_body import parse_body
from trimtab.gateway.http.request import IncomingExchange, Request
from trimtab.gateway.job_api.client_files import ClientFiles
from trimtab.gateway.job_api.job_handlers import METHOD, parameters_of
from trimtab.gateway.job_api.node_runner import NodeRunner
from trimtab.gateway.model import Facts, Refusal, Tenant
from trimtab.gateway.tenancy.admission import Admission
from trimtab.jobs import (
    Job,
    JobResult,
    JobSpec,
    JobState,
    JobStore,
    ResultFile,
    Runner,
    RunProgress,
    StoredResult,
    StoreUnavailable,
    TooLarge,
)
from trimtab.jobs.store.database import upsert
from trimtab.jobs.store.schema import batches

_MAX_ID = 512


class BatchLine(NamedTuple):
    """A request of a batch."""

    number: int  # from 1
    custom_id: str
    url: str
    body: dict[str, Any]


class BrokenLine(NamedTuple):
    """A line that cannot be sent."""

    number: int
    custom_id: str | None
    problem: str


def batch_lines(file: BinaryIO, endpoint: str) -> Iterator[BatchLine | BrokenLine]:
    """Every line that is not blank. `endpoint`: the path that the batch is for."""
    seen: dict[str, int] = {}
    for number, text in enumerate(file, start=1):
        if not text.strip():
            continue
        line = _line(number, text, endpoint)
        if isinstance(line, BatchLine):
            first = seen.setdefault(line.custom_id, number)
            if first != number:
                line = BrokenLine(number, line.custom_id, f"custom_id: line {first} has it too")
        yield line


def _line(number: int, text: bytes, endpoint: str) -> BatchLine | BrokenLine:
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return BrokenLine(number, None, f"not JSON: {error}")
    if type(found) is not dict:
        return BrokenLine(number, None, "expected a JSON object")
    custom_id, url, body = found.get("custom_id"), found.get("url"), found.get("body")
    if type(custom_id) is not str or not 0 < len(custom_id) <= _MAX_ID:
        return BrokenLine(number, None, f"custom_id: expected a text of 1 to {_MAX_ID} characters")
    if found.get("method") != "POST":
        return BrokenLine(number, custom_id, "method: expected POST")
    if url != endpoint:
        return BrokenLine(number, custom_id, f"url: expected {endpoint}, the endpoint of the batch")
    if type(body) is not dict:
        return BrokenLine(number, custom_id, "body: expected a JSON object")
    if body.get("stream"):
        return BrokenLine(number, custom_id, "body.stream: expected false")
    return BatchLine(number, custom_id, endpoint, body)


BATCH_KIND: Final = "batch"
WINDOW_S: Final = 86_400.0  # the completion window
JSON_TYPE: Final = "application/json"
_HERE: Final = "gateway"  # the worker of a batch
_COUNT_S: Final = 1.0  # between two writes of the counts
_MOST_LOST: Final = 3  # sends of one line whose node was lost on the way
_AGAIN_S: Final = 10.0  # until a batch that met a full disk goes on
_LINE_BYTES: Final = 64 << 20  # longest answer of a line


class KindRunner:
    """Gives jobs of some kinds to their runners, and all others to the runner of single requests."""

    def __init__(self, single: Runner, by_kind: Mapping[str, Runner]) -> None:
        self._single, self._by_kind = single, by_kind

    def _of(self, job: Job) -> Runner:
        return self._by_kind.get(job.kind, self._single)

    async def run(self, job: Job, progress: RunProgress) -> JobResult:
        """Run a job to its end."""
        return await self._of(job).run(job, progress)

    async def resume(self, job: Job, progress: RunProgress) -> JobResult:
        """Go on with a job."""
        return await self._of(job).resume(job, progress)

    async def cancel(self, job: Job) -> None:
        """Stop a job."""
        await self._of(job).cancel(job)


class _LineAnswer(ResultFile):
    """The answer of a line, in memory."""

    def __init__(self, content_type: str) -> None:
        super().__init__(Path("line"), content_type, _LINE_BYTES)
        self.data = bytearray()

    def write(self, data: bytes) -> None:
        """Append. Raises TooLarge."""
        self.bytes += len(data)
        if self.bytes > _LINE_BYTES:
            raise TooLarge
        self.data += data

    def finish(self) -> StoredResult:
        """Nothing is stored: the batch writes it."""
        return StoredResult("", self.content_type, self.bytes)


class _LineProgress:
    """The progress of a line is kept nowhere: the batch has a file of what is done."""

    def __init__(self, body: Path) -> None:
        self.input, self.answer = body, _LineAnswer(JSON_TYPE)

    async def started(self, worker: str, idempotent: bool) -> bool:
        return True

    async def returned(self) -> None:
        pass

    async def attached(self, remote_id: str) -> None:
        pass

    def result(self, content_type: str) -> ResultFile:
        self.answer = _LineAnswer(content_type)
        return self.answer


@dataclass(slots=True)
class _Counts:
    completed: int = 0
    failed: int = 0


class _Output:
    """The two files of a batch while it runs."""

    def __init__(self, folder: Path, job_id: str) -> None:
        self.good, self.bad = folder / f"{job_id}.output.jsonl", folder / f"{job_id}.errors.jsonl"
        self.done: set[str] = set()  # custom ids
        self.broken: set[int] = set()  # line numbers
        self.counts = _Counts()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in (self.good, self.bad):
            self._read(path)

    def _read(self, path: Path) -> None:
        """Learn what is done; a record that a crash has cut off is removed."""
        if not path.exists():
            return
        whole = 0
        with path.open("rb") as file:
            for text in file:
                if not text.endswith(b"\n"):
                    break
                whole += len(text)
                self._note(orjson.loads(text), path == self.good)
        os.truncate(path, whole)

    def _note(self, record: dict[str, Any], is_good: bool) -> None:
        line = (record["error"] or {}).get("line")
        if line is not None:
            self.broken.add(line)
        elif record["custom_id"] is not None:
            self.done.add(record["custom_id"])
        if is_good:
            self.counts.completed += 1
        else:
            self.counts.failed += 1

    def write(self, record: dict[str, Any], *, is_good: bool) -> None:
        """Append what a line gave. Raises OSError."""
        with (self.good if is_good else self.bad).open("ab") as file:
            file.write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))
        self._note(record, is_good)


class BatchRunner:
    """The runner of batches."""

    def __init__(
        self,
        store: JobStore,
        lines: NodeRunner,
        files: ClientFiles,
        folder: Path,
        admission: Admission,
        tenant: Callable[[str], Tenant | None],
        *,
        concurrency: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`lines`: runs single requests; `folder`: of what running batches have so far."""
        self._store, self._lines, self._files = store, lines, files
        self._folder, self._admission, self._tenant = folder, admission, tenant
        self._concurrency, self._clock = concurrency, clock

    async def run(self, job: Job, progress: RunProgress) -> JobResult:
        """Run a batch from its first line."""
        if not await progress.started(_HERE, idempotent=True):
            return JobResult(JobState.CANCELLED)
        await progress.attached(job.id)  # so that another process resumes it
        return await self.resume(job, progress)

    async def resume(self, job: Job, progress: RunProgress) -> JobResult:
        """Run the lines that have no result yet."""
        try:
            output = await asyncio.to_thread(_Output, self._folder, job.id)
            counting = asyncio.create_task(self._count(job.id, output.counts))
            try:
                await self._all(job, progress.input, output)
            finally:
                counting.cancel()
                await asyncio.gather(counting, return_exceptions=True)
            await self._end(job, output)
        except OSError:
            return JobResult(JobState.QUEUED, retry_after_s=_AGAIN_S)
        return JobResult(JobState.DONE)

    async def cancel(self, job: Job) -> None:
        """Its tenant gets what is done. Never raises."""
        with suppress(OSError, StoreUnavailable):
            await self._end(job, await asyncio.to_thread(_Output, self._folder, job.id))

    async def _all(self, job: Job, path: Path, output: _Output) -> None:
        with path.open("rb") as file:
            lines = (one for one in batch_lines(file, job.target) if not _is_done(one, output))
            try:
                async with asyncio.TaskGroup() as tasks:
                    for _ in range(self._concurrency):
                        tasks.create_task(self._some(job, lines, output))
            except* OSError as errors:
                raise OSError(str(errors.exceptions[0])) from None

    async def _some(self, job: Job, lines: Iterator[BatchLine | BrokenLine], output: _Output) -> None:
        for line in lines:
            if isinstance(line, BrokenLine):
                message = f"line {line.number}: {line.problem}"
                error = {"code": "invalid_line", "message": message, "line": line.number}
                output.write(_record("", line.custom_id, None, error), is_good=False)
            else:
                record, is_good = await self._sent(job, line)
                output.write(record, is_good=is_good)
            await asyncio.sleep(0)

    async def _sent(self, job: Job, line: BatchLine) -> tuple[dict[str, Any], bool]:
        """The record of a line, and whether its answer is a good one."""
        lost = 0
        while True:
            found = await self._line_job(job, line)
            if isinstance(found, Refusal):
                return _refused(line, found), False
            one, body = found
            path = self._folder / f"{one.id}.body"
            path.write_bytes(body)
            progress = _LineProgress(path)
            try:
                result = await self._lines.run(one, progress)
            finally:
                path.unlink(missing_ok=True)
            if result.state is JobState.DONE:
                answer = {"status_code": 200, "request_id": one.id, "body": _json_of(progress.answer.data)}
                return _record(one.id, line.custom_id, answer, None), True
            lost += result.state is JobState.UNKNOWN
            if result.state is JobState.QUEUED or (result.state is JobState.UNKNOWN and lost < _MOST_LOST):
                await asyncio.sleep(max(result.retry_after_s, 0.1))
                continue
            return _failed(line, one.id, result), False

    async def _line_job(self, job: Job, line: BatchLine) -> tuple[Job, bytes] | Refusal:
        """The job of a line, once its tenant's limits admit it; or why it cannot run."""
        endpoint, tenant = self._admission.endpoints.find(METHOD, line.url), self._tenant(job.tenant)
        if isinstance(endpoint, Refusal):
            return endpoint
        if tenant is None:
            return Refusal(401, "no_tenant", "The key of this batch is not there any more.")
        exchange = IncomingExchange(Request(0))
        exchange.request.content_type, exchange.endpoint, exchange.id = JSON_TYPE, endpoint, line.custom_id
        exchange.body = orjson.dumps(line.body)
        facts = parse_body(endpoint, JSON_TYPE, exchange.body)
        if not isinstance(facts, Refusal):
            facts = self._admission.meant(exchange, facts)
        if isinstance(facts, Refusal):
            return facts
        refusal = await self._admitted(job, tenant, facts, exchange.route)
        if refusal is not None:
            return refusal
        spec = JobSpec(
            tenant=job.tenant,
            queue=facts.model,
            kind=endpoint.kind.value,
            target=line.url,
            input_type=JSON_TYPE,
            parameters=parameters_of(facts),
            priority=job.priority,
            id_prefix="batch_req",
        )
        return spec.queued("", self._clock()), exchange.body

    async def _admitted(self, job: Job, tenant: Tenant, facts: Facts, route: str) -> Refusal | None:
        """Wait for room in the tenant's limits. A refusal: it may not, or the window is over."""
        while True:
            if self._clock() > job.created_s + WINDOW_S:
                return Refusal(408, "batch_expired", "The batch's completion window is over.")
            if tenant.rules is not None and (barred := tenant.rules.refusal(facts.model, route)) is not None:
                refused: Refusal = barred
                return refused
            if tenant.limits is None:
                return None
            now_s, tokens = asyncio.get_running_loop().time(), self._admission.tokens(facts)
            wait: Refusal | None = tenant.limits.admit(now_s, tokens)
            if wait is None:
                tenant.limits.release()  # the runner counts it while it runs
                return None
            await asyncio.sleep(wait.retry_after_s)

    async def _count(self, batch_id: str, counts: _Counts) -> None:
        while True:
            await asyncio.sleep(_COUNT_S)
            with suppress(StoreUnavailable):
                await self._write(batch_id, completed=counts.completed, failed=counts.failed)

    async def _end(self, job: Job, output: _Output) -> None:
        """Make files of what it has, and write its last counts. Raises OSError, StoreUnavailable."""
        ids: dict[str, Any] = {}
        for name, path in (("output", output.good), ("error", output.bad)):
            file_id = f"file-{job.id.removeprefix('batch_')}{name[0]}"
            if path.exists() or self._files.has(file_id):
                await self._files.adopt(file_id, job.tenant, f"{job.id}_{name}.jsonl", path)
                ids[f"{name}_file_id"] = file_id
        counts = output.counts
        if counts.completed or counts.failed:  # else it has ended before, and its files are there
            ids |= {"completed": counts.completed, "failed": counts.failed}
        await self._write(job.id, **ids)

    async def _write(self, batch_id: str, **values: Any) -> None:
        fresh = {"created_s": self._clock(), "completed": 0, "failed": 0}
        row = {"id": batch_id, **fresh, "output_file_id": "", "error_file_id": ""} | values

        def write(connection: sa.Connection) -> None:
            insert = upsert(connection, batches).values(row)
            change = insert.on_conflict_do_update(index_elements=[batches.c.id], set_=values)
            connection.execute(change if values else insert.on_conflict_do_nothing())

        await self._store.write(write)


def _is_done(line: BatchLine | BrokenLine, output: _Output) -> bool:
    if isinstance(line, BrokenLine):
        return line.number in output.broken
    return line.custom_id in output.done


def _record(
    request_id: str, custom_id: str | None, response: dict[str, Any] | None, error: dict[str, Any] | None
) -> dict[str, Any]:
    return {"id": request_id, "custom_id": custom_id, "response": response, "error": error}


def _refused(line: BatchLine, refusal: Refusal) -> dict[str, Any]:
    message = f"line {line.number}: {refusal.message}"
    error = {"message": message, "code": refusal.code, "param": refusal.param}
    answer = {"status_code": refusal.status, "request_id": "", "body": {"error": error}}
    return _record("", line.custom_id, answer, None)


def _failed(line: BatchLine, request_id: str, result: JobResult) -> dict[str, Any]:
    message = f"line {line.number}: {result.error}"
    status = result.error_code.removeprefix("backend_")
    if status.isdigit():
        body = {"error": {"message": message, "code": result.error_code}}
        answer = {"status_code": int(status), "request_id": request_id, "body": body}
        return _record(request_id, line.custom_id, answer, None)
    return _record(request_id, line.custom_id, None, {"code": result.error_code, "message": message})


def _json_of(data: bytes | bytearray) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return data.decode("utf-8", "replace")
