"""A proxy as tests play it: streams of messages to a picker in the test's own loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

from grpc import aio

from support.waiting import until
from trimtab.gateway.app.assembly import GatewayCore
from trimtab.gateway.app.picker_plane import HEALTH, SERVICE, PickerPlane
from trimtab.gateway.config import parse_config
from trimtab.gateway.picker.answers import DESTINATION, NAMESPACE
from trimtab.gateway.picker.ext_proc_messages import (
    BODY_BUFFERED,
    HealthCheckRequest,
    HealthCheckResponse,
    ProcessingRequest,
    ProcessingResponse,
)

CHAT = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
HEADERS = {":method": "POST", ":path": "/v1/chat/completions", "content-type": "application/json"}


class Stream:
    """One request's messages."""

    def __init__(self, call: Any) -> None:
        self._call = call

    async def say(self, message: Any) -> None:
        """Send a message."""
        await self._call.write(message.SerializeToString())

    async def heard(self) -> Any:
        """The next answer; None = the picker has ended the stream."""
        data = await self._call.read()
        return None if data is aio.EOF else ProcessingResponse.FromString(data)

    async def ask(self, message: Any) -> Any:
        """Send a message and wait for the answer."""
        await self.say(message)
        return await self.heard()

    async def head(self, mode: int = BODY_BUFFERED, subset: Any = None, **headers: str) -> None:
        """Send the head of a request. `subset`: endpoints that the proxy allows, as list or text."""
        message = ProcessingRequest()
        for name, value in {**HEADERS, **{k.replace("_", "-"): v for k, v in headers.items()}}.items():
            message.request_headers.headers.headers.add(key=name, raw_value=value.encode())
        message.protocol_config.request_body_mode = mode
        message.protocol_config.response_body_mode = 1
        if subset is not None:
            hint = message.metadata_context.filter_metadata["envoy.lb.subset_hint"]
            hint.update({"x-gateway-destination-endpoint-subset": subset})
        await self.say(message)

    async def body(self, body: bytes = CHAT) -> Any:
        """Send the whole body; returns the answer."""
        message = ProcessingRequest()
        message.request_body.body, message.request_body.end_of_stream = body, True
        return await self.ask(message)

    async def chosen(self, **head: Any) -> Any:
        """Send a whole request; returns the answer to its body."""
        await self.head(**head)
        first = await self.heard()
        return first if first.HasField("immediate_response") else await self.body()

    async def answer(self, status: int = 200, served: str = "", details: str = "via_upstream") -> Any:
        """Send the head of a response."""
        message = ProcessingRequest()
        for name, value in ((":status", str(status)), ("content-type", "application/json")):
            message.response_headers.headers.headers.add(key=name, raw_value=value.encode())
        if served:
            metadata = message.metadata_context.filter_metadata[NAMESPACE]
            metadata.update({"x-gateway-destination-endpoint-served": served})
        message.attributes["envoy.filters.http.ext_proc"].update({"response.code_details": details})
        return await self.ask(message)

    async def answer_body(self, body: bytes = b"{}") -> None:
        """Send the whole body of a response, and end."""
        message = ProcessingRequest()
        message.response_body.body, message.response_body.end_of_stream = body, True
        await self.ask(message)
        await self._call.done_writing()
        assert await self.heard() is None

    def leave(self) -> None:
        """Break the stream off."""
        self._call.cancel()


def endpoints(response: Any) -> list[str]:
    """What header and metadata say, which must be the same."""
    part = getattr(response, response.WhichOneof("one"))
    headers = {o.header.key: o.header.raw_value.decode() for o in part.response.header_mutation.set_headers}
    said = response.dynamic_metadata[NAMESPACE][DESTINATION]
    assert headers[DESTINATION] == said
    return list(said.split(","))


def code(response: Any) -> tuple[int, str]:
    """Status and error code of an immediate answer."""
    at_once = response.immediate_response
    return at_once.status.code, json.loads(at_once.body)["error"]["code"]


class Proxy:
    """What a test holds."""

    def __init__(self, core: GatewayCore, plane: PickerPlane, channel: aio.Channel) -> None:
        self.core, self.plane = core, plane
        self._process = channel.stream_stream(f"/{SERVICE}/Process")
        self._check = channel.unary_unary(f"/{HEALTH}/Check")

    def stream(self) -> Stream:
        """A new request."""
        return Stream(self._process())

    async def health(self, name: str) -> int:
        """The health of a service. Raises grpc.RpcError."""
        return int(
            HealthCheckResponse.FromString(
                await self._check(HealthCheckRequest(value=name).SerializeToString())
            ).value
        )


@contextlib.asynccontextmanager
async def proxy(*nodes: dict[str, Any], **changes: Any) -> AsyncIterator[Proxy]:
    """A picker for these nodes, which are held to be up."""
    config = {"insecure_no_auth": True, "nodes": list(nodes), "health": {"period_s": 60.0}, **changes}
    core = GatewayCore(parse_config(json.dumps(config)), asyncio.get_running_loop(), PickerPlane)
    plane = core.plane
    assert isinstance(plane, PickerPlane)
    core.health_manager.start = lambda: None  # type: ignore[method-assign]  # nobody listens at the nodes
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    await core.open(sock)
    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            yield Proxy(core, plane, channel)
            await until(lambda: not (plane.picker.open or plane.picker.buffered_bytes), "every request ends")
            assert all(node.in_flight == 0 for node in core.fleet.nodes)
        finally:
            await core.close()


def node(k: int, **more: Any) -> dict[str, Any]:
    """A node at an address of which nobody is asked anything."""
    return {"name": f"n{k}", "url": f"http://127.0.0.1:{9 + k}", "models": ["m"], "capacity": 1, **more}
