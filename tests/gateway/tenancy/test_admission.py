"""Models by alias, share and fallback; limits of tenants; hints; ids; the gateway's own answers as files."""

from __future__ import annotations

import os
import socket
from collections import Counter
from pathlib import Path

import orjson

from support.gateway.plane import KEY_DIGEST, TENANT, answers, gateway, ok, post
from support.waiting import until
from trimtab.gateway.api.endpoints import Endpoints
from trimtab.gateway.config.keys import TenantLimits
from trimtab.gateway.config.routes import RouteSpec, resolved
from trimtab.gateway.http.connection_context import LocalAnswer, Settings
from trimtab.gateway.model import Exchange, Outcome, Refusal, Tenant
from trimtab.gateway.tenancy.admission import Admission, Ids
from trimtab.gateway.tenancy.tenant_limits import Limits

ROUTES = resolved(
    {
        name: RouteSpec.model_validate(route)
        for name, route in {
            "alias": {"targets": "big"},
            "canary": {"targets": [{"model": "big", "weight": 4}, "new"]},
            "safe": {"targets": "down", "fallback": "small"},
            "big": {"fallback": "small"},
            "ghost": {"fallback": "small"},
            "to-ghost": {"targets": "ghost"},
            "to-ghost-by-two": {"targets": "to-ghost"},
            "own-first": {"targets": "ghost", "fallback": "new"},
            "own-down": {"targets": "ghost", "fallback": "down"},
            "on-the-way": {"targets": "safe-ghost"},
            "safe-ghost": {"targets": "down", "fallback": "new"},
            "chain": {"targets": "down", "fallback": "ghost"},
            "round": {"fallback": "about"},
            "about": {"fallback": "round"},
        }.items()
    }
)
DOWN = {"down", "ghost", "round", "about"}
KNOWN = {"big", "new", "small", *DOWN}


def routed(tenant: Tenant = TENANT) -> Admission:
    return Admission(
        Endpoints(),
        lambda digest: tenant if digest == KEY_DIGEST else None,
        routes=ROUTES,
        known=KNOWN.__contains__,
        ready=lambda model: model not in DOWN,
    )


def chat(model: str, more: str = "") -> bytes:
    return b'{"messages":[],%b"model" : %b}' % (more.encode(), orjson.dumps(model))


async def test_aliases_and_fallbacks_put_the_models_name_in_the_body() -> None:
    seen: list[tuple[bytes, bytes]] = []
    async with gateway(answers(ok(b"{}"), seen), look=routed()) as g:
        for asked, model in (("alias", "big"), ("safe", "small"), ("big", "big"), ("new", "new")):
            assert (await g.raw(post(chat(asked)))).startswith(b"HTTP/1.1 200")
            assert seen[-1][1] == chat(model)  # nothing else has changed
            assert b"content-length: %d\r\n" % len(chat(model)) in seen[-1][0]
            facts = g.notes.ends[-1].facts
            assert facts is not None
            assert facts.model == model
        nested = '"metadata":{"model":"alias"},'
        assert (await g.raw(post(chat("alias", nested)))).startswith(b"HTTP/1.1 200")
        assert orjson.loads(seen[-1][1]) == {
            "messages": [],
            "metadata": {"model": "alias"},
            "model": "big",
        }
        answer = await g.raw(post(chat("nobody")))
        assert answer.startswith(b"HTTP/1.1 404")
        assert b"model_not_found" in answer


async def test_a_fallback_holds_whatever_route_leads_to_its_model() -> None:
    seen: list[tuple[bytes, bytes]] = []
    async with gateway(answers(ok(b"{}"), seen), look=routed()) as g:
        for asked, model in (
            ("ghost", "small"),
            ("to-ghost", "small"),
            ("to-ghost-by-two", "small"),
            ("own-first", "new"),  # the asked route's comes first
            ("own-down", "small"),  # and the next where that is not ready
            ("on-the-way", "new"),
            ("chain", "small"),  # the fallback's own
            ("round", "about"),  # nothing is ready: it waits for the first
            ("alias", "big"),
        ):
            assert (await g.raw(post(chat(asked)))).startswith(b"HTTP/1.1 200")
            assert seen[-1][1] == chat(model)


async def test_aliases_in_forms_and_queries() -> None:
    seen: list[tuple[bytes, bytes]] = []
    async with gateway(answers(ok(b"{}"), seen), look=routed()) as g:
        form = (
            b'--B\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\nalias\r\n'
            b'--B\r\nContent-Disposition: form-data; name="model"\r\n\r\nalias\r\n--B--\r\n'
        )
        request = post(form, path=b"/v1/audio/transcriptions")
        request = request.replace(b"application/json", b"multipart/form-data; boundary=B")
        assert (await g.raw(request)).startswith(b"HTTP/1.1 200")
        assert seen[-1][1] == form.replace(b"\r\n\r\nalias\r\n--B--", b"\r\n\r\nbig\r\n--B--")
        upgrade = b"connection: upgrade\r\nupgrade: websocket\r\nauthorization: Bearer k\r\n\r\n"
        await g.raw(b"GET /v1/realtime?a=1&model=alias HTTP/1.1\r\nhost: g\r\n" + upgrade)
        assert seen[-1][0].startswith(b"GET /v1/realtime?a=1&model=big HTTP/1.1\r\n")


LONG = b"x" * 3000


