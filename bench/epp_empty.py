"""An endpoint picker that decides nothing: what gRPC costs. `python -m bench.epp_empty PORT ENDPOINT`"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc
import uvloop
from grpc import aio

from trimtab.gateway.app.picker_plane import SERVICE
from trimtab.gateway.picker.answers import GO_ON, chosen
from trimtab.gateway.picker.ext_proc_messages import BODY_NONE, ProcessingRequest


async def main(port: str, endpoint: str) -> None:
    """Answer until it is killed."""

    async def process(_: object, context: Any) -> None:
        sees_body = False
        while isinstance(data := await context.read(), bytes):
            message = ProcessingRequest.FromString(data)
            part = message.WhichOneof("one")
            if part == "request_headers":
                sees_body = message.protocol_config.request_body_mode != BODY_NONE
            decides = part == ("request_body" if sees_body else "request_headers")
            await context.write(chosen(part, endpoint, (), ()) if decides else GO_ON[part])

    server = aio.server()
    handler = grpc.stream_stream_rpc_method_handler(process)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Process": handler}),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.Runner(loop_factory=uvloop.new_event_loop).run(main(*sys.argv[1:]))
