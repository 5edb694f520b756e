"""Fake backends as their clients see them: the official clients, plain HTTP, and a WebSocket."""

from __future__ import annotations

import io
import json
import socket
import urllib.error
import urllib.request
import wave
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import aiohttp
import anthropic
import openai
import pytest

from support.backends import BackendProcess, Options, launch_all, launched

FAST = {"prefill_s": 0.0, "output_s": 0.0, "output_tokens": 5}
SILENT_S = 0.5
HELLO: Any = [{"role": "user", "content": "Say something. " * 20}]


@pytest.fixture(scope="module")
def backends() -> Iterator[dict[str, BackendProcess]]:
    running = launch_all(
        [
            Options(kind="chat", slots=2, **FAST),
            Options(kind="image", step_s=0.0),
            Options(kind="speech", speech_s=0.0, listen_s=0.0),
            Options(kind="video", video_s=0.0),
        ]
    )
    yield {backend.options.kind: backend for backend in running}
    for backend in running:
        backend.stop()


@pytest.fixture
def chat(backends: dict[str, BackendProcess]) -> Iterator[BackendProcess]:
    yield backends["chat"]
    backends["chat"].set_faults()


def client(backend: BackendProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{backend.url}/v1", api_key="none", max_retries=0, timeout=60)


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as response:
        return str(response.read().decode())


def sent(backend: BackendProcess, body: bytes, path: str = "/v1/chat/completions") -> socket.socket:
    """A connection with one request on it."""
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    connection = socket.create_connection(("127.0.0.1", backend.port), timeout=60)
    connection.sendall(head.encode() + body)
    return connection


def raw(backend: BackendProcess, whole: Callable[[bytes], bool], body: bytes = b"") -> bytes:
    """All that the backend sends on one connection, until it closes or falls silent.

    It is waited for until `whole(all)`; only then a moment without a byte is silence, on a slow machine too.
    """
    got = b""
    with sent(backend, body or json.dumps({"model": "demo-chat", "messages": HELLO}).encode()) as connection:
        try:
            while True:
                connection.settimeout(SILENT_S if whole(got) else 60)
                if not (data := connection.recv(65536)):
                    break
                got += data
        except TimeoutError:
            got += b"[silent]"
        except ConnectionResetError:
            got += b"[reset]"
    return got


def test_chat_whole_and_streamed(chat: BackendProcess) -> None:
    with client(chat) as openai_client:
        whole = openai_client.chat.completions.create(model="demo-chat", messages=HELLO)
        assert whole.usage is not None
        assert whole.usage.completion_tokens == 5
        assert whole.choices[0].finish_reason == "stop"
        stream = openai_client.chat.completions.create(
            model="demo-chat",
            messages=HELLO,
            stream=True,
            stream_options={"include_usage": True},
            max_tokens=3,
        )
        chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "a small tab "
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 3
    details = chunks[-1].usage.prompt_tokens_details
    assert details is not None
    assert details.cached_tokens == 64  # of the 76 that the first request brought: whole blocks


def test_stream_without_usage_has_no_usage_chunk(chat: BackendProcess) -> None:
    with client(chat) as openai_client:
        stream = openai_client.chat.completions.create(model="demo-chat", messages=HELLO, stream=True)
        assert all(chunk.usage is None and chunk.choices for chunk in stream)


def test_completions_responses_embeddings(chat: BackendProcess) -> None:
    with client(chat) as openai_client:
        assert openai_client.completions.create(model="demo-chat", prompt="x", max_tokens=2).choices[0].text
        first = openai_client.responses.create(model="demo-chat", input="x")
        assert first.output_text
        with openai_client.responses.stream(
            model="demo-chat", input="y", previous_response_id=first.id
        ) as stream:
            second = stream.get_final_response()
        assert second.output_text == first.output_text
        for made in (first, second):
            assert openai_client.responses.retrieve(made.id).output_text == made.output_text
        openai_client.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError):
            openai_client.responses.retrieve(first.id)
        with pytest.raises(openai.NotFoundError):
            openai_client.responses.create(model="demo-chat", input="x", previous_response_id="resp_other")
        vector = openai_client.embeddings.create(model="demo-chat", input=["a", "b"]).data[1].embedding
    assert sum(value * value for value in vector) == pytest.approx(1)