async def test_aliases_in_bodies_that_are_too_long_for_memory() -> None:
    form = (
        b'--B\r\nContent-Disposition: form-data; name="model"\r\n\r\n%b\r\n'
        b'--B\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\nalias'
        + LONG
        + b"\r\n--B--\r\n"
    )
    document = b'{"messages":[{"role":"user","content":"' + LONG + b'"}],"model" : "%b", "n":1}'
    cases = (
        (b"/v1/chat/completions", b"application/json", document),
        (b"/v1/audio/transcriptions", b"multipart/form-data; boundary=B", form),
    )

    seen: list[tuple[bytes, bytes]] = []
    settings = Settings(memory_body_bytes=1000)
    async with gateway(answers(ok(b"{}"), seen), look=routed(), settings=settings) as g:
        for path, content_type, body in cases:
            for asked, model in ((b"alias", b"big"), (b"safe", b"small"), (b"big", b"big")):
                request = post(body % asked, path=path).replace(b"application/json", content_type)
                assert (await g.raw(request)).startswith(b"HTTP/1.1 200")
                assert seen[-1][1] == body % model
                assert b"content-length: %d\r\n" % len(body % model) in seen[-1][0]


async def test_a_canary_gets_its_share_and_an_id_always_the_same_model() -> None:
    async with gateway(answers(ok(b"{}")), look=routed()) as g:
        for _ in range(14):
            await g.raw(post(chat("canary"), close=False) * 20 + post(chat("canary")))
        models = Counter(end.facts.model for end in g.notes.ends if end.facts is not None)
        assert models.keys() == {"big", "new"}
        assert 0.08 < models["new"] / models.total() < 0.35
        before = len(g.notes.ends)
        for _ in range(8):
            await g.raw(post(chat("canary"), more=b"x-request-id: one\r\n"))
        assert len({end.facts.model for end in g.notes.ends[before:] if end.facts is not None}) == 1


async def test_a_response_is_that_of_the_path_whatever_the_body_says() -> None:
    async with gateway(answers(ok(b"{}"))) as g:
        for body in (b"", b'{"model":"m","previous_response_id":"resp_1"}'):
            await g.raw(post(body, path=b"/v1/responses/resp_9/cancel"))
            facts = g.notes.ends[-1].facts
            assert facts is not None
            assert facts.previous_response_id == "resp_9"


def limited(**limits: float) -> Tenant:
    return Tenant("limited", 1, limits=Limits(TenantLimits.model_validate(limits)))


async def test_tokens_are_given_back_where_no_node_connected() -> None:
    tenant = limited(tokens_per_minute=1000)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        port = nobody.getsockname()[1]
        async with gateway(look=routed(tenant), ports=(port,)) as g:
            for _ in range(4):
                asked = b'{"model":"big","max_tokens":900,"messages":[{"role":"user","content":"a"}]}'
                assert (await g.raw(post(asked)))[9:12] == b"503"


async def test_limits_of_a_tenant_are_429_and_give_their_places_back() -> None:
    tenant = limited(requests_per_minute=3)
    async with gateway(answers(ok(b"{}")), look=routed(tenant)) as g:
        statuses = [int((await g.raw(post(chat("big"))))[9:12]) for _ in range(5)]
        assert statuses == [200, 200, 200, 429, 429]
        assert tenant.limits.in_flight == 0
        answer = await g.raw(post(chat("big")))
        assert b"retry-after: " in answer.lower()
        assert g.notes.ends[-1].outcome is Outcome.REFUSED
    tenant = limited(concurrency=1)
    async with gateway(answers(ok(b"{}")), look=routed(tenant)) as g:
        g.dispatcher.hold = True
        reader, writer = await g.connect()
        writer.write(post(chat("big")))
        await until(lambda: g.dispatcher.held)
        assert (await g.raw(post(chat("big")))).startswith(b"HTTP/1.1 429")
        g.dispatcher.held[0].start(g.dispatcher.nodes[0])
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        g.dispatcher.hold = False
        assert (await g.raw(post(chat("big")))).startswith(b"HTTP/1.1 200")
        writer.close()
        assert tenant.limits.in_flight == 0


async def test_tokens_are_counted_as_they_were_used() -> None:
    used = ok(b'{"usage":{"prompt_tokens":1,"completion_tokens":1}}')
    asked = chat("big", '"max_tokens":90,')
    async with gateway(answers(used), look=routed(limited(tokens_per_minute=100))) as g:
        for _ in range(3):  # 90 are taken, 2 are used
            assert (await g.raw(post(asked))).startswith(b"HTTP/1.1 200")
    async with gateway(answers(ok(b"{}")), look=routed(limited(tokens_per_minute=100))) as g:
        assert (await g.raw(post(asked))).startswith(b"HTTP/1.1 200")
        assert (await g.raw(post(asked))).startswith(b"HTTP/1.1 429")


def test_ids_differ() -> None:
    ids = Ids()
    assert len({ids() for _ in range(2_000)}) == 2_000
    assert len(ids()) == 32


async def test_files_are_sent_whole_and_missing_ones_are_404(tmp_path: Path) -> None:
    content = os.urandom(3_000_000)
    (tmp_path / "result").write_bytes(content)

    async def file_answer(exchange: Exchange, body: bytes) -> LocalAnswer | Refusal:
        name = "result" if exchange.path == "/health" else "gone"
        return LocalAnswer(200, (("content-type", "video/mp4"),), tmp_path / name)

    async with gateway(answers(ok(b"{}"))) as g:
        g.context.local = file_answer
        get = b"%b %b HTTP/1.1\r\nhost: g\r\nconnection: close\r\n\r\n"
        answer = await g.raw(get % (b"GET", b"/health"))
        head, body = answer.split(b"\r\n\r\n", 1)
        assert b"content-length: 3000000" in head
        assert body == content
        only_head = await g.raw(get % (b"HEAD", b"/health"))
        assert only_head.endswith(b"\r\n\r\n")
        assert b"content-length: 3000000" in only_head
        assert (await g.raw(get % (b"GET", b"/ready"))).startswith(b"HTTP/1.1 404")
