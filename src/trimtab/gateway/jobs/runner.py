"""Runs jobs: asks the dispatcher for a node, sends the request there, and puts the answer in a file."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import aiohttp
import orjson

from trimtab.gateway.api.usage import meter_for
from trimtab.gateway.jobs.exchange import JobExchange
from trimtab.gateway.jobs.job import VIDEOS, Delivery, Job, JobResult, State
from trimtab.gateway.jobs.results import NotKept, TooLarge
from trimtab.gateway.jobs.upstream import PIECE_BYTES, Lost, Upstream
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

_ERROR_BYTES = 4096  # of a backend's error that are kept
_CANCEL_S = 5.0
_MAX_RETRY_AFTER_S = 300.0
_BACKEND_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,254}\Z")


@dataclass(frozen=True, slots=True)
class NodeJobs:
    """What the configuration says of a node and jobs."""

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


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where the runner finds what a job names. Each may have gone since the job was accepted."""

    node: Callable[[str], Node | None]
    declared: Callable[[str], NodeJobs]  # of a node
    tenant: Callable[[str], Tenant | None]
    endpoint: Callable[[str, str], Endpoint | Refusal]  # of a method and a path


class JobDispatcher(Dispatcher, Protocol):
    """A dispatcher that also knows of work which it has not sent itself."""

    def resume(self, exchange: Exchange, node: Node) -> None:
        """It runs on this node already: it takes a place there until `abort`."""


