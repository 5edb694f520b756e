"""Headers that the gateway adds for a tenant's limits and for pages of other origins."""

from __future__ import annotations

import pytest

from support.gateway.plane import KEY_DIGEST, answers, gateway, ok, post
from trimtab.gateway.api.cors import Cors
from trimtab.gateway.api.endpoints import Endpoints
from trimtab.gateway.config import TenantLimits
from trimtab.gateway.model import Tenant
from trimtab.gateway.tenancy.admission import Admission
from trimtab.gateway.tenancy.tenant_limits import Limits, duration

ORIGIN = "https://app.example.org"
NODES = b"X-RateLimit-Limit-Requests: 7\r\naccess-control-allow-origin: *\r\nx-kept: 1\r\n"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n" + NODES + b"transfer-encoding: chunked\r\n\r\n"
    b"3\r\nabc\r\n0\r\n\r\n"
)


def look(cors: Cors | None = None, **limits: float) -> Admission:
    tenant = Tenant("t", 0, limits=Limits(TenantLimits.model_validate(limits)))
    return Admission(Endpoints(), lambda digest: tenant if digest == KEY_DIGEST else None, cors=cors)


def headers(answer: bytes) -> dict[str, list[str]]:
    """By lower-case name; several values of one name show a duplicate."""
    found: dict[str, list[str]] = {}
    for line in answer.split(b"\r\n\r\n")[0].decode().split("\r\n")[1:]:
        name, _, value = line.partition(": ")
        found.setdefault(name.lower(), []).append(value)
    return found


async def test_limits_are_shown_and_replace_those_of_the_node() -> None:
    async with gateway(answers(ok(b"{}", more=NODES)), look=look(requests_per_minute=60)) as g:
        found = headers(await g.raw(post()))
    assert found["x-ratelimit-limit-requests"] == ["60"]
    assert found["x-ratelimit-remaining-requests"] == ["59"]
    assert found["x-ratelimit-reset-requests"] == ["1s"]
    assert "x-ratelimit-limit-tokens" not in found
    assert found["x-kept"] == ["1"]
    assert found["access-control-allow-origin"] == ["*"], "the node's own, as no origins are configured"


async def test_limits_are_shown_on_streams_and_refusals() -> None:
    limits = {"requests_per_minute": 1, "tokens_per_minute": 6000}
    async with gateway(answers(CHUNKED), look=look(**limits)) as g:
        stream, refused = await g.raw(post()), await g.raw(post())
    found = headers(stream)
    assert found["x-ratelimit-limit-requests"] == ["1"]
    assert found["x-ratelimit-remaining-requests"] == ["0"]
    assert found["x-ratelimit-reset-requests"] == ["1m0s"]
    assert found["x-ratelimit-limit-tokens"] == ["6000"]
    assert 5990 <= int(found["x-ratelimit-remaining-tokens"][0]) < 6000
    assert refused.startswith(b"HTTP/1.1 429 ")
    assert headers(refused)["x-ratelimit-remaining-requests"] == ["0"]


async def test_without_limits_and_origins_nothing_is_added() -> None:
    async with gateway(answers(ok(b"{}", more=NODES)), look=look()) as g:
        found = headers(await g.raw(post(more=b"origin: https://app.example.org\r\n")))
    assert found["x-ratelimit-limit-requests"] == ["7"]
    assert found["access-control-allow-origin"] == ["*"]
    assert "vary" not in found


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0s"),
        (0.017, "17ms"),
        (1.0, "1s"),
        (8.64, "8.64s"),
        (360.0, "6m0s"),
        (59.9996, "1m0s"),
        (3605.5, "1h0m5.5s"),
    ],
)
def test_durations_are_written_as_go_does(seconds: float, text: str) -> None:
    assert duration(seconds) == text


async def test_a_named_origin_may_read_answers_and_refusals_and_no_other_may() -> None:
    cors = Cors([ORIGIN], 600)
    for node in (ok(b"{}", more=NODES), CHUNKED):
        async with gateway(answers(node), look=look(cors)) as g:
            named = headers(await g.raw(post(more=f"origin: {ORIGIN}\r\n".encode())))
            other = headers(await g.raw(post(more=b"origin: https://app.example.org:444\r\n")))
            none = headers(await g.raw(post()))
            bad = post(more=f"origin: {ORIGIN}\r\n".encode()).replace(b"Bearer k", b"Bearer x")
            refused = await g.raw(bad)
        assert named["access-control-allow-origin"] == [ORIGIN]
        assert "x-request-id" in named["access-control-expose-headers"][0]
        assert named["vary"] == other["vary"] == ["origin"]
        assert "access-control-allow-origin" not in other
        assert none["access-control-allow-origin"] == ["*"]
        assert refused.startswith(b"HTTP/1.1 401 ")
        assert headers(refused)["access-control-allow-origin"] == [ORIGIN]


async def test_a_preflight_goes_to_the_gateway_itself_without_a_key() -> None:
    asks = (
        b"OPTIONS /v1/chat/completions HTTP/1.1\r\nhost: g\r\norigin: https://app.example.org\r\n"
        b"%bconnection: close\r\n\r\n"
    )
    asked = asks % b"access-control-request-method: POST\r\n"
    seen: list[tuple[bytes, bytes]] = []
    async with gateway(answers(ok(b"{}"), seen), look=look(Cors([ORIGIN], 600))) as g:
        answer = await g.raw(asked)
        plain = await g.raw(asks % b"")
    assert answer.endswith(b"local "), "the part of the gateway that answers"
    assert headers(answer)["access-control-allow-origin"] == [ORIGIN]
    assert plain.startswith(b"HTTP/1.1 405 ")
    async with gateway(answers(ok(b"{}"), seen), look=look()) as g:
        assert (await g.raw(asked)).startswith(b"HTTP/1.1 405 ")
    assert not seen


def test_what_a_preflight_allows() -> None:
    cors = Cors([ORIGIN], 600)
    allowed = dict(cors.preflight(ORIGIN.encode()))
    assert "POST" in allowed["access-control-allow-methods"]
    assert {"authorization", "content-type"} <= set(allowed["access-control-allow-headers"].split(", "))
    assert allowed["access-control-max-age"] == "600"
    assert cors.preflight(b"https://other.example.org") == ()
