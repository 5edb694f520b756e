"""Refusals as the official clients meet them, and as bytes."""

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import anthropic
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.gateway.api.errors import error_body, error_type, response_bytes, stream_event
from trimtab.gateway.model import Dialect, Kind, Refusal


class _Answer(socketserver.StreamRequestHandler):
    """Reads one request and answers with the server's bytes."""

    def handle(self) -> None:
        length = 0
        while (line := self.rfile.readline().strip().lower()) != b"":
            if line.startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        self.rfile.read(length)
        self.wfile.write(self.server.answer)  # type: ignore[attr-defined]


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    with socketserver.TCPServer(("127.0.0.1", 0), _Answer) as server:
        server.answer = answer  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, openai.BadRequestError),
        (401, openai.AuthenticationError),
        (403, openai.PermissionDeniedError),
        (404, openai.NotFoundError),
        (405, openai.APIStatusError),
        (413, openai.APIStatusError),
        (422, openai.UnprocessableEntityError),
        (429, openai.RateLimitError),
        (500, openai.InternalServerError),
        (503, openai.InternalServerError),
        (504, openai.InternalServerError),
    ],
)
def test_openai_client(status: int, expected: type[openai.APIStatusError]) -> None:
    refusal = Refusal(status, "the_code", "What is wrong.", retry_after_s=1.2, param="model")
    with (
        answering(response_bytes(refusal, Dialect.OPENAI, "req-1", close=True)) as url,
        openai.OpenAI(base_url=url + "/v1", api_key="k", max_retries=0) as client,
        pytest.raises(expected) as caught,
    ):
        client.chat.completions.create(model="m", messages=[])
    error = caught.value
    assert (error.status_code, error.code, error.param) == (status, "the_code", "model")
    assert (error.type, error.request_id) == (error_type(status, Dialect.OPENAI), "req-1")
    assert error.response.headers["retry-after"] == "2"
    assert "What is wrong." in error.message


@pytest.mark.parametrize(
    ("status", "expected", "kind"),
    [
        (400, anthropic.BadRequestError, "invalid_request_error"),
        (401, anthropic.AuthenticationError, "authentication_error"),
        (404, anthropic.NotFoundError, "not_found_error"),
        (413, anthropic.APIStatusError, "request_too_large"),
        (429, anthropic.RateLimitError, "rate_limit_error"),
        (503, anthropic.InternalServerError, "overloaded_error"),
        (502, anthropic.InternalServerError, "api_error"),
    ],
)
def test_anthropic_client(status: int, expected: type[anthropic.APIStatusError], kind: str) -> None:
    refusal = Refusal(status, "the_code", "What is wrong.")
    with (
        answering(response_bytes(refusal, Dialect.ANTHROPIC, "req-1", close=True)) as url,
        anthropic.Anthropic(base_url=url, api_key="k", max_retries=0) as client,
        pytest.raises(expected) as caught,
    ):
        client.messages.create(model="m", messages=[{"role": "user", "content": "x"}], max_tokens=1)
    assert caught.value.request_id == "req-1"
    assert caught.value.body == {
        "type": "error",
        "error": {"type": kind, "message": "What is wrong."},
        "request_id": "req-1",
    }


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
CHUNK = (
    b'data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'
)
LOST = Refusal(502, "backend_lost", "The backend went away.")


def test_openai_client_sees_the_end_of_a_broken_stream() -> None:
    with (
        answering(STREAM_HEAD + CHUNK + stream_event(LOST, Dialect.OPENAI)) as url,
        openai.OpenAI(base_url=url, api_key="k", max_retries=0) as client,
    ):
        stream = client.chat.completions.create(model="m", messages=[], stream=True)
        assert next(stream).choices[0].delta.content == "hi"
        with pytest.raises(openai.APIError, match="went away"):
            next(stream)


def test_openai_client_sees_the_end_of_a_broken_response_stream() -> None:
    with (
        answering(STREAM_HEAD + stream_event(LOST, Dialect.OPENAI, Kind.RESPONSE)) as url,
        openai.OpenAI(base_url=url, api_key="k", max_retries=0) as client,
    ):
        stream = client.responses.create(model="m", input="x", stream=True)
        with pytest.raises(openai.APIError, match="went away"):
            next(iter(stream))


def test_anthropic_client_sees_the_end_of_a_broken_stream() -> None:
    data = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}}
    start = b"event: content_block_delta\ndata: " + json.dumps(data).encode() + b"\n\n"
    with (
        answering(STREAM_HEAD + start + stream_event(LOST, Dialect.ANTHROPIC)) as url,
        anthropic.Anthropic(base_url=url, api_key="k", max_retries=0) as client,
    ):
        stream = client.messages.create(
            model="m", messages=[{"role": "user", "content": "x"}], max_tokens=1, stream=True
        )
        assert next(iter(stream)).type == "content_block_delta"
        with pytest.raises(anthropic.APIStatusError, match="went away"):
            next(iter(stream))


def test_no_done_is_invented() -> None:
    for dialect in Dialect:
        for kind in (Kind.CHAT, Kind.RESPONSE):
            assert b"[DONE]" not in stream_event(LOST, dialect, kind)


def test_heads() -> None:
    refusal = Refusal(405, "x", "y", allow=("GET", "POST"))
    answer = response_bytes(refusal, Dialect.OPENAI)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 405 Method Not Allowed\r\n")
    assert b"\r\nallow: GET, POST" in head
    assert b"\r\ncontent-length: %d" % len(body) in head
    assert response_bytes(refusal, Dialect.OPENAI, head_only=True) == head + b"\r\n\r\n"
    assert b"connection: close" in response_bytes(refusal, Dialect.OPENAI, close=True)
    assert b"www-authenticate" in response_bytes(Refusal(401, "x", "y"), Dialect.OPENAI)


@given(st.text(), st.text(), st.lists(st.text()), st.sampled_from(Dialect), st.integers(400, 599))
def test_nothing_gets_out_of_its_place(
    message: str, request_id: str, allow: list[str], dialect: Dialect, status: int
) -> None:
    refusal = Refusal(status, "code", message, retry_after_s=1e300, allow=tuple(allow))
    head, _, body = response_bytes(refusal, dialect, request_id).partition(b"\r\n\r\n")
    names = [line.partition(b":")[0] for line in head.split(b"\r\n")[1:]]
    allowed = (
        b"content-type content-length x-request-id request-id retry-after allow www-authenticate".split()
    )
    assert len(names) == len(set(names))
    assert set(names) <= set(allowed)
    assert b"\n" not in head.replace(b"\r\n", b"")
    assert json.loads(body)
    event = stream_event(refusal, dialect)
    assert event.count(b"\n\n") == 1
    assert event.endswith(b"\n\n")


def test_lone_surrogates_do_not_raise() -> None:
    assert json.loads(error_body(Refusal(400, "c", "\ud800"), Dialect.OPENAI, "\udfff"))
