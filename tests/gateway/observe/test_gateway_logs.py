"""Log lines are one per request, whole, and without secrets."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from support.gateway.observe_builders import make_exchange
from trimtab.gateway.model import Endpoint, Kind, Outcome, Usage
from trimtab.gateway.nodes import fleet, periodic
from trimtab.gateway.observe.logs import ROOT, RequestLog, Which, redacted, set_up_logs


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    logger = logging.getLogger(ROOT)
    logger.handlers.clear()
    logger.propagate = True


def lines(form: str, which: Which, level: str = "info") -> str:
    stream = io.StringIO()
    set_up_logs(form, level, stream)
    log = RequestLog(which)
    log.ended([make_exchange(usage=Usage(3, 4), path="/v1/chat/completions?key=abc", body=b"my prompt")])
    log.ended([make_exchange(id="r-2", outcome=Outcome.FAILED, response_status=502)])
    return stream.getvalue()


def test_json_lines() -> None:
    first, second = map(json.loads, lines("json", Which.ALL).splitlines())
    assert (first["event"], first["level"], first["id"], first["node"]) == ("request", "info", "r-1", "a")
    assert (first["path"], first["duration_s"], first["wait_s"]) == ("/v1/chat/completions", 2.5, 0.5)
    assert (first["prompt_tokens"], first["completion_tokens"]) == (3, 4)
    assert (second["level"], second["outcome"]) == ("warning", "failed")


@pytest.mark.parametrize(("which", "count"), [(Which.NONE, 0), (Which.FAILED, 1), (Which.ALL, 2)])
def test_which_requests_get_a_line(which: Which, count: int) -> None:
    assert len(lines("text", which).splitlines()) == count


def test_a_gateway_that_is_not_ready_is_no_failure() -> None:
    stream = io.StringIO()
    set_up_logs("text", stream=stream)
    ready = Endpoint("/ready", ("GET",), Kind.READY, local=True)
    RequestLog(Which.FAILED).ended(
        [make_exchange(endpoint=ready, outcome=Outcome.FAILED, response_status=503)]
    )
    assert stream.getvalue() == ""


def test_the_level_counts() -> None:
    assert len(lines("text", Which.ALL, "warning").splitlines()) == 1


def test_neither_body_nor_query_is_written() -> None:
    for form in ("json", "text"):
        written = lines(form, Which.ALL)
        assert "my prompt" not in written
        assert "abc" not in written


def test_a_client_cannot_forge_a_line() -> None:
    for form in ("json", "text"):
        stream = io.StringIO()
        set_up_logs(form, stream=stream)
        RequestLog(Which.ALL).ended([make_exchange(id="x\nINFO forged\x1b[31m")])
        assert stream.getvalue().count("\n") == 1
        assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer SECRET123",
        "api_key=SECRET123",
        '{"api_key": "SECRET123"}',
        "postgresql://user:SECRET123@db/x",
        "using sk-SECRET123456",
        "/login?token=SECRET123",
    ],
)
def test_credentials_are_hidden(text: str) -> None:
    assert "SECRET123" not in redacted(text)
    stream = io.StringIO()
    set_up_logs("json", stream=stream)
    try:
        raise RuntimeError(text)
    except RuntimeError:
        logging.getLogger(f"{ROOT}.x").exception("failed with %s", text, extra={"detail": text})
    assert "SECRET123" not in stream.getvalue()


def test_plain_words_stay() -> None:
    text = "node a at http://127.0.0.1:9000/v1 is down: 3 tokens left"
    assert redacted(text) == text


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(ValueError, match="json or text"):
        set_up_logs("xml")


def test_what_the_gateways_own_modules_log_comes_out_in_this_form_without_secrets() -> None:
    stream = io.StringIO()
    set_up_logs("json", stream=stream)
    fleet.logger.info("node a: up")
    periodic.logger.error("cannot look at %s", "postgresql://user:SECRET123@db/x")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert (first["event"], first["level"]) == ("node a: up", "info")
    assert (second["level"], "SECRET123" in second["event"]) == ("error", False)
