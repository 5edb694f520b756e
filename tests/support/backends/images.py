"""The image backend: generations and edits, whole or streamed; seconds follow from steps, size, number."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import struct
import time
import uuid
import zlib
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from support.backends.answers import Refused, Stream, lead_s, read_json, stated_factor
from support.backends.chat import check_model
from support.backends.forms import sse
from support.backends.options import Options
from support.backends.prefix import tokens_of
from support.backends.service import Service
from support.backends.uploads import is_true, read_form

STEPS, SIZE = 20, "1024x1024"  # where a request does not say
SHOWN_PIXELS = 64  # side of the picture that is really made
KEPT = 256  # files kept for `url` answers
MOST_PARTIALS = 3  # of one picture
BLACK = bytes(6)
TOKEN_PIXELS = 16 * 16  # of output that count as a token


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a request asks for."""

    operation: str  # as the events of a stream call it
    prompt: str
    size: tuple[int, int]  # pixels
    number: int
    partials: int  # pictures that a stream shows before each is done
    work_s: float  # of all pictures
    factor: float | None


class Images:
    """Handlers of the image backend."""

    def __init__(self, options: Options, service: Service) -> None:
        self._options, self._service = options, service
        self._files: dict[str, bytes] = {}

    def routes(self) -> list[web.RouteDef]:
        """Its paths."""
        return [
            web.post("/v1/images/generations", self._generate),
            web.post("/v1/images/edits", self._edit),
            web.get("/files/{name}", self._file),
        ]

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        return await self._make(request, await read_json(request), "image_generation")

    async def _edit(self, request: web.Request) -> web.StreamResponse:
        form = await read_form(request)
        if "image" not in form.files and "image[]" not in form.files:
            raise Refused(400, "there is no image", "missing_image")
        return await self._make(request, form.fields, "image_edit")

    async def _make(self, request: web.Request, fields: dict[str, Any], operation: str) -> web.StreamResponse:
        asked = self._read(request, fields, operation)
        if is_true(fields.get("stream")):
            return await self._stream(request, asked)
        await self._service.work(asked.work_s, asked.factor)
        pictures = [_picture(f"{asked.prompt} {i}", asked.size) for i in range(asked.number)]
        by_url = fields.get("response_format") == "url"
        data = [
            {"url": self._keep(request, picture)} if by_url else {"b64_json": _base64(picture)}
            for picture in pictures
        ]
        return web.json_response({"created": int(time.time()), "data": data})

    def _read(self, request: web.Request, fields: dict[str, Any], operation: str) -> _Asked:
        check_model(self._options, str(fields.get("model", "")))
        width, height = size = _size(str(fields.get("size", SIZE)))
        steps = int(fields.get("steps", fields.get("num_inference_steps", STEPS)))
        number = int(fields.get("n", 1))
        partials = min(max(0, int(fields.get("partial_images") or 0)), MOST_PARTIALS)
        work_s = self._options.step_s * number * steps * width * height / 1e6 + lead_s(request)
        prompt = str(fields.get("prompt"))
        return _Asked(operation, prompt, size, number, partials, work_s, stated_factor(request))

    async def _stream(self, request: web.Request, asked: _Asked) -> web.StreamResponse:
        """Pictures one after the other; at even distances what there is of each, at last the whole."""
        stream = Stream(request)
        await stream.open()
        parts = asked.partials + 1
        async with self._service.slot():
            pace = self._service.paced_s(1.0, asked.factor)
            part_s = (self._options.base_s + asked.work_s) * pace / (asked.number * parts)
            for i in range(asked.number):
                for part in range(1, parts + 1):
                    await asyncio.sleep(part_s)
                    await stream.write(_event(asked, f"{asked.prompt} {i}", part, parts))
        return await stream.end()

    def _keep(self, request: web.Request, picture: bytes) -> str:
        name = f"{uuid.uuid4().hex}.png"
        self._files[name] = picture
        if len(self._files) > KEPT:
            del self._files[next(iter(self._files))]
        return str(request.url.origin() / "files" / name)

    async def _file(self, request: web.Request) -> web.Response:
        picture = self._files.get(request.match_info["name"])
        if picture is None:
            raise Refused(404, "there is no such file", "not_found")
        return web.Response(body=picture, content_type="image/png")


def _size(text: str) -> tuple[int, int]:
    """Width and height in pixels, of `WIDTHxHEIGHT` or `auto`."""
    found = re.fullmatch(r"(\d{1,5})x(\d{1,5})", SIZE if text == "auto" else text)
    if found is None:
        raise Refused(400, f"size `{text}` is not WIDTHxHEIGHT", "invalid_size")
    return int(found[1]), int(found[2])


def _event(asked: _Asked, prompt: str, part: int, parts: int) -> bytes:
    """What a stream says when so many of the parts of a picture are done."""
    width, height = asked.size
    said: dict[str, Any] = {
        "b64_json": _base64(_picture(prompt, asked.size, part / parts)),
        "created_at": int(time.time()),
        "size": f"{width}x{height}",
        "quality": "auto",
        "background": "opaque",
        "output_format": "png",
    }
    if part < parts:
        name = f"{asked.operation}.partial_image"
        return sse({"type": name, **said, "partial_image_index": part - 1}, name)
    name, read, made = f"{asked.operation}.completed", tokens_of(asked.prompt), width * height // TOKEN_PIXELS
    details = {"text_tokens": read, "image_tokens": 0}
    usage = {"input_tokens": read, "output_tokens": made, "total_tokens": read + made}
    return sse({"type": name, **said, "usage": {**usage, "input_tokens_details": details}}, name)


def _base64(picture: bytes) -> str:
    return base64.b64encode(picture).decode()


def _picture(prompt: str, size: tuple[int, int], done_frac: float = 1.0) -> bytes:
    """A PNG of this shape, made small: a gradient between two colours that the prompt chooses.

    What is not done yet, from below, is black.
    """
    width, height = size
    scale = SHOWN_PIXELS / max(width, height, SHOWN_PIXELS)
    columns, rows = max(1, round(width * scale)), max(1, round(height * scale))
    digest = hashlib.sha256(prompt.encode()).digest()
    done = round(rows * done_frac)
    lines = (_line(digest if row < done else BLACK, row / rows, columns) for row in range(rows))
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(b"".join(lines))),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(_png_part(name, content) for name, content in parts)


def _line(digest: bytes, down: float, columns: int) -> bytes:
    colour = bytes(round(a + (b - a) * down) for a, b in zip(digest[:3], digest[3:6], strict=True))
    return b"\0" + colour * columns


def _png_part(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
