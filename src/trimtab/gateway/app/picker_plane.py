"""The endpoint picker, mounted on the gateway's core: its gRPC server and health checks."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Final

import grpc
from grpc import aio

from trimtab.errors import ConfigError
from trimtab.gateway.app import config_mapping
from trimtab.gateway.app.assembly import GatewayCore
from trimtab.gateway.config import GatewayConfig
from trimtab.gateway.config.types import TlsSpec
from trimtab.gateway.model import ObserverCalls
from trimtab.gateway.nodes.address import parse_base, with_port
from trimtab.gateway.picker.ext_proc_messages import (
    NOT_SERVING,
    SERVING,
    HealthCheckRequest,
    HealthCheckResponse,
)
from trimtab.gateway.picker.picker import Picker, is_address

SERVICE: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
HEALTH: Final = "grpc.health.v1.Health"
LIVENESS: Final = "liveness"
READINESS: Final = "readiness"
MESSAGE_BYTES: Final = 4096  # of a message besides the body in it
DRAIN_STEP_S: Final = 0.02


def check_picker(config: GatewayConfig) -> None:
    """Raise ConfigError for a node that cannot be told to a proxy, and for certificates that cannot be used.

    A proxy takes `ip:port` only.
    """
    if config.picker.tls is not None:
        config.picker.tls.context("picker.tls")
    for k, entry in enumerate(config.nodes):
        address, problem = parse_base(entry.url), ""
        if address.path:
            problem = "has a path"
            expected = "no path: the proxy sends requests with the path that the client names"
        if not is_address(address.host):
            problem = "has a name"
            expected = "an IP address, as the proxy is told addresses; discovery.dns follows a name"
        if problem:
            raise ConfigError(problem, field=f"nodes[{k}].url", value=entry.url, expected=expected)


class PickerPlane:
    """A proxy asks where requests go."""

    def __init__(self, core: GatewayCore) -> None:
        self._core = core
        self.draining = False
        self.picker = Picker(
            core.loop,
            config_mapping.picker_settings(core.config),
            core.fleet,
            core.admission,
            core.dispatcher,
            ObserverCalls.of(core.observers),
            core.answer,
        )
        self._server: Any = None

    async def serve(self, listening: socket.socket) -> None:
        """Answer a proxy from now on, at the address of this bound socket, which it closes.

        Raises ConfigError if the address is taken.
        """
        config = self._core.config
        address = with_port(*listening.getsockname()[:2])
        listening.close()
        options = [
            ("grpc.so_reuseport", int(config.reuse_port)),
            ("grpc.max_receive_message_length", config.limits.body_bytes + MESSAGE_BYTES),
            ("grpc.max_send_message_length", config.limits.body_bytes + MESSAGE_BYTES),
        ]
        server = self._server = aio.server(options=options)
        process = grpc.stream_stream_rpc_method_handler(self.picker.process)
        check = grpc.unary_unary_rpc_method_handler(self._check)
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(SERVICE, {"Process": process}),
                grpc.method_handlers_generic_handler(HEALTH, {"Check": check}),
            )
        )
        try:
            if config.picker.tls is None:
                server.add_insecure_port(address)
            else:
                server.add_secure_port(address, _credentials(config.picker.tls))
        except RuntimeError as error:
            raise ConfigError(
                "cannot listen", field="picker.listen", value=address, expected="a free address"
            ) from error
        await server.start()

    async def _check(self, message: bytes, context: Any) -> bytes:
        """gRPC's health check, by the name of a service."""
        name = HealthCheckRequest.FromString(message).value
        if name == LIVENESS:
            status = SERVING
        elif name in ("", READINESS, SERVICE):
            status = NOT_SERVING if self._core.unready_reason else SERVING
        else:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no such service; {LIVENESS} or {READINESS}")
        return bytes(HealthCheckResponse(value=status).SerializeToString())

    def obey(self, config: GatewayConfig) -> None:
        """Apply another configuration."""
        self.picker.settings = config_mapping.picker_settings(config)

    async def drain(self, timeout_s: float, delay_s: float) -> int:
        """Answer for another `delay_s`, then refuse new requests, and wait for the responses of open ones."""
        self.draining = True
        end_s = self._core.loop.time() + timeout_s
        await asyncio.sleep(min(delay_s, timeout_s))
        self.picker.refusing = True
        while self.picker.open and self._core.loop.time() < end_s:
            await asyncio.sleep(DRAIN_STEP_S)
        return len(self.picker.open)

    async def close(self) -> None:
        """End every stream at once."""
        if self._server is not None:
            await self._server.stop(None)


def _credentials(tls: TlsSpec) -> Any:
    pair = (tls.key.read_bytes(), tls.certificate.read_bytes())
    ca = None if tls.client_ca is None else tls.client_ca.read_bytes()
    return grpc.ssl_server_credentials([pair], ca, require_client_auth=ca is not None)
