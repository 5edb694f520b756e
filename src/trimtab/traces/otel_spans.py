"""OpenTelemetry spans of generative AI (`gen_ai.*` attributes) as JSONL: requests of a language model.

A line is an OTLP export (`resourceSpans`, as the collector's file exporter writes) or one span with its
attributes as an object (as SDKs print). Source: OpenTelemetry semantic conventions for generative AI, version
1.37; the names of before 1.27 (`gen_ai.usage.prompt_tokens`, `…completion_tokens`) are taken too.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import polars as pl

from trimtab.traces.text_log import TextLog

_COLUMNS: Final = (
    "span_id",
    "start_ns",
    "end_ns",
    "name",
    "model",
    "tenant",
    "session",
    "server",
    "prompt_tokens",
    "output_tokens",
    "operation",
    "error",
)
_ATTRIBUTES: Final = {
    "model": ("gen_ai.request.model", "gen_ai.response.model"),
    "tenant": ("enduser.id", "user.id"),
    "session": ("gen_ai.conversation.id", "session.id"),
    "server": ("server.address",),
    "prompt_tokens": ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"),
    "output_tokens": ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"),
    "operation": ("gen_ai.operation.name",),
    "error": ("error.type",),
}
_STATUS_ERROR: Final = (2, "STATUS_CODE_ERROR", "ERROR")  # as OTLP has it, in numbers or words, and SDKs


_NO_CALLS: Final = frozenset(
    {"create_agent", "invoke_agent", "invoke_workflow", "plan", "execute_tool", "retrieval"}
)
"""Operations around calls of a model, whose spans may repeat the tokens of these."""


def holds_spans(keys: Collection[str]) -> bool:
    """Whether JSON objects with these keys are spans, or exports of spans."""
    times = {"startTimeUnixNano", "start_time", "startTime", "start_time_unix_nano"}
    return "resourceSpans" in keys or ("attributes" in keys and bool(times & set(keys)))


def _rows(text: str) -> pl.DataFrame:
    """One row a span; those that are no calls of a model have no values."""
    rows = [_row(span) for line in text.splitlines() if line.strip() for span in _spans(_object(line))]
    return pl.DataFrame(rows, schema=dict.fromkeys(_COLUMNS, pl.String), orient="row")


def _object(line: str) -> Mapping[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _spans(line: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if "resourceSpans" not in line:
        yield line
    for resource in _objects(line, "resourceSpans"):
        for scope in _objects(resource, "scopeSpans"):
            yield from _objects(scope, "spans")


def _objects(holder: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """The objects of a list; what is null or none of them counts as absent."""
    found = holder.get(key)
    return [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []


def _row(span: Mapping[str, Any]) -> tuple[str | None, ...]:
    attributes = _plain(span.get("attributes"))
    is_call = any(name.startswith("gen_ai.") for name in attributes)
    if not is_call or attributes.get("gen_ai.operation.name") in _NO_CALLS:
        return (None,) * len(_COLUMNS)
    context, status = (
        span[key] if isinstance(span.get(key), Mapping) else {} for key in ("context", "status")
    )
    values = {
        "span_id": span.get("spanId", span.get("span_id", context.get("span_id"))),
        "start_ns": _time_ns(span, ("startTimeUnixNano", "start_time_unix_nano", "start_time", "startTime")),
        "end_ns": _time_ns(span, ("endTimeUnixNano", "end_time_unix_nano", "end_time", "endTime")),
        "name": span.get("name"),
        **{to: _first(attributes, names) for to, names in _ATTRIBUTES.items()},
    }
    if status.get("code", status.get("status_code")) in _STATUS_ERROR and values["error"] is None:
        values["error"] = "status"
    return tuple(None if values[name] is None else str(values[name]) for name in _COLUMNS)


def _plain(attributes: Any) -> Mapping[str, Any]:
    """Attributes by name; OTLP lists them with the type of each value."""
    if isinstance(attributes, Mapping):
        return attributes
    listed = _objects({"": attributes}, "")
    return {str(each.get("key")): _typed_value(each.get("value")) for each in listed}


def _typed_value(value: Any) -> Any:
    """The value in an object type → value of OTLP."""
    return next(iter(value.values()), None) if isinstance(value, Mapping) else None


def _first(attributes: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((attributes[name] for name in names if attributes.get(name) is not None), None)


def _time_ns(span: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    value = _first(span, names)
    if not isinstance(value, str) or value.isdigit():
        return value
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        return value
    whole = time if time.tzinfo else time.replace(tzinfo=UTC)
    return int(whole.timestamp()) * 10**9 + whole.microsecond * 1000


SPANS: Final = TextLog("otel-genai", _COLUMNS, _rows, "spans in JSON", row="span")
