"""Bodies of every API as Facts; hand-computed sizes; nothing raises."""

import io
import json
import wave
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.gateway.api.endpoints import BUILT_IN, Endpoints
from trimtab.gateway.api.parse_body import body_scan, parse_body, parse_query
from trimtab.gateway.api.units import COMPLETION_MAX_TOKENS, IMAGE_TOKENS, MESSAGE_TOKENS
from trimtab.gateway.model import Endpoint, Facts, Refusal

TABLE = Endpoints([("/v1/tokenize", ["POST"])])
JSON = "application/json"


def endpoint_of(path: str, method: str = "POST") -> Endpoint:
    endpoint = TABLE.find(method, path)
    assert isinstance(endpoint, Endpoint)
    return endpoint


def facts(path: str, document: Any, content_type: str = JSON) -> Facts:
    found = parse_body(endpoint_of(path), content_type, json.dumps(document).encode())
    assert isinstance(found, Facts), found
    return found


def refusal(path: str, body: bytes, content_type: str = JSON) -> Refusal:
    found = parse_body(endpoint_of(path), content_type, body)
    assert isinstance(found, Refusal), found
    return found


CHAT = "/v1/chat/completions"
PATHS = [endpoint.path for endpoint in BUILT_IN if "POST" in endpoint.methods and "{" not in endpoint.path]


def test_chat() -> None:
    found = facts(
        CHAT,
        {
            "model": "m",
            "messages": [{"role": "system", "content": "a" * 100}, {"role": "user", "content": "b" * 100}],
            "max_tokens": 7,
            "max_completion_tokens": 9,
            "n": 3,
            "stream": True,
            "stream_options": {"include_usage": True},
            "prompt_cache_key": "s",
        },
        "application/json; charset=utf-8",
    )
    assert (found.model, found.stream, found.wants_usage, found.session) == ("m", True, True, "s")
    assert (found.max_tokens, found.answers) == (9, 3)
    chars = len("system") + len("user") + 200 + 3  # and three separators
    assert found.prompt_tokens == pytest.approx(chars / 4 + 2 * MESSAGE_TOKENS)


def test_pictures_count_as_tokens_and_not_by_their_bytes() -> None:
    content = [
        {"type": "text", "text": "what?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 90_000}},
    ]
    found = facts(CHAT, {"model": "m", "messages": [{"role": "user", "content": content}]})
    assert found.prompt_tokens == pytest.approx(IMAGE_TOKENS + MESSAGE_TOKENS, abs=5)


def test_text_beyond_ascii_counts_in_utf8_bytes() -> None:
    found = facts(CHAT, {"model": "m", "messages": [{"role": "user", "content": "漢" * 400}]})
    assert found.prompt_tokens == pytest.approx(300 + MESSAGE_TOKENS, abs=2)


@pytest.mark.parametrize(
    ("prompt", "tokens", "answers"),
    [("x" * 40, 10, 1), (["x" * 40] * 2, 20, 2), ([1, 2, 3], 3, 1), ([[1, 2], [3, 4, 5]], 5, 2)],
)
def test_completions(prompt: Any, tokens: float, answers: int) -> None:
    found = facts("/v1/completions", {"model": "m", "prompt": prompt, "best_of": 2, "n": 1})
    assert found.prompt_tokens == pytest.approx(tokens, abs=1)
    assert (found.answers, found.max_tokens) == (2 * answers, COMPLETION_MAX_TOKENS)


def test_responses() -> None:
    found = facts(
        "/v1/responses",
        {
            "model": "m",
            "instructions": "i" * 40,
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "t" * 40}]}],
            "previous_response_id": "resp_1",
            "conversation": {"id": "conv_1"},
            "max_output_tokens": 5,
        },
    )
    assert (found.previous_response_id, found.session, found.max_tokens) == ("resp_1", "conv_1", 5)
    assert found.prompt_tokens == pytest.approx(20 + MESSAGE_TOKENS, abs=2)
    assert facts("/v1/responses", {"model": "m", "input": "x" * 40}).prompt_tokens == pytest.approx(10, abs=1)


def test_anthropic_messages() -> None:
    body = {
        "model": "m",
        "system": [{"type": "text", "text": "s" * 400}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "u" * 400}]},
            {
                "role": "user",
                "content": [{"type": "tool_result", "content": [{"type": "text", "text": "r" * 400}]}],
            },
        ],
        "max_tokens": 11,
        "stream": True,
    }
    found = facts("/v1/messages", body)
    assert (found.max_tokens, found.stream) == (11, True)
    assert found.prompt_tokens == pytest.approx(300 + 2 * MESSAGE_TOKENS, abs=4)
    counted = facts("/v1/messages/count_tokens", body)
    assert (counted.prompt_tokens, counted.max_tokens) == (found.prompt_tokens, 0)


