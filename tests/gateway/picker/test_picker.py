"""The endpoint-picker protocol, message by message; the proxy is played by the test."""

from __future__ import annotations

import asyncio
import json

import grpc
import pytest

from support.gateway.picker_client import CHAT, code, endpoints, node, proxy
from support.waiting import until
from trimtab.gateway.model import Cause, Outcome
from trimtab.gateway.picker.ext_proc_messages import BODY_FULL_DUPLEX, BODY_NONE, ProcessingRequest
from trimtab.gateway.picker.picked_exchange import PickedHead
from trimtab.gateway.picker.picker import endpoint_of

ADDRESSES = ["127.0.0.1:10", "127.0.0.1:11", "127.0.0.1:9"]


async def test_the_ranking_is_told_and_what_served_is_learned_from() -> None:
    async with proxy(*map(node, range(3)), policy="least-expected-wait") as at:
        stream = at.stream()
        ranking = endpoints(await stream.chosen(x_request_id="r-1"))
        assert sorted(ranking) == ADDRESSES
        (exchange,) = at.plane.picker.open
        assert endpoint_of(exchange.attempts[-1].node) == ranking[0]
        await stream.answer(served=ranking[2])
        by_name = {endpoint_of(one): one for one in at.core.fleet.nodes}
        assert [by_name[address].in_flight for address in ranking] == [0, 0, 1]
        assert [(endpoint_of(a.node), a.cause) for a in exchange.attempts] == [
            (ranking[0], Cause.CONNECT),
            (ranking[1], Cause.CONNECT),
            (ranking[2], None),
        ]
        await stream.answer_body(b'{"usage":{"prompt_tokens":5,"completion_tokens":2}}')
        assert exchange.outcome is Outcome.DONE
        assert exchange.usage is not None
        assert (exchange.usage.prompt_tokens, exchange.usage.completion_tokens) == (5, 2)
        receipt = at.core.decision_records.find("r-1")
        assert receipt is not None
        assert receipt["node"] == by_name[ranking[2]].name


async def test_one_endpoint_for_clusters_that_take_one() -> None:
    async with proxy(*map(node, range(3)), picker={"max_endpoints": 1}) as at:
        stream = at.stream()
        assert len(endpoints(await stream.chosen())) == 1
        stream.leave()


@pytest.mark.parametrize("policy", ["round-robin", "random", "power-of-d", "late-binding"])
async def test_every_policy_names_a_node_for_retries(policy: str) -> None:
    async with proxy(*map(node, range(3)), policy=policy) as at:
        stream = at.stream()
        assert len(set(endpoints(await stream.chosen()))) >= 2
        stream.leave()


@pytest.mark.parametrize("subset", [["127.0.0.1:10", "10.9.9.9:1"], "127.0.0.1:10"])
async def test_only_endpoints_of_the_subset(subset: object) -> None:
    async with proxy(*map(node, range(3))) as at:
        stream, second = at.stream(), at.stream()
        assert endpoints(await stream.chosen(subset=subset)) == ["127.0.0.1:10"]
        assert (await second.chosen(subset=subset)).HasField("override_message_timeout")  # one at a time
        free = at.stream()
        assert endpoints(await free.chosen())[0] != "127.0.0.1:10"  # the others are there as before
        stream.leave()
        assert endpoints(await second.heard()) == ["127.0.0.1:10"]
        second.leave()
        free.leave()


async def test_a_held_request_goes_to_what_its_subset_has_first() -> None:
    async with proxy(*map(node, range(3))) as at:
        subset = {"subset": ["127.0.0.1:9", "127.0.0.1:10"]}
        running = {}
        for _ in range(2):
            stream = at.stream()
            running[endpoints(await stream.chosen(**subset))[0]] = stream
        held = at.stream()
        assert (await held.chosen(**subset)).HasField("override_message_timeout")
        at.core.dispatcher.rebuild()  # as when a node is added
        for endpoint in ("127.0.0.1:10", "127.0.0.1:9"):  # whichever ends first
            running.pop(endpoint).leave()
            assert endpoints(await held.heard())[0] == endpoint
            running[endpoint], held = held, at.stream()
            assert (await held.chosen(**subset)).HasField("override_message_timeout")
        at.core.fleet.remove("n0")
        running["127.0.0.1:10"].leave()
        assert endpoints(await held.heard()) == ["127.0.0.1:10"]
        held.leave()
        running["127.0.0.1:9"].leave()


async def test_a_held_request_is_refused_when_its_subset_is_gone() -> None:
    async with proxy(*map(node, range(2))) as at:
        first, held = at.stream(), at.stream()
        await first.chosen(subset="127.0.0.1:9")
        await held.chosen(subset="127.0.0.1:9")
        at.core.fleet.remove("n0")
        assert code(await held.heard()) == (503, "no_node")
        first.leave()


