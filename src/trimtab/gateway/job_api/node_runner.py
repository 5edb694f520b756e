"""Runs jobs: asks the dispatcher for a node, sends the request there, and puts the answer in a file."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import aiohttp
import orjson

from trimtab.gateway.api.usage import meter_for
from trimtab.gateway.job_api.job_exchange import JobExchange
from trimtab.gateway.job_api.job_handlers import METHOD, VIDEOS
from trimtab.gateway.job_api.node_client import PIECE_BYTES, Lost, NodeClient
from trimtab.gateway.model import (
    Attempt,
    Cause,
    Dispatcher,
    Endpoint,
    Exchange,
    Kind,
    Node,
    Observers,
    Outcome,
    Refusal,
    Tenant,
)
from trimtab.gateway.nodes.node_state import cause_of_status, says_overloaded
from trimtab.jobs import Job, JobResult, JobState, NotKept, ResultFile, RunProgress, StoredResult, TooLarge

logger = logging.getLogger(__name__)

_ERROR_BYTES = 4096  # of a backend's error that are kept
_CANCEL_S = 5.0
_MAX_RETRY_AFTER_S = 300.0
_BACKEND_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,254}\Z")


@dataclass(frozen=True, slots=True)
class NodeJobs:
    """The settings of a node for jobs."""

    has_api: bool = False  # it has OpenAI's /v1/videos: create, poll, content
    idempotent: bool = False  # a job may run twice


@dataclass(frozen=True, slots=True)
class RunnerSettings:
    """Times, and how often another node is tried at once."""

    connect_s: float = 5.0
    idle_s: float = 3600.0  # without a byte; a video's answer begins when the video is made
    total_s: float = 6 * 3600.0
    poll_first_s: float = 0.5  # between looks at a backend's job, growing
    poll_most_s: float = 10.0
    node_s: float = 60.0  # a job's node that is not there at a start may still be discovered
    lost_after_s: float = 600.0  # a backend that has not answered for so long has lost its job
    max_sends: int = 3
    again_s: float = 2.0  # until a job that no node took is tried again
    full_disk_s: float = 600.0  # how long a short result waits for room on the disk


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Finds the things that a job names. Each may have gone since the job was accepted."""

    node: Callable[[str], Node | None]
    declared: Callable[[str], NodeJobs]  # of a node
    tenant: Callable[[str], Tenant | None]
    endpoint: Callable[[str, str], Endpoint | Refusal]  # of a method and a path


class JobDispatcher(Dispatcher, Protocol):
    """A dispatcher that also counts work which it has not sent itself."""

    def resume(self, exchange: Exchange, node: Node) -> None:
        """Take a place on this node, where the exchange runs already, until `abort`."""


