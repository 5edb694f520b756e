"""Usage out of answers and streams, and the usage nobody asked for: any split of the bytes gives the same."""

import json
import pickle
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.gateway.api.json_scan import JsonScan
from trimtab.gateway.api.sse import EventSplitter, UsageStripper, data_of, inject_include_usage
from trimtab.gateway.api.usage import BodyMeter, StreamMeter, find_usage, meter_for
from trimtab.gateway.model import Dialect, Endpoint, Kind, Usage

CHAT_USAGE = {"prompt_tokens": 10, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 4}}
RESPONSE_USAGE = {"input_tokens": 10, "output_tokens": 20, "input_tokens_details": {"cached_tokens": 4}}
ANTHROPIC_USAGE = {
    "input_tokens": 5,
    "cache_read_input_tokens": 4,
    "cache_creation_input_tokens": 1,
    "output_tokens": 20,
}
SAID = Usage(10, 20, 4)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """The data cut at these places."""
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(places)]


@pytest.mark.parametrize("said", [CHAT_USAGE, RESPONSE_USAGE, ANTHROPIC_USAGE])
@pytest.mark.parametrize("indent", [None, 2])
def test_plain_bodies(said: dict[str, Any], indent: int | None) -> None:
    body = json.dumps(
        {"id": "resp_1", "text": 'a "usage": {} }' * 9, "usage": said, "x": 1}, indent=indent
    ).encode()
    meter = BodyMeter(Kind.RESPONSE)
    for part in pieces(body, [1, 9, 50]):
        meter.feed(part)
    meter.finish()
    assert (meter.usage, meter.response_id) == (SAID, "resp_1")


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("step", [100, 5_000, 65_536])
def test_large_bodies(first: bool, step: int) -> None:
    data = {"data": [[0.25] * 100] * 1_000}
    body = json.dumps({"usage": CHAT_USAGE, **data} if first else {**data, "usage": CHAT_USAGE}).encode()
    meter = BodyMeter(Kind.EMBEDDING)
    for start in range(0, len(body), step):
        meter.feed(body[start : start + step])
        assert len(pickle.dumps(meter)) <= 65_536 + 16_384 + 4_096
    meter.finish()
    assert meter.usage == SAID


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'{"usage":null}',
        b'{"usage":{}}',
        b'{"usage":{"prompt_tokens":1',
        b'{"usage":[1]}',
        b'{"a":"\\"usage\\":{\\"prompt_tokens\\":1}"}',
        b'{"a\\"usage":{"prompt_tokens":1}}',
        b'"usage":{' * 500,
    ],
)
def test_no_usage(body: bytes) -> None:
    assert find_usage(body) is None


def test_odd_counts_are_not_said() -> None:
    assert (
        find_usage(b'{"usage":{"prompt_tokens":-1,"completion_tokens":"7","prompt_tokens_details":[]}}')
        == Usage()
    )
    assert find_usage(b'{"usage":{"total_tokens":7,"x":"}"}}') == Usage(7)


@given(st.binary(max_size=300))
def test_no_bytes_raise(data: bytes) -> None:
    find_usage(data)
    find_usage(b'{"usage":{' + data)
    for kind in (Kind.CHAT, Kind.RESPONSE):
        for meter in (BodyMeter(kind), StreamMeter(kind, Dialect.OPENAI)):
            meter.feed(data)
            meter.finish()
    UsageStripper().feed(data)


def sse_bytes(events: list[Any], newline: str = "\n") -> bytes:
    text = "".join(
        (f"event: {event['type']}{newline}" if isinstance(event, dict) and "type" in event else "")
        + f"data: {event if isinstance(event, str) else json.dumps(event)}{newline}{newline}"
        for event in events
    )
    return text.encode()


def delta(text: str) -> dict[str, Any]:
    return {"id": "c", "choices": [{"index": 0, "delta": {"content": text}}], "usage": None}


