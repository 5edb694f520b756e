"""Clients but OpenAI's, unmodified: Anthropic's, curl as the gateway prints it, locust, WebSockets."""

from __future__ import annotations

import csv
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.backends import Options, launched
from support.served import KEY, Served, chat, config_of, fetch, key_entry, served
from support.waiting import wait_until

LIMITED = "tt-one-request-a-minute"
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with launched(Options(name="chat-1", output_s=0.001, slots=64)) as backends:
        keys = [
            key_entry("tests", KEY),
            key_entry("limited", LIMITED, limits={"requests_per_minute": 1}),
        ]
        with served(tmp_path_factory.mktemp("others"), config_of(*backends, keys=keys)) as gateway:
            yield gateway


def test_anthropic(gateway: Served) -> None:
    anthropic = pytest.importorskip("anthropic")
    with anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client:
        asked = {"model": "demo-chat", "max_tokens": 5, "messages": HI}
        message = client.messages.create(**asked)
        assert message.content[0].text
        assert message.usage.output_tokens == 5
        with client.messages.stream(**asked) as stream:
            assert "".join(stream.text_stream) == message.content[0].text
            assert stream.get_final_message().usage.output_tokens == 5
        assert {event.type for event in client.messages.create(**asked, stream=True)} >= {
            "message_start",
            "content_block_delta",
            "message_stop",
        }


def test_anthropic_errors_are_in_its_form(gateway: Served) -> None:
    anthropic = pytest.importorskip("anthropic")
    asked = {"model": "demo-chat", "max_tokens": 5, "messages": HI}
    with anthropic.Anthropic(base_url=gateway.url, api_key="tt-wrong", max_retries=0) as client:
        with pytest.raises(anthropic.AuthenticationError) as refused:
            client.messages.create(**asked)
        assert refused.value.body["error"]["type"] == "authentication_error"
    with anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client:
        with pytest.raises(anthropic.NotFoundError) as missing:
            client.messages.create(**{**asked, "model": "none"})
        assert missing.value.body["type"] == "error"
        assert missing.value.body["error"]["type"] == "not_found_error"
    with anthropic.Anthropic(base_url=gateway.url, api_key=LIMITED, max_retries=0) as client:
        client.messages.create(**asked)
        with pytest.raises(anthropic.RateLimitError) as limited:
            client.messages.create(**asked)
        assert 0 < int(limited.value.response.headers["retry-after"]) <= 60


def test_realtime_is_a_tunnel(gateway: Served) -> None:
    sync_client = pytest.importorskip("websockets.sync.client")
    url = gateway.url.replace("http", "ws") + "/v1/realtime?model=demo-chat"
    with sync_client.connect(
        url, additional_headers={"Authorization": f"Bearer {KEY}"}, proxy=None
    ) as socket:
        for message in ("hello", b"\x00\x01" * 40_000):
            socket.send(message)
            assert socket.recv(timeout=60) == message
    websockets = pytest.importorskip("websockets.exceptions")
    with pytest.raises(websockets.InvalidStatus) as refused:
        sync_client.connect(url, proxy=None)
    assert refused.value.response.status_code == 401


LOCUSTFILE = """
from locust import HttpUser, constant, task


class Client(HttpUser):
    wait_time = constant(0)

    @task
    def chat(self):
        body = {"model": "demo-chat", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
        self.client.post("/v1/chat/completions", json=body, headers={"Authorization": "Bearer KEY"})

    @task
    def health(self):
        self.client.get("/health")
"""


def test_locust(gateway: Served, tmp_path: Path) -> None:
    if find_spec("locust") is None:  # importing it here would patch this process
        pytest.skip("locust is not installed")
    (tmp_path / "locustfile.py").write_text(LOCUSTFILE.replace("KEY", KEY))
    options = ("--headless", "-u", "8", "-r", "8", "-t", "3s", "--host", gateway.url, "--csv", "out")
    done = subprocess.run(
        [sys.executable, "-m", "locust", *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr  # locust says 1 where any request failed
    with (tmp_path / "out_stats.csv").open() as file:
        total = next(row for row in csv.DictReader(file) if row["Name"] == "Aggregated")
    assert int(total["Request Count"]) > 20
    assert int(total["Failure Count"]) == 0


def test_the_demonstration_and_its_curl_line(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    with served(tmp_path, None, "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0") as gateway:
        line = wait_until(lambda: re.search(r"^  curl .*'$", gateway.printed(), re.MULTILINE))[0]
        assert gateway.printed().startswith("trimtab serves http://")
        done = subprocess.run(
            [*shlex.split(line), "-sS", "--noproxy", "*"], capture_output=True, text=True, check=True
        )
        events = [event.removeprefix("data: ") for event in done.stdout.split("\n\n") if event]
        assert events[-1] == "[DONE]"
        assert all(json.loads(event)["object"] == "chat.completion.chunk" for event in events[:-1])
        for path in ("/health", "/ready"):
            assert gateway.call(path, key="").status == 200
        listed = gateway.call("/v1/models", key=gateway.key).json()
        assert {model["id"] for model in listed["data"]} == {"demo-chat", "demo-image"}
        picture = {"model": "demo-image", "prompt": "x", "size": "64x64"}
        assert gateway.call("/v1/images/generations", picture, key=gateway.key).status == 200
        with ThreadPoolExecutor(8) as pool:  # so many that the node that fails now and then gets some
            asked = partial(gateway.call, "/v1/chat/completions", chat(), key=gateway.key)
            calls = [pool.submit(asked) for _ in range(60)]
        assert {call.result().status for call in calls} == {200}  # the gateway asks another node
        admin_key = re.findall(r"admin key +(\S+)", gateway.printed())[0]
        nodes = gateway.admin("/admin/nodes", key=admin_key).json()["nodes"]
        assert next(node["served"] for node in nodes if node["name"] == "chat-failing") > 0


def test_a_quick_start_with_backends(tmp_path: Path) -> None:
    with launched(Options(name="one", output_s=0.001), Options(name="two", output_s=0.001)) as backends:
        urls = [part for backend in backends for part in ("--backend", backend.url)]
        free = ("--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--policy", "round-robin")
        with served(tmp_path, None, *urls, *free) as gateway:
            wait_until(lambda: gateway.call("/ready").status, lambda status: status == 200)
            wait_until(lambda: gateway.call("/v1/models", key=gateway.key).json()["data"])
            answers = [gateway.call("/v1/chat/completions", chat(), key=gateway.key) for _ in range(8)]
            assert {answer.status for answer in answers} == {200}
            assert len({answer.headers["x-trimtab-node"] for answer in answers}) == 2
            assert gateway.call("/v1/chat/completions", chat()).status == 401


def test_the_dashboard_opens_by_its_link_and_once_only(gateway: Served) -> None:
    import http.cookiejar
    import urllib.request

    jar = http.cookiejar.CookieJar()
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(jar)
    )
    with opener.open(gateway.link):  # it leads on to the dashboard, with a cookie
        pass
    with opener.open(gateway.admin_url + "/admin/nodes") as listed:
        assert json.load(listed)
    assert b"Sign in" in fetch(gateway.admin_url + "/", key="").body
    assert fetch(gateway.link, key="").status == 401