def test_anthropic_messages(chat: BackendProcess) -> None:
    with anthropic.Anthropic(base_url=chat.url, api_key="none", max_retries=0) as anthropic_client:
        whole = anthropic_client.messages.create(model="demo-chat", max_tokens=3, messages=HELLO)
        assert whole.stop_reason == "max_tokens"
        read = whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)
        counted = anthropic_client.messages.count_tokens(model="demo-chat", messages=HELLO)
        assert counted.input_tokens == read
        with anthropic_client.messages.stream(model="demo-chat", max_tokens=9, messages=HELLO) as stream:
            text = "".join(stream.text_stream)
            assert stream.get_final_message().usage.output_tokens == len(text.split()) == 5
        with pytest.raises(anthropic.NotFoundError):
            anthropic_client.messages.create(model="other", max_tokens=3, messages=HELLO)


def test_models_health_metrics_and_errors(chat: BackendProcess) -> None:
    with client(chat) as openai_client:
        assert [model.id for model in openai_client.models.list()] == ["demo-chat"]
        with pytest.raises(openai.NotFoundError):
            openai_client.chat.completions.create(model="other", messages=HELLO)
    assert get(f"{chat.url}/health") == "ok\n"
    assert 'vllm:num_requests_running{model_name="demo-chat"} 0.0\n' in get(f"{chat.url}/metrics")
    bad = b"400 Bad Request"
    assert bad in raw(chat, lambda got: bad in got, b"{no json")


async def test_realtime_echoes(chat: BackendProcess) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(f"{chat.url}/v1/realtime") as websocket,
    ):
        await websocket.send_str("hello")
        await websocket.send_bytes(b"\0\1")
        assert await websocket.receive_str() == "hello"
        assert await websocket.receive_bytes() == b"\0\1"


def test_images(backends: dict[str, BackendProcess]) -> None:
    with client(backends["image"]) as openai_client:
        made = openai_client.images.generate(model="demo-image", prompt="x", n=2, size="512x512")
        assert made.data is not None
        assert len(made.data) == 2
        edited = openai_client.images.edit(
            model="demo-image", prompt="x", image=("a.png", b"\x89PNG"), response_format="url"
        )
    assert edited.data is not None
    assert edited.data[0].url is not None
    with urllib.request.urlopen(edited.data[0].url, timeout=60) as response:
        assert response.read().startswith(b"\x89PNG\r\n")


def test_streams_of_images(backends: dict[str, BackendProcess]) -> None:
    with client(backends["image"]) as openai_client:
        asked: Any = {"model": "demo-image", "prompt": "x", "stream": True, "partial_images": 2}
        made: Any = list(openai_client.images.generate(size="512x256", **asked))
        edited: Any = list(openai_client.images.edit(image=("a.png", b"\x89PNG"), **asked))
        whole = openai_client.images.generate(model="demo-image", prompt="x", size="512x256")
    assert whole.data is not None
    for events, operation in ((made, "image_generation"), (edited, "image_edit")):
        names = [*[f"{operation}.partial_image"] * 2, f"{operation}.completed"]
        assert [event.type for event in events] == names
        assert [event.partial_image_index for event in events[:2]] == [0, 1]
    assert len({event.b64_json for event in made}) == 3  # more of it each time
    assert (made[-1].b64_json, made[-1].size) == (whole.data[0].b64_json, "512x256")
    assert made[-1].usage.output_tokens == 512 * 256 / 16**2


def test_an_image_takes_the_factor_that_it_says() -> None:
    """Not the random one: of 5 s here 0.2 s, or nothing."""
    with (
        launched(Options(kind="image", base_s=5.0, step_s=0.0, sigma=0.1)) as (backend,),
        client(backend) as openai_client,
    ):

        def busy_s(factor: str) -> float:
            before_s = float(backend.stats()["busy_s"])
            openai_client.images.generate(
                model="demo-image", prompt="x", extra_headers={"x-demo-factor": factor}
            )
            return float(backend.stats()["busy_s"]) - before_s

        assert 0.2 <= busy_s("0.04") < 4.0
        assert busy_s("0") < 0.2
        with pytest.raises(openai.BadRequestError):
            busy_s("nan")


def test_speech(backends: dict[str, BackendProcess]) -> None:
    with client(backends["speech"]) as openai_client:
        spoken = openai_client.audio.speech.create(
            model="demo-speech", voice="alloy", input="x" * 50, response_format="wav"
        ).content
        with wave.open(io.BytesIO(spoken)) as audio:
            assert audio.getnframes() / audio.getframerate() == pytest.approx(3.0)
        asked: Any = {"model": "demo-speech", "file": ("a.wav", spoken)}
        heard = openai_client.audio.transcriptions.create(**asked)
        streamed: Any = list(openai_client.audio.transcriptions.create(**asked, stream=True))
    assert len(heard.text.split()) == 8  # 2.5 words a second
    assert [event.type for event in streamed] == [*["transcript.text.delta"] * 8, "transcript.text.done"]
    assert "".join(event.delta for event in streamed[:-1]) == streamed[-1].text == heard.text
    assert streamed[-1].usage.total_tokens == 30 + 8


@pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")
def test_videos(backends: dict[str, BackendProcess]) -> None:
    with client(backends["video"]) as openai_client:
        video = openai_client.videos.create_and_poll(
            model="demo-video", prompt="x", seconds="4", poll_interval_ms=20
        )
        assert video.status == "completed"
        film = openai_client.videos.download_content(video.id).content
        assert film[4:8] == b"ftyp"
        remix = openai_client.videos.remix(video.id, prompt="y")
        assert (remix.remixed_from_video_id, remix.prompt, remix.seconds) == (video.id, "y", "4")
        assert openai_client.videos.delete(video.id).deleted
        with pytest.raises(openai.NotFoundError):
            openai_client.videos.retrieve(video.id)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"fault": "status", "status": 429, "retry_after_s": 2}, b"Retry-After: 2\r\n"),
        ({"fault": "garbage"}, b"\x00\xff"),
        ({"fault": "close", "reset": True}, b"[reset]"),
        ({"fault": "wrong_length", "bytes": 10}, b"}[silent]"),
        ({"fault": "early_head", "seconds": 0.01}, b"Transfer-Encoding: chunked"),
        ({"fault": "delay", "seconds": 30}, b"[silent]"),
        ({"fault": "slow_prefill", "seconds": 30}, b"[silent]"),
    ],
)
def test_faults_of_whole_responses(chat: BackendProcess, rule: dict[str, Any], expected: bytes) -> None:
    chat.set_faults(rule)
    assert expected in raw(chat, lambda got: expected.removesuffix(b"[silent]") in got)


def test_truncated_response_promises_more_than_it_sends(chat: BackendProcess) -> None:
    chat.set_faults({"fault": "truncate", "times": 1})
    head, _, body = raw(chat, lambda got: False).partition(b"\r\n\r\n")
    assert not body.endswith(b"[silent]")
    assert int(head.split(b"Content-Length: ")[1]) // 2 == len(body)
    assert b"200 OK" in raw(chat, lambda got: b"200 OK" in got)  # it struck once


@pytest.mark.parametrize(
    ("rule", "chunks", "end"),
    [
        ({"fault": "close", "chunks": 3}, 3, b"\n\n\r\n"),
        ({"fault": "stall", "chunks": 2, "seconds": 30}, 2, b"\n\n\r\n[silent]"),
        ({"fault": "truncate"}, 8, b"[DONE]\n\n\r\n"),
        ({"fault": "garbage", "chunks": 4}, 4, b"\x80"),
    ],
)
def test_faults_of_streams(chat: BackendProcess, rule: dict[str, Any], chunks: int, end: bytes) -> None:
    chat.set_faults(rule)
    body = {"model": "demo-chat", "messages": HELLO, "stream": True}

    def is_whole(got: bytes) -> bool:
        return got.count(b"data: ") == chunks and got.endswith(end.removesuffix(b"[silent]"))

    got = raw(chat, is_whole, json.dumps(body).encode())
    assert got.count(b"data: ") == chunks
    assert got.endswith(end)


def test_wrong_rules_are_refused(chat: BackendProcess) -> None:
    with pytest.raises(urllib.error.HTTPError, match="400") as refused:
        chat.set_faults({"fault": "none such"})
    refused.value.close()


def test_slots_queue_and_callers_who_leave(chat: BackendProcess) -> None:
    chat.set_faults({"fault": "slow_prefill", "seconds": 30, "path": "/v1/completions"})
    body = json.dumps({"model": "demo-chat", "prompt": "x"}).encode()
    before = chat.stats()
    with ExitStack() as callers:
        for _ in range(3):
            callers.enter_context(sent(chat, body, "/v1/completions"))
        busy = _until(chat, lambda stats: stats["waiting"] == 1)
        assert busy["running"] == 2
    left = _until(chat, lambda stats: stats["running"] == stats["waiting"] == 0)
    assert left["aborted"] - before["aborted"] == 3
    assert [request["outcome"] for request in chat.requests()[-3:]] == ["aborted"] * 3


def _until(backend: BackendProcess, condition: Any) -> dict[str, Any]:
    for _ in range(1_000):
        stats = backend.stats()
        if condition(stats):
            return stats
    pytest.fail(f"it never came to that: {stats}")


def test_key_and_names_of_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEMO_KEY", "secret")
    options = Options(api_key_env="DEMO_KEY", metrics="sglang", **FAST)
    with launched(options) as (backend,), client(backend) as openai_client:
        with pytest.raises(openai.AuthenticationError):
            openai_client.models.list()
        assert openai_client.with_options(api_key="secret").models.list().data
        assert "sglang:num_running_reqs" in get(f"{backend.url}/metrics")