def test_embeddings_and_rerank() -> None:
    assert facts("/v1/embeddings", {"model": "m", "input": ["x" * 400] * 2}).prompt_tokens == pytest.approx(
        200, abs=1
    )
    reranked = facts(
        "/v1/rerank", {"model": "m", "query": "q" * 40, "documents": ["d" * 40, {"text": "d" * 40}]}
    )
    assert reranked.prompt_tokens == pytest.approx(30, abs=1)


def test_images_speech_and_video() -> None:
    image = facts(
        "/v1/images/generations", {"model": "m", "n": 2, "size": "512x1024", "num_inference_steps": 8}
    )
    assert (image.images, image.steps, image.megapixels) == (2, 8, 512 * 1024 / 1e6)
    assert facts("/v1/images/generations", {"model": "m", "size": "auto"}).megapixels == 1024 * 1024 / 1e6
    assert facts("/v1/audio/speech", {"model": "m", "input": "x" * 150, "speed": 2}).audio_s == pytest.approx(
        5
    )
    video = facts("/v1/videos", {"model": "m", "seconds": "8", "size": "1280x720"})
    assert (video.video_s, video.megapixels) == (8, 0.9216)
    assert facts("/v1/videos", {"model": "m", "num_frames": 48, "fps": 24}).video_s == 2


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b"[]", "invalid_json"),
        (b'"x"', "invalid_json"),
        (b'{"model":"\xff"}', "invalid_json"),
        (b"[" * 100_000, "invalid_json"),
        (b"{}", "missing_required_parameter"),
        (b'{"model":null}', "missing_required_parameter"),
        (b'{"model":""}', "missing_required_parameter"),
        (b'{"model":7}', "invalid_type"),
        (b'{"model":["m"]}', "invalid_type"),
        (b'{"model":"' + b"m" * 300 + b'"}', "invalid_type"),
    ],
)
def test_refusals(body: bytes, code: str) -> None:
    found = refusal(CHAT, body)
    assert (found.status, found.code) == (400, code)
    large = scanned(CHAT, JSON, body, 3)
    assert isinstance(large, Refusal)
    assert large.status == 400


def test_other_content_types() -> None:
    body = b'{"model":"m"}'
    assert refusal(CHAT, body, "text/plain").status == 415
    assert refusal(CHAT, body, "application/x-www-form-urlencoded").status == 415
    assert isinstance(parse_body(endpoint_of(CHAT), "", body), Facts)
    assert isinstance(parse_body(endpoint_of("/v1/tokenize"), "application/octet-stream", b"\0"), Facts)
    assert isinstance(parse_body(endpoint_of("/v1/tokenize"), JSON, b"nonsense"), Facts)
    form = parse_body(endpoint_of("/v1/videos"), "application/x-www-form-urlencoded", b"model=m&seconds=8")
    assert isinstance(form, Facts)
    assert form.video_s == 8
    assert (
        refusal("/v1/videos", b"model=a&model=b", "application/x-www-form-urlencoded").code
        == "duplicate_parameter"
    )


def test_requests_without_a_body() -> None:
    assert parse_query(endpoint_of("/v1/realtime", "GET"), "/v1/realtime", "model=a%2Fb") == Facts(
        "a/b", wants_usage=True
    )
    path = "/v1/responses/resp_9"
    found = parse_query(endpoint_of(path, "GET"), path)
    assert isinstance(found, Facts)
    assert found.previous_response_id == "resp_9"
    assert isinstance(
        parse_query(endpoint_of("/v1/realtime", "GET"), "/v1/realtime", "model=a&model=b"), Refusal
    )


def scanned(path: str, content_type: str, body: bytes, step: int) -> Facts | Refusal:
    scan = body_scan(endpoint_of(path), content_type)
    assert not isinstance(scan, Refusal)
    for start in range(0, len(body), step):
        scan.feed(body[start : start + step])
    return scan.finish()


def test_a_large_body_is_scanned_as_it_comes() -> None:
    text = 'some "quoted" text\n' * 20_000
    picture = "data:image/png;base64," + "A" * 500_000
    body = json.dumps(
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": text}, {"image_url": {"url": picture}}]}
            ],
            "max_tokens": 40,
            "stream": True,
            "model": "m",
        }
    ).encode()
    found = scanned(CHAT, JSON, body, 65_536)
    assert isinstance(found, Facts)
    assert (found.model, found.stream, found.max_tokens, found.wants_usage) == ("m", True, 40, False)
    assert found.prompt_tokens == pytest.approx(len(json.dumps(text)) / 4 + IMAGE_TOKENS, rel=0.01)
    assert len(found.prefix_blocks) == 128
    assert found == scanned(CHAT, JSON, body, 977)


