"""Checks over TLS: certificates of one's own, and names of pinned addresses. Needs openssl."""

import asyncio
import ssl
from pathlib import Path

import pytest

from support.certificates import needs_openssl, self_signed
from support.gateway.node_world import fleet_of, spec
from support.waiting import until
from trimtab.gateway.model import Health
from trimtab.gateway.nodes.health_checks import HealthChecker, HealthCheckOptions

pytestmark = needs_openssl


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    return self_signed(tmp_path)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()
        await writer.wait_closed()
    except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
        writer.close()


async def test_only_the_given_certificates_and_the_right_name_are_trusted(certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    ca = str(certificate.with_name("cert.pem"))
    fleet = fleet_of(0)
    good = fleet.add(spec("good", url=url, ca_file=ca, server_name="gpu.test"))
    stranger = fleet.add(spec("stranger", url=url, server_name="gpu.test"))
    misnamed = fleet.add(spec("misnamed", url=url, ca_file=ca))
    checker = HealthChecker(fleet, HealthCheckOptions(period_s=0.05))
    checker.start()
    await until(lambda: fleet.state(good).was_up)
    for node in (stranger, misnamed):
        await until(lambda node=node: node.health is Health.DOWN)
        assert node.reason == "its certificate is not trusted"
    await checker.close()
    fleet.close()
    server.close()
    await server.wait_closed()
    await asyncio.sleep(0.05)