@pytest.mark.parametrize("subset", [[], ["10.9.9.9:1"], ""])
async def test_no_endpoint_of_the_subset(subset: object) -> None:
    async with proxy(*map(node, range(2))) as at:
        assert code(await at.stream().chosen(subset=subset)) == (503, "no_endpoint")


async def test_no_endpoints_at_all() -> None:
    async with proxy() as at:
        assert code(await at.stream().chosen()) == (503, "no_endpoint")


async def test_a_held_request_is_told_to_wait_then_served_or_refused() -> None:
    async with proxy(node(0), queue={"max_wait_s": 0.3}) as at:
        first, second, third = at.stream(), at.stream(), at.stream()
        await first.chosen()
        assert (await second.chosen()).override_message_timeout.ToMilliseconds() == 1300
        assert code(await second.heard()) == (503, "no_capacity")
        assert (await third.chosen()).HasField("override_message_timeout")
        await first.answer(served="127.0.0.1:9")
        await first.answer_body()
        assert endpoints(await third.heard()) == ["127.0.0.1:9"]
        third.leave()


async def test_a_proxy_that_gives_up_a_held_request() -> None:
    async with proxy(node(0)) as at:
        first, second = at.stream(), at.stream()
        await first.chosen()
        await second.chosen()
        second.leave()
        await until(lambda: at.core.dispatcher.waiting() == [], "nothing waits")
        first.leave()


async def test_bodies_in_pieces() -> None:
    async with proxy(node(0, url="http://[::1]:9")) as at:
        stream = at.stream()
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * 150_000}]}).encode()
        await stream.head(mode=BODY_FULL_DUPLEX)
        for start in range(0, len(body), 60_000):
            message = ProcessingRequest()
            message.request_body.body = body[start : start + 60_000]
            message.request_body.end_of_stream = start + 60_000 >= len(body)
            await stream.say(message)
        head = await stream.heard()
        assert head.WhichOneof("one") == "request_headers"
        assert endpoints(head) == ["[::1]:9"]
        pieces = []
        while not pieces or not pieces[-1].end_of_stream:
            answer = await stream.heard()
            pieces.append(answer.request_body.response.body_mutation.streamed_response)
        assert b"".join(piece.body for piece in pieces) == body
        stream.leave()


async def test_trailers_end_a_body_in_pieces() -> None:
    async with proxy(node(0)) as at:
        stream = at.stream()
        await stream.head(mode=BODY_FULL_DUPLEX)
        message = ProcessingRequest()
        message.request_body.body = CHAT
        await stream.say(message)
        trailers = ProcessingRequest()
        trailers.request_trailers.SetInParent()
        assert endpoints(await stream.ask(trailers)) == ["127.0.0.1:9"]
        piece = (await stream.heard()).request_body.response.body_mutation.streamed_response
        assert (piece.body, piece.end_of_stream) == (CHAT, False)
        assert (await stream.heard()).WhichOneof("one") == "request_trailers"
        stream.leave()


async def test_by_headers_alone_the_model_may_be_named_there() -> None:
    async with proxy(node(0), routes={"alias": {"targets": "m"}}) as at:
        for headers in ({}, {"x_gateway_model_name": "m"}):
            stream = at.stream()
            await stream.head(mode=BODY_NONE, **headers)
            assert endpoints(await stream.heard()) == ["127.0.0.1:9"]
            (exchange,) = at.plane.picker.open
            assert exchange.facts is not None
            assert exchange.facts.model == headers.get("x_gateway_model_name", "")
            stream.leave()
            await until(lambda: not at.plane.picker.open)
        stream = at.stream()
        await stream.head(mode=BODY_NONE, x_gateway_model_name="alias")
        assert code(await stream.heard()) == (400, "alias_without_body")


async def test_bodies_beyond_the_limits() -> None:
    async with proxy(node(0), limits={"body_bytes": 100}) as at:
        stream = at.stream()
        await stream.head()
        await stream.heard()
        assert code(await stream.body(CHAT + b" " * 100)) == (413, "body_too_large")


