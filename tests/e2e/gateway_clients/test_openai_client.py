"""The official `openai` client, unmodified, against a running gateway."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator

import pytest

openai = pytest.importorskip("openai")

from support.backends import Options, launched  # noqa: E402
from support.served import KEY, Served, config_of, key_entry, node_of, served  # noqa: E402

MODELS = {"demo-chat", "demo-image", "demo-speech", "demo-video", "good-chat", "gone"}
LIMITED = "tt-one-request-a-minute"
MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    quick = {"output_s": 0.001, "step_s": 0.001, "video_s": 0.02}
    backends = (
        Options(name="chat-1", **quick),
        Options(name="chat-2", **quick),
        Options(kind="image", **quick),
        Options(kind="speech", speed=20.0),
        Options(kind="video", **quick),
    )
    with launched(*backends) as running:
        *others, video = running
        config = config_of(
            *others,
            routes={"good-chat": {"targets": "demo-chat"}},
            nodes=[
                *map(node_of, others),
                node_of(video, job_api="videos"),
                {"name": "away", "url": "http://127.0.0.1:9", "models": ["gone"]},
            ],
            keys=[
                key_entry("tests", KEY),
                key_entry("limited", LIMITED, limits={"requests_per_minute": 1}),
            ],
            queue={"max_wait_no_ready_node_s": 0.2},
            policy="round-robin",
        )
        with served(tmp_path_factory.mktemp("openai"), config) as gateway:
            yield gateway


@pytest.fixture
def client(gateway: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=gateway.url + "/v1", api_key=KEY, max_retries=0) as client:
        yield client


def test_chat(client: openai.OpenAI) -> None:
    done = client.chat.completions.create(model="demo-chat", messages=MESSAGES, max_tokens=4)
    assert done.choices[0].message.content
    assert done.usage.completion_tokens == 4


def test_an_alias(client: openai.OpenAI) -> None:
    done = client.chat.completions.create(model="good-chat", messages=MESSAGES, max_tokens=4)
    assert done.model == "demo-chat"


def test_a_stream_hides_the_usage_that_nobody_asked_for(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(model="demo-chat", messages=MESSAGES, max_tokens=4, stream=True)
    )
    assert "".join(c.choices[0].delta.content or "" for c in chunks)
    assert [c.usage for c in chunks if c.usage is not None] == []


def test_a_stream_shows_the_usage_that_was_asked_for(client: openai.OpenAI) -> None:
    asked = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(client.chat.completions.create(model="demo-chat", messages=MESSAGES, max_tokens=4, **asked))
    assert [c.usage.completion_tokens for c in chunks if c.usage is not None] == [4]
    with client.chat.completions.stream(model="demo-chat", messages=MESSAGES) as stream:
        assert stream.get_final_completion().choices[0].message.content


def test_completions(client: openai.OpenAI) -> None:
    done = client.completions.create(model="demo-chat", prompt="once", max_tokens=3)
    assert done.usage.completion_tokens == 3
    streamed = client.completions.create(model="demo-chat", prompt="once", max_tokens=3, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == done.choices[0].text


def test_responses_return_to_the_node_that_has_them(client: openai.OpenAI) -> None:
    first = client.responses.with_raw_response.create(model="demo-chat", input="hello", max_output_tokens=4)
    node, response = first.headers["x-trimtab-node"], first.parse()
    assert response.output_text
    for _ in range(6):  # round robin would go elsewhere, where this response is unknown
        follow_up = client.responses.with_raw_response.create(
            model="demo-chat", input="and?", max_output_tokens=4, previous_response_id=response.id
        )
        assert follow_up.headers["x-trimtab-node"] == node
        response = follow_up.parse()


def test_streamed_responses_return_to_the_node_that_has_them(client: openai.OpenAI) -> None:
    for _ in range(3):
        asked = {"model": "demo-chat", "input": "hello", "max_output_tokens": 4}
        events = list(client.responses.create(**asked, stream=True))
        assert events[-1].type == "response.incomplete"  # cut at four tokens
        again = client.responses.create(**asked, previous_response_id=events[-1].response.id)
        assert again.status == "incomplete"


def test_embeddings(client: openai.OpenAI) -> None:
    found = client.embeddings.create(model="demo-chat", input=["one", "two"])
    assert len(found.data) == 2
    assert found.data[0].embedding != found.data[1].embedding


def test_images(client: openai.OpenAI) -> None:
    made = client.images.generate(
        model="demo-image", prompt="a cat", n=2, size="256x256", response_format="b64_json"
    )
    assert [bool(image.b64_json) for image in made.data] == [True, True]
    picture = ("a.png", io.BytesIO(b"\x89PNG\r\n\x1a\n" + b"0" * 64), "image/png")
    edited = client.images.edit(model="demo-image", image=picture, prompt="a dog", size="256x256")
    assert len(edited.data) == 1
    events = list(
        client.images.generate(
            model="demo-image", prompt="a cat", stream=True, partial_images=1, size="64x64"
        )
    )
    assert [event.type.rpartition(".")[2] for event in events] == ["partial_image", "completed"]


def test_speech_and_transcription(client: openai.OpenAI) -> None:
    spoken = client.audio.speech.create(
        model="demo-speech", voice="alloy", input="good day", response_format="wav"
    )
    sound = spoken.read()
    assert sound.startswith(b"RIFF")
    heard = client.audio.transcriptions.create(model="demo-speech", file=("a.wav", io.BytesIO(sound)))
    assert heard.text
    asked = {"model": "demo-speech", "file": ("a.wav", io.BytesIO(sound))}
    *deltas, done = client.audio.transcriptions.create(**asked, stream=True)
    assert "".join(event.delta for event in deltas) == done.text == heard.text
    with client.audio.speech.with_streaming_response.create(
        model="demo-speech", voice="alloy", input="good day", response_format="wav"
    ) as streamed:
        assert b"".join(streamed.iter_bytes()).startswith(b"RIFF")


@pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")  # OpenAI's own, not the path
def test_videos(client: openai.OpenAI) -> None:
    video = client.videos.create_and_poll(
        model="demo-video", prompt="waves", seconds="4", poll_interval_ms=50
    )
    assert video.status == "completed"
    assert client.videos.download_content(video.id).read()
    assert video.id in {found.id for found in client.videos.list()}
    assert client.videos.delete(video.id).deleted


def test_models(client: openai.OpenAI) -> None:
    assert {model.id for model in client.models.list()} == MODELS
    assert client.models.retrieve("demo-chat").id == "demo-chat"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("none")


def test_many_at_once_and_asynchronously(gateway: Served) -> None:
    async def main() -> list[str]:
        async with openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key=KEY, max_retries=0) as client:
            return await asyncio.gather(*(_streamed(client, k) for k in range(40)))

    assert all(asyncio.run(main()))


async def _streamed(client: openai.AsyncOpenAI, number: int) -> str:
    asked = {"model": "demo-chat", "messages": MESSAGES, "max_tokens": 8}
    if number % 2:
        return (await client.chat.completions.create(**asked)).choices[0].message.content or ""
    text = ""
    async for chunk in await client.chat.completions.create(**asked, stream=True):
        text += chunk.choices[0].delta.content or ""
    return text


def test_errors_are_of_the_right_class(gateway: Served, client: openai.OpenAI) -> None:
    asked = {"model": "demo-chat", "messages": MESSAGES, "max_tokens": 4}
    with pytest.raises(openai.AuthenticationError, match="API key"):
        client.with_options(api_key="tt-wrong").chat.completions.create(**asked)
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(**{**asked, "model": "gpt-none"})
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.NotFoundError):
        client.moderations.create(input="x")  # not a path of the gateway
    with pytest.raises(openai.BadRequestError):
        client.post("/chat/completions", cast_to=object, content=b"{")
    limited = client.with_options(api_key=LIMITED)
    assert limited.chat.completions.create(**asked).choices
    with pytest.raises(openai.RateLimitError, match="1 request per minute") as too_many:
        limited.chat.completions.create(**asked)
    assert 0 < int(too_many.value.response.headers["retry-after"]) <= 60
    with pytest.raises(openai.InternalServerError) as busy:
        client.chat.completions.create(**{**asked, "model": "gone"})
    assert busy.value.status_code == 503
