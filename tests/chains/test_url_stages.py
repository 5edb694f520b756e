"""Stages that are URLs: a server of the test's own answers; on threads and on processes, fused and apart."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from trimtab.chains import Session, State, chain
from trimtab.chains.url_stages import http_stage, openai_stage
from trimtab.clusters.in_process import InProcess
from trimtab.clusters.processes import Processes
from trimtab.live.stage_backend import StageBackend, StageNode


class Service(ThreadingHTTPServer):
    """Doubles numbers, refuses under another path, and echoes what a chat model is asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.asked: Counter[str] = Counter()
        self.headers: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answers(BaseHTTPRequestHandler):
    server: Service

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.headers.append(self.headers["Authorization"])
        self.server.asked[f"{self.path} {json.dumps(asked)}"] += 1
        if self.path == "/refuse":
            return self._answer(503, b"busy")
        if self.path == "/double":
            return self._answer(200, json.dumps(2 * asked["n"]).encode())
        text = f"{asked['model']}: {asked['messages'][-1]['content']}"
        return self._answer(200, json.dumps({"choices": [{"message": {"content": text}}]}).encode())

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Quietly."""


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("backend", "fuse_s"),
    [
        (InProcess([StageNode("one")]), 0.0),
        (InProcess([StageNode("one")]), 1.0),
        (Processes([StageNode("one")]), 1.0),
    ],
)
def test_urls_are_called_once_for_each_instance(
    service: Service, backend: StageBackend, fuse_s: float
) -> None:
    double = http_stage(f"{service.url}/double", name="double", cost_s=0.5)

    @chain
    def fourfold(n: int) -> Any:
        return double.named("second")(n=double(n=n))

    with Session(fourfold, on=backend, fuse_s=fuse_s) as session:
        assert session.run(fourfold, [1, 5]).values() == [4, 20]
    assert service.asked == {f'/double {{"n": {n}}}': 1 for n in (1, 2, 5, 10)}


def test_a_refusal_is_told_and_tried_as_often_as_declared(service: Service) -> None:
    first = http_stage(f"{service.url}/double", name="double", cost_s=0.5)
    refused = http_stage(f"{service.url}/refuse", name="refused", cost_s=0.5, retries=1, backoff_s=0.0)

    @chain
    def asks(n: int) -> Any:
        return refused(n=first(n=n))

    with Session(asks, on=InProcess([StageNode("one")]), fuse_s=1.0) as session:
        (result,) = session.run(asks, [3]).wait()
    assert result.state is State.FAILED
    assert "refused[0] after 2 attempts" in str(result.failure)
    assert "answered 503: busy" in str(result.failure)
    assert service.asked == {'/double {"n": 3}': 1, '/refuse {"n": 6}': 2}


def test_a_chat_model_is_asked_with_its_key(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_KEY", "abc")
    ask = openai_stage(f"{service.url}/v1/", "small", name="ask", key_variable="MODEL_KEY")

    @chain
    def asks(prompt: str) -> Any:
        return ask(prompt)

    with Session(asks, on=InProcess([StageNode("one")])) as session:
        assert session.run(asks, ["why?"]).values() == ["small: why?"]
    assert service.headers == ["Bearer abc"]
    (asked,) = service.asked
    path, _, told = asked.partition(" ")
    assert path == "/v1/chat/completions"
    assert json.loads(told)["messages"] == [{"role": "user", "content": "why?"}]