class DispatchedRunner:
    """The `job.Runner` of the gateway: jobs go through the same dispatcher as all requests."""

    def __init__(
        self,
        dispatcher: JobDispatcher,
        around: Surroundings,
        settings: RunnerSettings | None = None,
        observers: Observers = (),
    ) -> None:
        self._dispatcher, self._around, self._observers = dispatcher, around, observers
        self._settings = settings or RunnerSettings()
        self._upstream = Upstream(self._settings.connect_s, self._settings.idle_s)

    async def close(self) -> None:
        """Close all connections, after the last job."""
        await self._upstream.close()

    async def run(self, job: Job, deliver: Delivery) -> JobResult:
        """Dispatch a job and wait for its end."""
        exchange = self._exchange(job)
        if isinstance(exchange, JobResult):
            return exchange
        self._dispatcher.submit(exchange)
        self._dispatcher.decide()
        for observer in self._observers:
            observer.arrived(exchange)
        try:
            return await self._dispatched(job, exchange, deliver)
        except BaseException:  # cancelled, or the store is away: nobody waits for it here any more
            if exchange.outcome is None:
                exchange.outcome = Outcome.CANCELLED
                self._dispatcher.abort(exchange)
            raise
        finally:
            exchange.ended_s = asyncio.get_running_loop().time()
            for observer in self._observers:
                observer.ended((exchange,))

    async def poll(self, job: Job, deliver: Delivery) -> JobResult:
        """Wait for a job that its backend knows; it is at its node already, and takes a place there."""
        node = await self._awaited(job.node)
        if node is None:
            return _gone(job.idempotent, f"node {job.node} is not there any more", self._settings.again_s)
        exchange = self._exchange(job)
        if isinstance(exchange, JobExchange):  # else its key is gone: it is looked after all the same
            exchange.start(node)
            self._dispatcher.resume(exchange, node)
        try:
            return await self._follow(node, job, job.backend_job_id, deliver, None)
        except (TooLarge, NotKept) as error:
            return _not_kept(error)
        finally:
            if isinstance(exchange, JobExchange):
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
        node = self._around.node(job.node)
        if node is None or not job.backend_job_id:
            return
        with suppress(Lost, TimeoutError):
            async with (
                asyncio.timeout(_CANCEL_S),
                self._upstream.send(node, "DELETE", f"{VIDEOS}/{job.backend_job_id}"),
            ):
                pass

    def _exchange(self, job: Job) -> JobExchange | JobResult:
        endpoint, tenant = self._around.endpoint(job.method, job.path), self._around.tenant(job.tenant)
        if isinstance(endpoint, Refusal):
            return JobResult(State.FAILED, error_code=endpoint.code, error=endpoint.message)
        if tenant is None:
            return JobResult(State.FAILED, error_code="no_tenant", error="its key is not there any more")
        if job.only_node and self._around.node(job.only_node) is None:
            return JobResult(State.QUEUED, retry_after_s=self._settings.again_s)  # it may come back
        return JobExchange(job, endpoint, tenant)

    async def _dispatched(self, job: Job, exchange: JobExchange, deliver: Delivery) -> JobResult:
        while True:
            decision = await exchange.decided()
            if isinstance(decision, Refusal):
                exchange.outcome = Outcome.REFUSED
                return self._refused(decision)
            if job.only_node not in ("", decision.name):  # that one has gone meanwhile
                exchange.outcome = Outcome.CANCELLED
                self._dispatcher.abort(exchange)
                return JobResult(State.QUEUED, retry_after_s=self._settings.again_s)
            attempt = exchange.attempts[-1]
            declared = self._around.declared(decision.name)
            if not await deliver.dispatched(decision.name, declared.idempotent):
                exchange.outcome = Outcome.CANCELLED
                self._dispatcher.abort(exchange)
                return JobResult(State.CANCELLED)
            for observer in self._observers:
                observer.started(exchange, attempt)
            result = await self._attempt(job, exchange, attempt, deliver)
            attempt.ended_s = asyncio.get_running_loop().time()
            if isinstance(result, JobResult):
                exchange.outcome = Outcome.DONE
                self._dispatcher.done((exchange,))
                return result
            attempt.cause = result
            for observer in self._observers:
                observer.lost(exchange, attempt)
            again = (
                result in (Cause.CONNECT, Cause.BUSY) and len(exchange.attempts) < self._settings.max_sends
            )
            if not again:
                exchange.outcome = Outcome.FAILED
                self._dispatcher.failed(exchange, result)
                return self._lost(attempt, result, declared)
            await deliver.returned()
            self._dispatcher.lost(exchange, result)

    def _refused(self, refusal: Refusal) -> JobResult:
        if refusal.status in (429, 503):  # the queue of jobs is on disk: it may wait there
            return JobResult(State.QUEUED, retry_after_s=max(refusal.retry_after_s, self._settings.again_s))
        return JobResult(State.FAILED, error_code=refusal.code, error=refusal.message)

    def _lost(self, attempt: Attempt, cause: Cause, declared: NodeJobs) -> JobResult:
        if cause in (Cause.CONNECT, Cause.BUSY):
            return JobResult(State.QUEUED, retry_after_s=max(attempt.retry_after_s, self._settings.again_s))
        if cause is Cause.SERVER_ERROR and not declared.idempotent:
            return JobResult(State.FAILED, error_code="backend_error", error=f"status {attempt.status}")
        return _gone(declared.idempotent, f"its backend was lost: {cause.value}", self._settings.again_s)

    async def _attempt(
        self, job: Job, exchange: JobExchange, attempt: Attempt, deliver: Delivery
    ) -> JobResult | Cause:
        try:
            async with asyncio.timeout(self._settings.total_s):
                return await self._sent(job, exchange, attempt, deliver)
        except Lost as lost:
            return lost.cause
        except TimeoutError:
            return Cause.TOTAL
        except (TooLarge, NotKept) as error:
            return _not_kept(error)

    async def _sent(
        self, job: Job, exchange: JobExchange, attempt: Attempt, deliver: Delivery
    ) -> JobResult | Cause:
        node, loop = attempt.node, asyncio.get_running_loop()
        headers = {"Content-Type": job.request_type, "X-Request-Id": job.id, "Idempotency-Key": job.id}
        with deliver.body.open("rb") as body:
            async with self._upstream.send(node, job.method, job.target, headers, body) as response:
                attempt.head_s = node.last_byte_s = loop.time()
                attempt.status = exchange.response_status = response.status
                if response.status >= 400:
                    return await _answered_error(response, attempt)
                if not (self._around.declared(node.name).has_api and job.kind == Kind.VIDEO.value):
                    return await self._saved(response, deliver, attempt, exchange)
                backend_job_id = _backend_id(await response.content.read(PIECE_BYTES))
        if not backend_job_id:
            return JobResult(State.FAILED, error_code="bad_response", error="the backend named no job")
        await deliver.attached(backend_job_id)
        return await self._follow(node, job, backend_job_id, deliver, attempt)

    async def _follow(
        self, node: Node, job: Job, backend_job_id: str, deliver: Delivery, attempt: Attempt | None
    ) -> JobResult:
        """Look at a backend's job until it is over, then fetch its result. Whatever breaks is tried again."""
        loop, pause_s = asyncio.get_running_loop(), self._settings.poll_first_s
        target, heard_s = f"{VIDEOS}/{backend_job_id}", loop.time()
        while loop.time() - heard_s < self._settings.lost_after_s:
            await asyncio.sleep(pause_s)
            pause_s = min(1.5 * pause_s, self._settings.poll_most_s)
            with suppress(Lost):
                async with self._upstream.send(node, "GET", target) as response:
                    if response.status == 404:
                        break
                    status, error = _status(await response.content.read(PIECE_BYTES), response.status)
                if status:
                    heard_s = node.last_byte_s = loop.time()
                if status in ("failed", "cancelled"):
                    return JobResult(State.FAILED, error_code="backend_failed", error=error)
                if status == "completed":
                    async with self._upstream.send(node, "GET", f"{target}/content") as response:
                        if response.status == 200:
                            return await self._saved(response, deliver, attempt, None)
        idempotent = self._around.declared(node.name).idempotent
        return _gone(idempotent, "its backend does not know it any more", self._settings.again_s)

    async def _saved(
        self,
        response: aiohttp.ClientResponse,
        deliver: Delivery,
        attempt: Attempt | None,
        exchange: JobExchange | None,
    ) -> JobResult:
        """The body goes to the result's file; usage is read on the way."""
        content_type = response.headers.get("Content-Type", "application/octet-stream")
        result, loop = deliver.result(content_type), asyncio.get_running_loop()
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
        stored = await asyncio.to_thread(result.finish)
        if exchange is not None and meter is not None:
            meter.finish()
            exchange.usage, exchange.response_bytes = meter.usage, stored.bytes
        return JobResult(State.DONE, file=stored)