def wav(seconds: float) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(16_000)
        sound.writeframes(b"\0\0" * int(16_000 * seconds))
    return file.getvalue()


def form(*parts: tuple[str, bytes]) -> bytes:
    lines = b"".join(
        b"--XX\r\nContent-Disposition: form-data; " + names.encode() + b"\r\n\r\n" + body + b"\r\n"
        for names, body in parts
    )
    return lines + b"--XX--\r\n"


FORM = "multipart/form-data; boundary=XX"


@pytest.mark.parametrize("step", [1, 7, 1_000, 10**6])
def test_a_form_whose_model_comes_after_the_file(step: int) -> None:
    body = form(
        ('name="file"; filename="a.wav"', wav(2.5)), ('name="model"', b"whisper"), ('name="stream"', b"true")
    )
    found = scanned("/v1/audio/transcriptions", FORM, body, step)
    assert isinstance(found, Facts)
    assert (found.model, found.stream) == ("whisper", True)
    assert found.audio_s == pytest.approx(2.5)


def test_images_as_a_form() -> None:
    body = form(
        ('name="image[]"; filename="a.png"', b"\x89PNG"),
        ("name=model", b"m"),
        ('name="size"', b"256x256"),
        ('name="n"', b"2"),
    )
    found = parse_body(endpoint_of("/v1/images/edits"), 'multipart/form-data; charset=x; boundary="XX"', body)
    assert isinstance(found, Facts)
    assert (found.images, found.megapixels) == (2, 0.065536)


@pytest.mark.parametrize(
    "body",
    [
        form(('name="model"', b"a"), ('name="model"', b"b")),
        form(("name*=utf-8''model", b"a")),
        form(('name="mo\\del"', b"a")),
        form(('name="x"; name="model"', b"a")),
        form(('x="; name=model"', b"a")),
        form(('name="model"\r\nContent-Disposition: form-data; name="x"', b"a")),
        form(('\r\n name="model"', b"a")),
        form(('name="model"', b"a"))[:-6],
        form(('name="model"', b"a")).replace(b"\r\n", b"\n"),
        b"--XXjunk\r\n",
        b"",
        b"--XX\r\n" + b"h: " + b"x" * 10_000,
        form(*[('name="x"', b"")] * 300),
        form(('name="file"; filename="model"', b"a")),
    ],
)
@pytest.mark.parametrize("step", [1, 10**6])
def test_forms_that_could_be_read_differently_are_refused(body: bytes, step: int) -> None:
    found = scanned("/v1/audio/transcriptions", FORM, body, step)
    assert isinstance(found, Refusal)
    assert found.status == 400


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=10,
)
FIELDS = st.sampled_from(
    [
        *(
            "messages",
            "prompt",
            "input",
            "tools",
            "system",
            "n",
            "best_of",
            "max_tokens",
            "stream",
            "documents",
        ),
        *(
            "stream_options",
            "size",
            "seconds",
            "width",
            "conversation",
            "speed",
            "num_inference_steps",
            "text_1",
        ),
    ]
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(FIELDS, JSON_VALUES), st.sampled_from(PATHS))
def test_no_document_raises(document: dict[str, Any], path: str) -> None:
    body = json.dumps({**document, "model": "m"}).encode()
    found = parse_body(endpoint_of(path), JSON, body)
    assert isinstance(found, Facts | Refusal)  # NaN is no JSON
    if isinstance(found, Facts):
        assert 0 <= found.prompt_tokens < 1e9
        assert 0 <= found.max_tokens <= 1e7
        assert found.answers >= 1


def test_deep_nesting_raises_nothing() -> None:
    for depth in (200, 260, 900, 2_000):
        deep = b"[" * depth + b"]" * depth
        objects = b'{"content":' * depth + b"1" + b"}" * depth
        for value in (deep, objects):
            body = b'{"model":"m","tools":' + value + b',"messages":[' + value + b'],"prompt":' + value + b"}"
            for path in (CHAT, "/v1/completions", "/v1/rerank", "/v1/messages"):
                assert isinstance(parse_body(endpoint_of(path), JSON, body), Facts | Refusal)


@settings(max_examples=100, deadline=None)
@given(
    st.binary(max_size=200),
    st.sampled_from([FORM, JSON, "application/x-www-form-urlencoded"]),
    st.integers(1, 9),
)
def test_no_bytes_raise(body: bytes, content_type: str, step: int) -> None:
    for text in (body, b"--XX\r\n" + body, b'{"model":"m",' + body):
        assert isinstance(scanned("/v1/images/edits", content_type, text, step), Facts | Refusal)
        assert isinstance(parse_body(endpoint_of("/v1/images/edits"), content_type, text), Facts | Refusal)