class NodeRunner:
    """The `Runner` of the gateway: jobs go through the same dispatcher as all requests."""

    def __init__(
        self,
        dispatcher: JobDispatcher,
        around: Surroundings,
        settings: RunnerSettings | None = None,
        observers: Observers = (),
    ) -> None:
        self._dispatcher, self._around, self._observers = dispatcher, around, observers
        self._settings = settings or RunnerSettings()
        self._upstream = NodeClient(self._settings.connect_s, self._settings.idle_s)

    async def close(self) -> None:
        """Close all connections, after the last job."""
        await self._upstream.close()

    async def run(self, job: Job, progress: RunProgress) -> JobResult:
        """Dispatch a job and wait for its end."""
        exchange = self._exchange(job)
        if isinstance(exchange, JobResult):
            return exchange
        self._dispatcher.submit(exchange)
        self._dispatcher.decide()
        for observer in self._observers:
            observer.arrived(exchange)
        exchange.count_begin()
        try:
            return await self._dispatched(job, exchange, progress)
        except BaseException:  # cancelled, or the store is away: this process has given the job up
            if exchange.outcome is None:
                exchange.outcome = Outcome.CANCELLED
                self._dispatcher.abort(exchange)
            raise
        finally:
            exchange.count_end()
            exchange.ended_s = asyncio.get_running_loop().time()
            for observer in self._observers:
                observer.ended((exchange,))

    async def resume(self, job: Job, progress: RunProgress) -> JobResult:
        """Wait for a job that its backend knows; it is at its node already, and takes a place there."""
        node = await self._awaited(job.worker)
        if node is None:
            return _gone(job.idempotent, f"node {job.worker} is not there any more", self._settings.again_s)
        exchange = self._exchange(job)
        if isinstance(exchange, JobExchange):  # else its key is gone: it is looked after all the same
            exchange.start(node)
            self._dispatcher.resume(exchange, node)
            exchange.count_begin()
        try:
            return await self._follow(node, job, job.remote_id, progress, None)
        except (TooLarge, NotKept) as error:
            return _not_kept(error)
        finally:
            if isinstance(exchange, JobExchange):
                exchange.count_end()
                self._dispatcher.abort(exchange)  # not `done`: how long it has taken is not known here

    async def _awaited(self, name: str) -> Node | None:
        """A node that may not have been discovered yet."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self._settings.node_s
        while (node := self._around.node(name)) is None and loop.time() < end_s:
            await asyncio.sleep(self._settings.poll_first_s)
        return node

    async def cancel(self, job: Job) -> None:
        """Delete the backend's own job, if it has one."""
        node = self._around.node(job.worker)
        if node is None or not job.remote_id:
            return
        with suppress(Lost, TimeoutError):
            async with (
                asyncio.timeout(_CANCEL_S),
                self._upstream.send(node, "DELETE", f"{VIDEOS}/{job.remote_id}"),
            ):
                pass

    def _exchange(self, job: Job) -> JobExchange | JobResult:
        endpoint, tenant = (
            self._around.endpoint(METHOD, job.target.partition("?")[0]),
            self._around.tenant(job.tenant),
        )
        if isinstance(endpoint, Refusal):
            return _failed(endpoint.code, endpoint.message)
        if tenant is None:
            return _failed("no_tenant", "its key is not there any more")
        if job.only_worker and self._around.node(job.only_worker) is None:
            return _again(self._settings.again_s)  # it may come back
        return JobExchange(job, endpoint, tenant)

    async def _dispatched(self, job: Job, exchange: JobExchange, progress: RunProgress) -> JobResult:
        while True:
            decision = await exchange.decided()
            if isinstance(decision, Refusal):
                exchange.outcome = Outcome.REFUSED
                return self._refused(decision)
            if job.only_worker not in ("", decision.name):  # that one has gone meanwhile
                exchange.outcome = Outcome.CANCELLED
                self._dispatcher.abort(exchange)
                return _again(self._settings.again_s)
            attempt = exchange.attempts[-1]
            declared = self._around.declared(decision.name)
            if not await progress.started(decision.name, declared.idempotent):
                exchange.outcome = Outcome.CANCELLED
                self._dispatcher.abort(exchange)
                return JobResult(JobState.CANCELLED)
            for observer in self._observers:
                observer.started(exchange, attempt)
            result = await self._attempt(job, exchange, attempt, progress)
            attempt.ended_s = asyncio.get_running_loop().time()
            if isinstance(result, JobResult):
                exchange.outcome = Outcome.DONE
                self._dispatcher.done((exchange,))
                return result
            attempt.cause = result
            for observer in self._observers:
                observer.lost(exchange, attempt)
            again = (
                result in (Cause.CONNECT, Cause.BUSY, Cause.LOAD)
                and len(exchange.attempts) < self._settings.max_sends
            )
            if not again:
                exchange.outcome = Outcome.FAILED
                self._dispatcher.failed(exchange, result)
                return self._lost(attempt, result, declared)
            await progress.returned()
            self._dispatcher.lost(exchange, result)

    def _refused(self, refusal: Refusal) -> JobResult:
        if refusal.status in (429, 503):  # the queue of jobs is on disk: it may wait there
            return JobResult(
                JobState.QUEUED, retry_after_s=max(refusal.retry_after_s, self._settings.again_s)
            )
        return _failed(refusal.code, refusal.message)

    def _lost(self, attempt: Attempt, cause: Cause, declared: NodeJobs) -> JobResult:
        if cause in (Cause.CONNECT, Cause.BUSY, Cause.RATE_LIMITED, Cause.LOAD):
            return JobResult(
                JobState.QUEUED, retry_after_s=max(attempt.retry_after_s, self._settings.again_s)
            )
        if cause is Cause.SERVER_ERROR and not declared.idempotent:
            return _failed("backend_error", f"status {attempt.status}")
        return _gone(declared.idempotent, f"its backend was lost: {cause.value}", self._settings.again_s)

    async def _attempt(
        self, job: Job, exchange: JobExchange, attempt: Attempt, progress: RunProgress
    ) -> JobResult | Cause:
        loader, facts = attempt.node.loader, exchange.facts
        missing = (
            loader.missing(attempt.node, facts.model) if loader is not None and facts is not None else []
        )
        if missing and not await loader.bring(attempt.node, missing):
            return Cause.LOAD
        try:
            async with asyncio.timeout(self._settings.total_s):
                return await self._sent(job, exchange, attempt, progress)
        except Lost as lost:
            return lost.cause
        except TimeoutError:
            return Cause.TOTAL
        except (TooLarge, NotKept) as error:
            return _not_kept(error)

    async def _sent(
        self, job: Job, exchange: JobExchange, attempt: Attempt, progress: RunProgress
    ) -> JobResult | Cause:
        node, loop = attempt.node, asyncio.get_running_loop()
        headers = {"Content-Type": job.input_type, "X-Request-Id": job.id, "Idempotency-Key": job.id}
        with progress.input.open("rb") as body:
            async with self._upstream.send(node, METHOD, job.target, headers, body) as response:
                attempt.head_s = node.last_byte_s = loop.time()
                attempt.status = exchange.response_status = response.status
                if response.status >= 400:
                    return await _answered_error(response, attempt)
                if not (self._around.declared(node.name).has_api and job.kind == Kind.VIDEO.value):
                    return await self._saved(response, progress, attempt, exchange)
                remote_id = _backend_id(await response.content.read(PIECE_BYTES))
        if not remote_id:
            return _failed("bad_response", "the backend named no job")
        await progress.attached(remote_id)
        return await self._follow(node, job, remote_id, progress, attempt)

    async def _follow(
        self, node: Node, job: Job, remote_id: str, progress: RunProgress, attempt: Attempt | None
    ) -> JobResult:
        """Look at a backend's job until it is over, then fetch its result. Whatever breaks is tried again."""
        loop, pause_s = asyncio.get_running_loop(), self._settings.poll_first_s
        target, last_response_s = f"{VIDEOS}/{remote_id}", loop.time()
        while loop.time() - last_response_s < self._settings.lost_after_s:
            await asyncio.sleep(pause_s)
            pause_s = min(1.5 * pause_s, self._settings.poll_most_s)
            with suppress(Lost):
                async with self._upstream.send(node, "GET", target) as response:
                    if response.status == 404:
                        break
                    status, error = _status(await response.content.read(PIECE_BYTES), response.status)
                if status:
                    last_response_s = node.last_byte_s = loop.time()
                if status in ("failed", "cancelled"):
                    return _failed("backend_failed", error)
                if status == "completed":
                    async with self._upstream.send(node, "GET", f"{target}/content") as response:
                        if response.status == 200:
                            return await self._saved(response, progress, attempt, None)
        idempotent = self._around.declared(node.name).idempotent
        return _gone(idempotent, "its backend does not know it any more", self._settings.again_s)

    async def _saved(
        self,
        response: aiohttp.ClientResponse,
        progress: RunProgress,
        attempt: Attempt | None,
        exchange: JobExchange | None,
    ) -> JobResult:
        """The body goes to the result's file; usage is read on the way."""
        content_type = response.headers.get("Content-Type", "application/octet-stream")
        result, loop = progress.result(content_type), asyncio.get_running_loop()
        meter = meter_for(exchange.endpoint, content_type) if exchange and exchange.endpoint else None
        async for piece in response.content.iter_chunked(PIECE_BYTES):
            if attempt is not None:
                attempt.node.last_byte_s = loop.time()
                attempt.first_byte_s = attempt.first_byte_s or loop.time()
            chunks = meter.feed(piece) if meter else 0
            if exchange is not None and chunks:
                exchange.streamed_chunks += chunks
                self._dispatcher.progress(exchange, chunks)
            result.write(piece)
        stored = await self._finished(result)
        if exchange is not None and meter is not None:
            meter.finish()
            exchange.usage, exchange.response_bytes = meter.usage, stored.bytes
        return JobResult(JobState.DONE, file=stored)

    async def _finished(self, result: ResultFile) -> StoredResult:
        """Store a result. While the disk is full a short one waits in memory. Raises NotKept."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self._settings.full_disk_s
        while True:
            try:
                return await asyncio.to_thread(result.finish)
            except NotKept as error:
                if not result.is_short or loop.time() >= end_s:
                    raise
                logger.warning("the result of job %s cannot be stored yet: %s", result.path.name, error)
            await asyncio.sleep(self._settings.again_s)


def _failed(code: str, error: str) -> JobResult:
    return JobResult(JobState.FAILED, error_code=code, error=error)


def _again(after_s: float) -> JobResult:
    return JobResult(JobState.QUEUED, retry_after_s=after_s)


def _gone(idempotent: bool, error: str, again_s: float) -> JobResult:
    if idempotent:
        return _again(again_s)
    return JobResult(JobState.UNKNOWN, error_code="backend_lost", error=error)


def _not_kept(error: TooLarge | NotKept) -> JobResult:
    if isinstance(error, TooLarge):
        return JobResult(
            JobState.FAILED, error_code="result_too_large", error="the result is too large to keep"
        )
    return JobResult(
        JobState.FAILED, error_code="result_not_kept", error=f"the result cannot be kept: {error}"
    )


async def _answered_error(response: aiohttp.ClientResponse, attempt: Attempt) -> JobResult | Cause:
    cause = cause_of_status(response.status, attempt.node)
    if cause in (Cause.BUSY, Cause.RATE_LIMITED):
        with suppress(ValueError):
            delay_s = float(response.headers.get("Retry-After", "0"))
            attempt.retry_after_s = min(max(delay_s, 0.0), _MAX_RETRY_AFTER_S)
    body = await response.content.read(_ERROR_BYTES)
    if cause is not None:
        return Cause.BUSY if cause is Cause.RATE_LIMITED and says_overloaded(body) else cause
    error = _object(body).get("error")
    message = error.get("message") if isinstance(error, dict) else None
    text = str(message or body.decode("utf-8", "replace"))[:_ERROR_BYTES].replace("\0", "")
    return _failed(f"backend_{response.status}", text)


def _object(body: bytes) -> dict[str, object]:
    try:
        found = orjson.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _backend_id(body: bytes) -> str:
    found = _object(body).get("id")
    return found if isinstance(found, str) and _BACKEND_ID.match(found) else ""


def _status(body: bytes, http_status: int) -> tuple[str, str]:
    """The status that a backend reports for its job ("" = no valid one), and its error."""
    found = _object(body) if http_status == 200 else {}
    error = found.get("error")
    message = error.get("message", "") if isinstance(error, dict) else ""
    return str(found.get("status") or ""), str(message)[:_ERROR_BYTES].replace("\0", "")