USAGE_EVENT = {"id": "c", "choices": [], "usage": CHAT_USAGE}
CHAT_STREAM = [delta('"usage" [DONE] '), delta("b\n\n"), delta("漢"), USAGE_EVENT, "[DONE]"]
RESPONSE_STREAM = [
    {"type": "response.created", "response": {"id": "resp_7", "usage": None}},
    {"type": "response.output_text.delta", "delta": "response.completed"},
    {"type": "response.output_text.delta", "delta": "b"},
    {"type": "response.output_text.delta", "delta": "c"},
    {
        "type": "response.completed",
        "response": {"id": "resp_7", "output": "x" * 90_000, "usage": RESPONSE_USAGE},
    },
]
ANTHROPIC_STREAM = [
    {"type": "message_start", "message": {"id": "msg", "usage": {**ANTHROPIC_USAGE, "output_tokens": 1}}},
    {"type": "content_block_delta", "delta": {"text": "message_stop"}},
    {"type": "content_block_delta", "delta": {"text": "b"}},
    {"type": "content_block_delta", "delta": {"text": "c"}},
    {"type": "message_delta", "usage": {"output_tokens": 20}},
    {"type": "message_stop"},
]
STREAMS = [
    (CHAT_STREAM, Kind.CHAT, Dialect.OPENAI, ""),
    (RESPONSE_STREAM, Kind.RESPONSE, Dialect.OPENAI, "resp_7"),
    (ANTHROPIC_STREAM, Kind.MESSAGES, Dialect.ANTHROPIC, ""),
]
CUTS = st.lists(st.integers(0, 3_000), max_size=12)


@given(st.sampled_from(STREAMS), CUTS, st.sampled_from(["\n", "\r\n"]))
def test_streams(stream: tuple[list[Any], Kind, Dialect, str], cuts: list[int], newline: str) -> None:
    events, kind, dialect, response_id = stream
    meter = StreamMeter(kind, dialect)
    content = 0
    for part in pieces(sse_bytes(events, newline), cuts):
        assert not meter.ended
        content += meter.feed(part)
    meter.finish()
    assert (content, meter.usage, meter.response_id, meter.ended) == (3, SAID, response_id, True)


@given(
    st.lists(st.sampled_from([b"data: a\n\n", b"data: b\r\n\r\n", b": c\n\r\n", b"\n", b"data: d\n"])), CUTS
)
def test_events_are_the_same_whatever_the_cuts(lines: list[bytes], cuts: list[int]) -> None:
    data = b"".join(lines)
    whole, parts = EventSplitter(), EventSplitter()
    expected = whole.feed(data) + whole.finish()
    found = [event for part in pieces(data, [cut % 40 for cut in cuts]) for event in parts.feed(part)]
    assert found + parts.finish() == expected
    assert b"".join(expected) == data


def test_data_of_an_event() -> None:
    assert data_of(b"event: x\r\ndata: a\r\ndata:b\r\nid: 1\r\n\r\n") == b"a\nb"


def test_meters_by_content_type() -> None:
    chat = Endpoint("/v1/chat/completions", ("POST",), Kind.CHAT)
    assert isinstance(meter_for(chat, "Text/Event-Stream; charset=utf-8"), StreamMeter)
    assert isinstance(meter_for(chat, "application/json"), BodyMeter)


OTHER = st.sampled_from(
    [
        b'data: {"choices":[{"delta":{"content":"x"}}],"usage":null}\n\n',
        b'data: {"choices":[],"prompt_filter_results":[]}\n\n',
        b'data: {"choices":[],"usage":null}\r\n\r\n',
        b'data: {"choices":[{"delta":{"content":"\\"choices\\":[] usage"}}]}\n\n',
        b'data: {"choices":[{"delta":{}}],"usage":{"prompt_tokens":1}}\n\n',
        b": keep-alive\n\n",
        b"data: " + b"y" * 20_000 + b"\n\n",
        b'data: {"choices":[],"usage":{"x":"' + b"y" * 20_000 + b'"}}\n\n',
        b"\n",
    ]
)
INJECTED = st.sampled_from(
    [
        b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}\n\n',
        b'event: x\r\ndata:{ "usage" : {} , "choices" : [ ] }\r\n\r\n',
    ]
)
END = st.sampled_from([b"data: [DONE]\n\n", b"", b"data: cut", b"data: [DONE]\n"])


@settings(max_examples=300)
@given(st.lists(OTHER, max_size=5), INJECTED, st.lists(OTHER, max_size=2), END, CUTS)
def test_the_usage_event_goes_and_all_else_stays(
    before: list[bytes], injected: bytes, after: list[bytes], end: bytes, cuts: list[int]
) -> None:
    if before and before[-1] == b"\n":
        before.append(b": x\n\n")  # an empty line before an event counts as its part
    stripper = UsageStripper()
    data = b"".join(before) + injected + b"".join(after) + end
    out = b"".join(stripper.feed(part) for part in pieces(data, cuts)) + stripper.finish()
    assert out == b"".join(before) + b"".join(after) + end
    assert stripper.stripped == 1


