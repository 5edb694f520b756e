"""The chat backend: texts in every dialect, whole and streamed, embeddings, and a realtime echo."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import math
import struct
import uuid
from collections import OrderedDict
from functools import partial
from typing import Any

from aiohttp import WSMsgType, web

from support.backends.answers import Refused, Stream, lead_s, read_json
from support.backends.forms import FORMS, Asked, Form, MessagesForm, ResponseForm, Written
from support.backends.options import Options
from support.backends.prefix import PrefixCache, tokens_of
from support.backends.service import Service

PROVERB = "a small tab on the trailing edge turns the whole rudder and that turns the ship"
WORDS = PROVERB.split()
DIMENSIONS = 16
REMEMBERED = 10_000  # responses that may be continued, and asked for again


class Chat:
    """Handlers of the chat backend."""

    def __init__(self, options: Options, service: Service) -> None:
        self._options, self._service = options, service
        self.cache = PrefixCache(options.cache_blocks)
        self._responses: OrderedDict[str, dict[str, Any]] = OrderedDict()

    def routes(self) -> list[web.RouteDef]:
        """Its paths."""
        texts = [web.post(path, partial(self._text, form=form())) for path, form in FORMS.items()]
        return [
            *texts,
            web.post("/v1/messages/count_tokens", self._count_tokens),
            web.get("/v1/responses/{id}", self._response),
            web.delete("/v1/responses/{id}", self._forget),
            web.post("/v1/embeddings", self._embeddings),
            web.get("/v1/realtime", _echo),
        ]

    async def _text(self, request: web.Request, form: Form) -> web.StreamResponse:
        body = await read_json(request)
        asked = form.read(body)
        check_model(self._options, asked.model)
        self._check_previous(body)
        id_ = form.id_prefix + uuid.uuid4().hex
        written = Written(id_, asked.model, tokens_of(asked.prompt), wants_usage=asked.wants_usage)
        stream = Stream(request) if asked.stream else None
        if stream is not None:
            await stream.open()
        await self._write(request, form, asked, written, stream)
        whole = form.whole(written)
        if isinstance(form, ResponseForm):
            self._remember(written.id, whole)
        if stream is None:
            return web.json_response(whole)
        for chunk in form.end(written):
            await stream.write(chunk)
        return await stream.end()

    async def _write(
        self, request: web.Request, form: Form, asked: Asked, written: Written, stream: Stream | None
    ) -> None:
        """Prefill, then the tokens one by one, each when it is due."""
        total, loop = self._length(asked), asyncio.get_running_loop()
        written.is_cut = asked.max_tokens == total
        async with self._service.slot(written.prompt_tokens + total):
            pace = self._service.paced_s(1.0)
            written.cached_tokens = self._take(asked.prompt, written.prompt_tokens)
            options, fresh = self._options, written.prompt_tokens - written.cached_tokens
            await asyncio.sleep((options.base_s + options.prefill_s * fresh) * pace + lead_s(request))
            begun_s = loop.time()
            for chunk in form.begin(written) if stream is not None else ():
                await stream.write(chunk)  # type: ignore[union-attr]  # it is one here
            for number in range(1, total + 1):
                if stream is not None or number == total:
                    await asyncio.sleep(begun_s + number * options.output_s * pace - loop.time())
                await self._one_more(form, written, stream)

    async def _one_more(self, form: Form, written: Written, stream: Stream | None) -> None:
        word = WORDS[written.output_tokens % len(WORDS)] + " "
        written.output_tokens += 1
        written.text += word
        self._service.counts.output_tokens += 1
        if stream is not None:
            await stream.write(form.piece(written, word))

    def _length(self, asked: Asked) -> int:
        if asked.ignore_eos and asked.max_tokens:
            return asked.max_tokens
        own = max(1, round(self._options.output_tokens * self._service.factor()))
        return min(own, asked.max_tokens or own)

    def _take(self, prompt: str, tokens: int) -> int:
        """Tokens of the prompt that are cached: never the last one, which an answer needs computed."""
        cached = min(self.cache.take(prompt), tokens - 1) if self._options.cache_blocks else 0
        self._service.counts.prompt_tokens += tokens
        self._service.counts.cached_tokens += cached
        return cached

    def _check_previous(self, body: dict[str, Any]) -> None:
        previous = body.get("previous_response_id")
        if previous is not None and previous not in self._responses:
            message = f"Previous response with id '{previous}' not found."
            raise Refused(404, message, "previous_response_not_found")

    def _remember(self, id_: str, whole: dict[str, Any]) -> None:
        self._responses[id_] = whole
        if len(self._responses) > REMEMBERED:
            self._responses.popitem(last=False)

    async def _response(self, request: web.Request) -> web.Response:
        return web.json_response(self._stored(request))

    async def _forget(self, request: web.Request) -> web.Response:
        id_ = self._stored(request)["id"]
        del self._responses[id_]
        return web.json_response({"id": id_, "object": "response", "deleted": True})

    def _stored(self, request: web.Request) -> dict[str, Any]:
        id_ = request.match_info["id"]
        if id_ not in self._responses:
            raise Refused(404, f"Response with id '{id_}' not found.", "response_not_found")
        return self._responses[id_]

    async def _count_tokens(self, request: web.Request) -> web.Response:
        asked = MessagesForm().read(await read_json(request))
        check_model(self._options, asked.model)
        return web.json_response({"input_tokens": tokens_of(asked.prompt)})

    async def _embeddings(self, request: web.Request) -> web.Response:
        body = await read_json(request)
        check_model(self._options, str(body.get("model", "")))
        texts = body.get("input", "")
        texts = [texts] if isinstance(texts, str) else [str(text) for text in texts]
        tokens = sum(map(tokens_of, texts))
        self._service.counts.prompt_tokens += tokens
        await self._service.work(self._options.prefill_s * tokens)
        as_base64 = body.get("encoding_format") == "base64"
        data = [
            {"object": "embedding", "index": i, "embedding": _vector(text, as_base64)}
            for i, text in enumerate(texts)
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return web.json_response({"object": "list", "data": data, "model": body["model"], "usage": usage})


def check_model(options: Options, model: str) -> None:
    """Raises Refused where this backend does not serve the model."""
    if model not in options.served_models:
        raise Refused(404, f"The model `{model}` does not exist.", "model_not_found")


def _vector(text: str, as_base64: bool) -> list[float] | str:
    """A unit vector that depends on the text alone."""
    digest = hashlib.sha256(text.encode()).digest()
    raw = [value - 127.5 for value in digest[:DIMENSIONS]]
    norm = math.sqrt(sum(value * value for value in raw))
    vector = [value / norm for value in raw]
    packed = struct.pack(f"<{DIMENSIONS}f", *vector)
    return base64.b64encode(packed).decode() if as_base64 else vector


async def _echo(request: web.Request) -> web.WebSocketResponse:
    """Send back whatever comes, as text or bytes, until the caller closes."""
    websocket = web.WebSocketResponse()
    await websocket.prepare(request)
    async for message in websocket:
        if message.type is WSMsgType.TEXT:
            await websocket.send_str(message.data)
        elif message.type is WSMsgType.BINARY:
            await websocket.send_bytes(message.data)
    return websocket
