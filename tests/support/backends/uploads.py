"""Multipart forms: their fields and files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aiohttp import BodyPartReader, web

from support.backends.answers import Refused, read_json


@dataclass(frozen=True, slots=True)
class Form:
    """Fields and files by name."""

    fields: dict[str, Any]
    files: dict[str, bytes]


async def read_form(request: web.Request) -> Form:
    """A multipart body. Raises Refused where it is none."""
    if request.content_type != "multipart/form-data":
        raise Refused(400, "expected multipart/form-data", "invalid_content_type")
    fields: dict[str, Any] = {}
    files: dict[str, bytes] = {}
    async for part in await request.multipart():
        if not isinstance(part, BodyPartReader) or part.name is None:
            raise Refused(400, "a part of the form has no name", "invalid_form")
        content = bytes(await part.read(decode=True))
        if part.filename is None:
            fields[part.name] = content.decode("utf-8", "replace")
        else:
            files[part.name] = content
    return Form(fields, files)


async def read_form_or_json(request: web.Request) -> Form:
    """A multipart body, or a JSON object as fields."""
    if request.content_type == "multipart/form-data":
        return await read_form(request)
    return Form(await read_json(request), {})


def is_true(value: object) -> bool:
    """Whether a field says so: JSON's true, or the word in a form."""
    return value is True or (isinstance(value, str) and value.lower() == "true")