async def test_a_backends_own_key_takes_the_place_of_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKEND_KEY", "k-backend")
    async with proxy(node(0, api_key_env="BACKEND_KEY"), node(1)) as at:
        streams = [at.stream(), at.stream()]
        found = {}
        for stream in streams:
            response = await stream.chosen(authorization="Bearer client", x_trimtab_session="s")
            mutation = response.request_body.response.header_mutation
            set_to = {one.header.key: one.header.raw_value for one in mutation.set_headers}
            found[endpoints(response)[0]] = set_to.get("authorization"), set(mutation.remove_headers)
            assert len(endpoints(response)) == 1  # the other has another key
            stream.leave()
            await until(lambda: not at.plane.picker.open)
            at.core.fleet.drain("n0" if "127.0.0.1:9" in found else "n1")
        assert found == {
            "127.0.0.1:9": (b"Bearer k-backend", {"x-trimtab-session"}),
            "127.0.0.1:10": (None, {"authorization", "x-trimtab-session"}),
        }


@pytest.mark.parametrize(
    ("details", "cause"),
    [
        ("upstream_reset_before_response_started{remote_connection_failure}", Cause.CONNECT),
        ("upstream_response_timeout", Cause.FIRST_BYTE),
        ("upstream_reset_before_response_started{connection_termination}", Cause.CONNECT),
        ("upstream_reset_before_response_started{protocol_error}", Cause.RESET),
    ],
)
async def test_what_the_proxy_answers_itself_is_no_answer_of_a_node(details: str, cause: Cause) -> None:
    async with proxy(node(0)) as at:
        stream = at.stream()
        await stream.chosen(x_request_id="lost")
        await stream.answer(503, details=details)
        await stream.answer_body(b"no healthy upstream")
        receipt = at.core.decision_records.find("lost")
        assert receipt is not None
        assert (receipt["state"], receipt["attempts"][0]["lost_by"]) == ("failed", cause.value)


async def test_a_nodes_own_error_counts_against_it() -> None:
    async with proxy(node(0)) as at:
        stream = at.stream()
        await stream.chosen(x_request_id="bad")
        await stream.answer(500, served="127.0.0.1:9")
        await stream.answer_body()
        receipt = at.core.decision_records.find("bad")
        assert receipt is not None
        assert (receipt["state"], receipt["status"], receipt["node"]) == ("failed", 500, "n0")
        assert at.core.fleet.nodes[0].failed == 1


async def test_health_by_name_of_service() -> None:
    async with proxy(node(0)) as at:
        assert await at.health("liveness") == 1
        for name in ("readiness", "envoy.service.ext_proc.v3.ExternalProcessor", ""):
            assert await at.health(name) == 2  # no node has passed a check
        at.core.fleet.state(at.core.fleet.nodes[0]).was_up = True
        for name in ("readiness", "envoy.service.ext_proc.v3.ExternalProcessor", ""):
            assert await at.health(name) == 1
        with pytest.raises(grpc.RpcError, match="no such service"):
            await at.health("other")


async def test_a_node_with_a_name_is_reported() -> None:
    async with proxy(node(0, url="http://backend:9")) as at:
        assert "is a name" in at.core.fleet.problems["endpoint n0"]


async def test_a_proxy_that_shows_no_responses(caplog: pytest.LogCaptureFixture) -> None:
    async with proxy(node(0)) as at:
        for k in range(2):
            stream = at.stream()
            await stream.chosen(x_request_id=f"r{k}")
            stream.leave()
            await until(lambda: not at.plane.picker.open)
        receipt = at.core.decision_records.find("r1")
        assert receipt is not None
        assert (receipt["state"], receipt["node"], receipt["status"]) == ("done", "n0", None)
        assert caplog.text.count("shows no responses") == 1


async def test_draining() -> None:
    async with proxy(node(0)) as at:
        stream = at.stream()
        await stream.chosen()
        draining = asyncio.create_task(at.plane.drain(60.0, 0.0))
        await until(lambda: at.plane.picker.refusing)
        assert await at.health("readiness") == 2
        assert await at.health("liveness") == 1
        assert code(await at.stream().chosen()) == (503, "draining")
        assert not draining.done()
        await stream.answer(served="127.0.0.1:9")
        await stream.answer_body()
        assert await draining == 0


def test_a_head_of_envoys() -> None:
    message = ProcessingRequest()
    for name, value in (
        (":method", "POST"), (":path", "/x?y=1"), ("x-request-id", "a b"), ("accept", "a"), ("accept", "b"),
        ("authorization", "Bearer k"), ("content-type", "application/json"), ("upgrade", "WebSocket"),
    ):  # fmt: skip
        message.request_headers.headers.headers.add(key=name, raw_value=value.encode())
    head = PickedHead(message.request_headers)
    assert (head.method, head.target, head.given_id) == ("POST", b"/x?y=1", "")
    assert head.content_type == "application/json"
    assert head.headers[b"accept"] == b"a, b"
    assert (head.websocket, head.removed, head.hinted) == (True, ("authorization",), False)