@given(st.lists(st.integers(1, 80), min_size=1, max_size=40))
def test_one_byte_borders(sizes: list[int]) -> None:
    data = sse_bytes(CHAT_STREAM)
    kept = sse_bytes([event for event in CHAT_STREAM if event is not USAGE_EVENT])
    stripper, out, at = UsageStripper(), b"", 0
    while at < len(data):
        for size in sizes:
            out += stripper.feed(data[at : at + size])
            at += size
    assert out + stripper.finish() == kept


def test_a_usage_event_without_its_empty_line_goes_too() -> None:
    stripper = UsageStripper()
    assert stripper.feed(b'data: {"choices":[],"usage":{}}') + stripper.finish() == b""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (' { "model":"m"}', ' {"stream_options":{"include_usage":true}, "model":"m"}'),
        ('{"stream_options":null}', '{"stream_options":{"include_usage":true}}'),
        ('{"stream_options": { } }', '{"stream_options": {"include_usage":true} }'),
        ('{"stream_options":{"a":1}}', '{"stream_options":{"include_usage":true,"a":1}}'),
        ('{"stream_options":{"include_usage" : false }}', '{"stream_options":{"include_usage" : true }}'),
        ('{"stream_options":{"include_usage":true}}', None),
        ('{"stream_options":"x"}', None),
        ('{"a":{"stream_options":1}}', '{"stream_options":{"include_usage":true},"a":{"stream_options":1}}'),
        ('{"a":"stream_options"}', '{"stream_options":{"include_usage":true},"a":"stream_options"}'),
        ('{"stream\\u005foptions":{}}', '{"stream\\u005foptions":{"include_usage":true}}'),
        (
            '{"stream_options":{},"stream_options":{"b":2}}',
            '{"stream_options":{},"stream_options":{"include_usage":true,"b":2}}',
        ),
    ],
)
def test_injection(body: str, expected: str | None) -> None:
    assert inject_include_usage(body.encode()).decode() == (body if expected is None else expected)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just('\\"{['),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(["stream_options", "include_usage", "model"]) | st.text(max_size=5)
OPTIONS = st.none() | st.dictionaries(NAMES, VALUES, max_size=3)
OBJECTS = st.dictionaries(NAMES, VALUES, min_size=1, max_size=5)


@given(OBJECTS, OPTIONS, st.sampled_from([None, 1]), st.booleans())
def test_injection_changes_nothing_else(
    document: Any, options: Any, indent: int | None, ascii_only: bool
) -> None:
    body = json.dumps(
        {**document, "stream_options": options, "z": 1}, indent=indent, ensure_ascii=ascii_only
    ).encode()
    expected = {**document, "stream_options": {**(options or {}), "include_usage": True}, "z": 1}
    assert json.loads(inject_include_usage(body)) == expected


@settings(max_examples=300)
@given(OBJECTS, CUTS, st.sampled_from([None, 1]), st.booleans())
def test_a_scan_finds_what_a_parser_finds(
    document: Any, cuts: list[int], indent: int | None, ascii_only: bool
) -> None:
    text = json.dumps(document, indent=indent, ensure_ascii=ascii_only).encode()
    scan = JsonScan(dict.fromkeys(document, 10_000))
    for part in pieces(text, [cut % 100 for cut in cuts]):
        scan.feed(part)
    assert scan.done
    assert not scan.problem
    for name, value in document.items():
        raw = scan.raw(name)
        assert raw is not None
        assert json.loads(raw) == value
        start, end = scan.found[name]
        assert text[start:end] == raw


@given(st.lists(st.sampled_from(['"', "\\\\", "a", '\\\\"']), max_size=80).map("".join), CUTS)
def test_a_scan_finds_the_end_of_strings_full_of_quotes(text: str, cuts: list[int]) -> None:
    body = json.dumps({"a": text, "b": [text], "c": 1}).encode()
    scan = JsonScan({"a": 10_000, "b": 10_000, "c": 10})
    for part in pieces(body, [cut % 400 for cut in cuts]):
        scan.feed(part)
    assert scan.done
    assert [json.loads(scan.raw(name) or b"") for name in "abc"] == [text, [text], 1]


def test_a_scan_keeps_no_more_than_it_may() -> None:
    scan = JsonScan({"a": 10})
    scan.feed(b'{"a":"' + b"x" * 100 + b'"}')
    assert (scan.raw("a"), scan.beginning("a")) == (None, b'"xxxxxxxxx')
    many = JsonScan({})
    many.feed(b'{"a":[' + b"[[]]," * 300_000)
    assert "too many" in many.problem
