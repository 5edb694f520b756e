"""WebSockets through the gateway, TLS to nodes, and paths below a base path."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

from support.gateway.plane import answers, gateway, ok, one_of, post
from support.waiting import until
from trimtab.gateway.api.usage import whole_usages
from trimtab.gateway.http.connection_context import Settings
from trimtab.gateway.model import Cause, Node, Outcome, Usage

KEY = {"authorization": "Bearer k"}


async def echo(socket: ServerConnection) -> None:
    async for message in socket:
        await socket.send(message)


async def test_a_websocket_is_a_tunnel() -> None:
    async with serve(echo, "127.0.0.1", 0, compression=None) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        async with gateway(ports=(port,)) as g:
            url = f"ws://127.0.0.1:{g.port}/v1/realtime?model=m"
            async with connect(url, additional_headers=KEY, compression=None) as socket:
                for size in (1, 1_000, 900_000):
                    await socket.send(b"x" * size)
                    assert await socket.recv() == b"x" * size
                assert g.context.exchanges == 1
            await until(lambda: g.notes.ends)
            (exchange,) = g.notes.ends
            assert g.context.exchanges == 0
            assert exchange.outcome is Outcome.DONE
            assert exchange.response_status == 101
            assert exchange.facts is not None
            assert exchange.facts.model == "m"
            assert exchange.response_bytes > 900_000
            assert g.dispatcher.log[-1] == ("done", 101)


async def answer(socket: ServerConnection) -> None:
    """Each message is an answer of 30 tokens in and 12 out; what the model says is no usage."""
    async for _ in socket:
        said = json.dumps({"type": "response.text.done", "text": '"usage": {"input_tokens": 1000}'})
        usage = {"total_tokens": 42, "input_tokens": 30, "output_tokens": 12}
        usage["input_token_details"] = {"cached_tokens": 0, "text_tokens": 30}  # type: ignore[assignment]
        await socket.send(said)
        await socket.send(json.dumps({"type": "response.created", "response": {"usage": None}}))
        await socket.send(json.dumps({"type": "response.done", "response": {"usage": usage}}))


async def test_the_usage_of_a_realtime_session_is_that_of_its_answers() -> None:
    async with serve(answer, "127.0.0.1", 0, compression=None) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        async with gateway(ports=(port,)) as g:
            url = f"ws://127.0.0.1:{g.port}/v1/realtime?model=m"
            async with connect(url, additional_headers=KEY, compression=None) as socket:
                for _ in range(3):
                    await socket.send("{}")
                    for _ in range(3):
                        await socket.recv()
            await until(lambda: g.notes.ends)
            (exchange,) = g.notes.ends
            assert exchange.usage == Usage(90, 36)


@pytest.mark.parametrize("size", [1, 3, 7, 50, 10_000])
def test_usage_is_read_whatever_the_pieces(size: int) -> None:
    event = {
        "response": {"usage": {"input_tokens": 5, "output_tokens": 2, "input_tokens_details": {"a": {}}}}
    }
    forged = json.dumps({"text": '"usage": {"input_tokens": 9}'})
    text = (json.dumps(event) + forged + json.dumps({"usage": None}) + json.dumps(event)).encode()
    rest, found = b"", []
    for at in range(0, len(text), size):
        more, rest = whole_usages(rest + text[at : at + size])
        found += more
    assert found == [Usage(5, 2), Usage(5, 2)]


async def test_a_silent_tunnel_is_closed() -> None:
    async with serve(echo, "127.0.0.1", 0, ping_interval=None) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        async with gateway(ports=(port,), settings=Settings(tunnel_idle_s=0.2)) as g:
            url = f"ws://127.0.0.1:{g.port}/v1/realtime?model=m"
            async with connect(url, additional_headers=KEY, ping_interval=None) as socket:
                await socket.wait_closed()
            assert g.dispatcher.log[-1] == ("failed", Cause.IDLE)


async def test_a_realtime_path_needs_a_key_and_an_upgrade() -> None:
    async with gateway(answers(ok(b"{}"))) as g:
        get = b"GET /v1/realtime?model=m HTTP/1.1\r\nhost: g\r\nconnection: close\r\n%b\r\n"
        assert (await g.raw(get % b"authorization: Bearer k\r\n")).startswith(b"HTTP/1.1 426")
        upgrade = b"connection: upgrade\r\nupgrade: websocket\r\n"
        assert (await g.raw((get % upgrade).replace(b"connection: close\r\n", b""))).startswith(
            b"HTTP/1.1 401"
        )
        refused = get % (upgrade + b"authorization: Bearer k\r\n")
        answer = await g.raw(refused.replace(b"connection: close\r\n", b""))
        assert answer.startswith(b"HTTP/1.1 200")  # the node did not switch: its answer is relayed


async def test_tls_to_a_node_with_its_own_authority_key_and_base_path(tmp_path: Path) -> None:
    key, crt = tmp_path / "k.pem", tmp_path / "c.pem"
    openssl = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=node.test",
    ]
    files = ["-addext", "subjectAltName=DNS:node.test", "-keyout", str(key), "-out", str(crt)]
    subprocess.run([*openssl, *files], check=True, capture_output=True)

    inside = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    inside.load_cert_chain(crt, key)
    seen: list[tuple[bytes, bytes]] = []
    server = await asyncio.start_server(one_of(answers(ok(b"{}"), seen)), "127.0.0.1", 0, ssl=inside)
    port = server.sockets[0].getsockname()[1]
    good = ssl.create_default_context(cafile=str(crt))
    async with gateway() as g:
        for context, status in ((good, b"200"), (ssl.create_default_context(), b"503")):
            node = Node(
                "tls", "", 0, "127.0.0.1", port, tls=True, models=(), max_requests=9, ssl=context,
                server_name="node.test", base_path="/base/", authorization=b"Bearer nodes-own",
            )  # fmt: skip
            g.dispatcher.nodes = [node]
            assert (await g.raw(post()))[9:12] == status
    head = seen[0][0]
    assert head.startswith(b"POST /base/v1/chat/completions HTTP/1.1\r\nhost: node.test:%d\r\n" % port)
    assert b"authorization: Bearer nodes-own\r\n" in head
    server.close()
    await asyncio.sleep(0.05)
