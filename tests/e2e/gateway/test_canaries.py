"""Secrets are sent by every way into a gateway; then all that it wrote and serves is searched for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.backends import Options, launched
from support.served import KEY, Served, chat, config_of, served
from support.waiting import wait_until

NAMES = ("prompt", "user", "session", "model", "query", "header", "cookie", "job")
PROMPT, USER, SESSION, MODEL, QUERY, HEADER, COOKIE, JOB = (f"canary-{name}-7f3a9c" for name in NAMES)
SECRETS = (PROMPT, USER, SESSION, MODEL, QUERY, HEADER, COOKIE, KEY)


def ask_by_every_way(gateway: Served) -> None:
    said = {"x_trimtab_session": SESSION, "x_other": HEADER, "cookie": f"id={COOKIE}", "user_agent": HEADER}
    paths = (f"/v1/chat/completions?key={QUERY}", "/v1/chat/completions")
    for path in paths:
        assert gateway.call(path, chat(content=PROMPT, user=USER), **said).status == 200
    streamed = gateway.call(paths[1], chat(content=PROMPT, stream=True, user=USER), **said)
    assert streamed.status == 200
    assert gateway.call(paths[1], chat(MODEL, PROMPT), **said).status == 404
    assert gateway.call(paths[1], b'{"model": "demo-chat", "messages": "' + PROMPT.encode()).status == 400
    assert gateway.call(paths[1], chat(content=PROMPT), key=f"tt-{HEADER}").status == 401
    assert (
        gateway.call("/v1/completions", {"model": "demo-chat", "prompt": PROMPT, "max_tokens": 2}).status
        < 500
    )
    assert gateway.call("/v1/responses", {"model": "demo-chat", "input": PROMPT, "user": USER}).status < 503
    assert gateway.call(f"/v1/models?token={QUERY}", **said).status == 200
    gateway.call("/v1/nothing-here", {"prompt": PROMPT}, **said)


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[Served]:
    record = {"folder": "recording", "redact": "pseudonyms"}
    telemetry = {"log_requests": True, "log_format": "json"}
    shadow = {"policy": "round-robin"}
    with launched(Options()) as started:
        config = config_of(*started, record=record, telemetry=telemetry, shadow=shadow)
        with served(tmp_path, config) as gateway:
            ask_by_every_way(gateway)
            yield gateway


def found_in(text: bytes) -> list[str]:
    return [secret for secret in SECRETS if secret.encode() in text]


def test_nothing_that_was_sent_is_written_or_served(asked: Served, tmp_path: Path) -> None:
    asked.call("/v1/chat/completions", chat(content=JOB), prefer="respond-async", x_request_id="the-job")
    wait_until(lambda: asked.metric("trimtab_jobs", state="done"))
    for path in (
        "/metrics",
        "/admin/status",
        "/admin/nodes",
        "/admin/usage",
        "/admin/keys",
        "/admin/requests/the-job",
    ):
        served_there = asked.admin(path).body
        assert found_in(served_there) == [], path
        assert JOB.encode() not in served_there
    wait_until(lambda: any((tmp_path / "recording").iterdir()))
    asked.tell(2)
    assert asked.wait() == 0
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.parent.name == "recording" and path.stat().st_size > 1000 for path in written)
    for path in written:
        text = path.read_bytes()
        assert found_in(text) == [], path
        if JOB.encode() in text:  # a job is kept to be run, and asked for
            assert path.is_relative_to(tmp_path / "state"), path
    assert b"anary" not in b"".join(p.read_bytes() for p in (tmp_path / "recording").iterdir())