def _gone(idempotent: bool, error: str, again_s: float) -> JobResult:
    if idempotent:
        return JobResult(State.QUEUED, retry_after_s=again_s)
    return JobResult(State.UNKNOWN, error_code="backend_lost", error=error)


def _not_kept(error: TooLarge | NotKept) -> JobResult:
    if isinstance(error, TooLarge):
        return JobResult(State.FAILED, error_code="result_too_large", error="the result is too large to keep")
    return JobResult(State.FAILED, error_code="result_not_kept", error=f"the result cannot be kept: {error}")


async def _answered_error(response: aiohttp.ClientResponse, attempt: Attempt) -> JobResult | Cause:
    if response.status in (429, 503):
        with suppress(ValueError):
            said_s = float(response.headers.get("Retry-After", "0"))
            attempt.retry_after_s = min(max(said_s, 0.0), _MAX_RETRY_AFTER_S)
        return Cause.BUSY
    if response.status >= 500:
        return Cause.SERVER_ERROR
    body = await response.content.read(_ERROR_BYTES)
    said = _object(body).get("error")
    message = said.get("message") if isinstance(said, dict) else None
    text = str(message or body.decode("utf-8", "replace"))[:_ERROR_BYTES].replace("\0", "")
    return JobResult(State.FAILED, error_code=f"backend_{response.status}", error=text)


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
    """A backend's word on its job ("" = none that can be understood), and its error."""
    found = _object(body) if http_status == 200 else {}
    error = found.get("error")
    message = error.get("message", "") if isinstance(error, dict) else ""
    return str(found.get("status") or ""), str(message)[:_ERROR_BYTES].replace("\0", "")
