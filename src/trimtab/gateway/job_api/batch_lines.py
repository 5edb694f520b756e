"""The lines of a batch: one request each, in OpenAI's form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import orjson

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
