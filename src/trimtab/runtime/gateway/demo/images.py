"""The image backend: generations and edits, whose seconds follow from steps, size and number."""

from __future__ import annotations

import base64
import hashlib
import re
import struct
import time
import uuid
import zlib
from typing import Any

from aiohttp import web

from trimtab.runtime.gateway.demo.answers import Refused, lead_s, read_json
from trimtab.runtime.gateway.demo.chat import check_model
from trimtab.runtime.gateway.demo.options import Options
from trimtab.runtime.gateway.demo.service import Service
from trimtab.runtime.gateway.demo.uploads import read_form

STEPS, SIZE = 20, "1024x1024"  # where a request does not say
SHOWN_PIXELS = 64  # side of the picture that is really made
KEPT = 256  # files kept for `url` answers


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

    async def _generate(self, request: web.Request) -> web.Response:
        return await self._make(request, await read_json(request))

    async def _edit(self, request: web.Request) -> web.Response:
        form = await read_form(request)
        if "image" not in form.files and "image[]" not in form.files:
            raise Refused(400, "there is no image", "missing_image")
        return await self._make(request, form.fields)

    async def _make(self, request: web.Request, asked: dict[str, Any]) -> web.Response:
        check_model(self._options, str(asked.get("model", "")))
        width, height = _size(str(asked.get("size", SIZE)))
        steps = int(asked.get("steps", asked.get("num_inference_steps", STEPS)))
        number = int(asked.get("n", 1))
        work_s = self._options.step_s * number * steps * width * height / 1e6
        await self._service.work(work_s + lead_s(request))
        pictures = [_picture(f"{asked.get('prompt')} {i}", width, height) for i in range(number)]
        by_url = asked.get("response_format") == "url"
        data = [
            {"url": self._keep(request, picture)}
            if by_url
            else {"b64_json": base64.b64encode(picture).decode()}
            for picture in pictures
        ]
        return web.json_response({"created": int(time.time()), "data": data})

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


def _picture(prompt: str, width: int, height: int) -> bytes:
    """A PNG of this shape, made small: a gradient between two colours that the prompt chooses."""
    scale = SHOWN_PIXELS / max(width, height, SHOWN_PIXELS)
    columns, rows = max(1, round(width * scale)), max(1, round(height * scale))
    digest = hashlib.sha256(prompt.encode()).digest()
    lines = (_line(digest, row / rows, columns) for row in range(rows))
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
