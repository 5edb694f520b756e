"""Reads requests for jobs: their facts, and long bodies, which lie in a file before any answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import orjson

from trimtab.gateway.api.parse_body import BodyScan, body_scan, parse_body
from trimtab.gateway.api.units import BYTES_PER_TOKEN
from trimtab.gateway.http.connection_context import LocalAnswer
from trimtab.gateway.http.proxied_exchange import ProxiedExchange
from trimtab.gateway.http.spool import Body as SpooledBody
from trimtab.gateway.http.spool import SpooledBytes
from trimtab.gateway.job_api.job_handlers import REMIX, JobRequest, store_away
from trimtab.gateway.job_api.job_views import VideoFields
from trimtab.gateway.model import Endpoint, Facts, Kind, Refusal, Tenant
from trimtab.jobs import JobFiles, JobInput, JobSettings, StagedInput, StoreUnavailable

Send = Callable[[JobRequest, JobInput], Awaitable[LocalAnswer | Refusal]]


class JobRequestReader:
    """Reads requests for jobs; long bodies go straight to the folder of the jobs."""

    def __init__(self, settings: JobSettings) -> None:
        self._files = JobFiles(settings.folder, settings.result_max_bytes)
        self._min_free_bytes = settings.min_free_bytes

    async def answer(self, exchange: ProxiedExchange, body: bytes, send: Send) -> LocalAnswer | Refusal:
        """Read a request; `send` gives it to the jobs, with the body that a node will get."""
        request = await job_request(exchange, body)
        if isinstance(request, Refusal):
            return request
        if not exchange.request.body.spooled:
            return await send(request, body if request.facts is None else exchange.body or body)
        try:
            staged = await self._staged(exchange.request.body)
        except (StoreUnavailable, OSError) as error:
            return store_away(error)
        try:
            return await send(request, staged)
        finally:
            self._files.drop_staged(staged)

    async def _staged(self, body: SpooledBody) -> StagedInput:
        self._files.demand_room(self._min_free_bytes + body.size)
        copying = asyncio.ensure_future(asyncio.to_thread(self._copied, body.file()))
        try:
            return await asyncio.shield(copying)
        except asyncio.CancelledError:  # the client has gone; the thread has not
            copying.add_done_callback(self._drop)
            raise

    def _copied(self, file: SpooledBytes) -> StagedInput:
        with file:
            return self._files.stage_input(file)

    def _drop(self, copying: asyncio.Future[StagedInput]) -> None:
        if not copying.cancelled() and copying.exception() is None:
            self._files.drop_staged(copying.result())


async def job_request(exchange: ProxiedExchange, body: bytes) -> JobRequest | Refusal:
    """A request about jobs, or one that is to become a job. `body` is empty where it was spooled."""
    endpoint, tenant = exchange.endpoint, exchange.tenant
    assert endpoint is not None
    assert tenant is not None
    content_type = exchange.request.headers.get(b"content-type", b"").decode("latin-1")
    spooled, facts, shown = exchange.request.body.spooled, None, {}
    if exchange.method == "POST" and (body or spooled) and "{id}" not in endpoint.path:
        video = VideoFields(content_type) if endpoint.kind is Kind.VIDEO else None
        found = await _validated(exchange, endpoint, content_type, body, video)
        if isinstance(found, Refusal):
            return found
        refusal = charged(exchange, tenant, found)
        if refusal is not None:
            return refusal
        facts, shown = found, video.found() if video is not None else {}
    elif spooled:
        return Refusal(413, "body_too_large", "This path takes no body of this size.")
    elif endpoint.path == REMIX and (refusal := _checked_remix(exchange, tenant, body)) is not None:
        return refusal
    return JobRequest(
        method=exchange.method,
        target=exchange.target.decode(),
        endpoint=endpoint,
        tenant=tenant.name,
        content_type=content_type,
        facts=facts,
        shown=shown,
        priority=exchange.priority,
    )


def _checked_remix(exchange: ProxiedExchange, tenant: Tenant, body: bytes) -> Refusal | None:
    """A remix names no model: its source does, which the handler finds."""
    try:
        asked = orjson.loads(body)
    except orjson.JSONDecodeError:
        asked = None
    prompt = asked.get("prompt") if type(asked) is dict else None
    if type(prompt) is not str:
        return Refusal(
            400, "invalid_prompt", "A remix is a JSON object with a text as its prompt.", param="prompt"
        )
    return charged(exchange, tenant, Facts("", prompt_tokens=len(prompt.encode()) / BYTES_PER_TOKEN))


async def _validated(
    exchange: ProxiedExchange, endpoint: Endpoint, content_type: str, body: bytes, video: VideoFields | None
) -> Facts | Refusal:
    """The facts of a request that is to become a job; aliases of models are resolved."""
    scan: BodyScan | None = None
    if exchange.request.body.spooled:
        scanning = body_scan(endpoint, content_type)
        if isinstance(scanning, Refusal):
            return scanning
        scan = scanning
        await exchange.request.body.show(*((scan,) if video is None else (scan, video)))
        exchange.body = None
        found = scan.finish()
    else:
        if video is not None:
            video.feed(body)
        found = parse_body(endpoint, content_type, body)
    return found if isinstance(found, Refusal) else exchange.context.admission.meant(exchange, found, scan)


def charged(exchange: ProxiedExchange, tenant: Tenant, facts: Facts) -> Refusal | None:
    """Count a job against its tenant's limits; the jobs themselves bound how many it has at a time."""
    if tenant.limits is None:
        return None
    if tenant.rules is not None:
        barred: Refusal | None = tenant.rules.refusal(facts.model, exchange.route)
        if barred is not None:
            return barred
    context = exchange.context
    now_s = context.loop.time()
    refusal: Refusal | None = tenant.limits.admit(now_s, context.admission.tokens(facts))
    exchange.own_lines += tenant.limits.header_lines(now_s)
    if refusal is None:
        tenant.limits.release()
    return refusal
