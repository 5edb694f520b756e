"""The demonstration's nodes: what they answer, and that they end with the process that started them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import openai
import psutil
import pytest

from support.waiting import wait_until
from trimtab.gateway.demo import DEMO_NODES, running_nodes

HELLO: Any = [{"role": "user", "content": "hello"}]
PARENT = """
import psutil, time
from trimtab.gateway.demo import running_nodes
with running_nodes():
    print(psutil.Process().children()[0].pid, flush=True)
    time.sleep(60)
"""


@pytest.fixture(scope="module")
def urls() -> Iterator[dict[str, str]]:
    """URLs of the nodes by name."""
    with running_nodes() as nodes:
        yield {node.name: url for url, node in nodes.items()}


def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)


def test_chat_whole_and_streamed(urls: dict[str, str]) -> None:
    with client(urls["chat-fast"]) as chat:
        whole = chat.chat.completions.create(model="demo-chat", messages=HELLO, max_tokens=3)
        assert whole.choices[0].message.content == "a small tab "
        assert whole.choices[0].finish_reason == "length"
        options: Any = {"include_usage": True}
        stream = chat.chat.completions.create(
            model="demo-chat", messages=HELLO, max_tokens=3, stream=True, stream_options=options
        )
        chunks = list(stream)
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "a small tab "
        assert chunks[-1].usage == whole.usage
        assert [model.id for model in chat.models.list()] == ["demo-chat"]
        with pytest.raises(openai.NotFoundError):
            chat.chat.completions.create(model="other", messages=HELLO)
        with pytest.raises(openai.BadRequestError):
            chat.post("/chat/completions", body=[], cast_to=object)
        metrics = chat.with_options(base_url=urls["chat-fast"]).get("/metrics", cast_to=str)
    assert 'vllm:request_success_total{model_name="demo-chat"} 2.0\n' in metrics
    assert 'vllm:generation_tokens_total{model_name="demo-chat"} 6.0\n' in metrics


def test_an_image_is_a_picture(urls: dict[str, str]) -> None:
    with client(urls["image"]) as images:
        made = images.images.generate(model="demo-image", prompt="a ship", n=2, size="64x32").data
    assert made is not None
    assert len({picture.b64_json for picture in made}) == 2
    assert all((picture.b64_json or "").startswith("iVBORw0KGgo") for picture in made)


def test_one_node_fails_now_and_then(urls: dict[str, str]) -> None:
    outcomes = []
    with client(urls["chat-failing"]) as chat:
        for _ in range(60):
            try:
                chat.chat.completions.create(model="demo-chat", messages=HELLO, max_tokens=1)
                outcomes.append(200)
            except openai.InternalServerError as error:
                outcomes.append(error.status_code)
    assert set(outcomes) == {200, 503}
    assert outcomes.count(503) < 20


def test_nodes_are_unequal() -> None:
    chat = [node for node in DEMO_NODES if node.model == "demo-chat"]
    assert len({node.speed for node in chat}) == len(chat)


def test_they_end_with_their_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        nodes = psutil.Process(int(json.loads(parent.stdout.readline())))
        parent.kill()
    wait_until(lambda: not nodes.is_running() or nodes.status() == psutil.STATUS_ZOMBIE)
