"""Checks over TLS: certificates of one's own, and names of pinned addresses. Needs openssl."""

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from support.gateway.node_world import fleet_of, spec
from support.waiting import until
from trimtab.gateway.model import Health
from trimtab.gateway.nodes.health_checks import HealthChecker, HealthCheckOptions

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A key and a certificate for gpu.test, in one file."""
    path = tmp_path / "both.pem"
    command = (
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=gpu.test -addext subjectAltName=DNS:gpu.test"
    )
    files = ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")]
    subprocess.run(["openssl", *command.split(), *files], check=True, capture_output=True)
    path.write_text((tmp_path / "key.pem").read_text() + (tmp_path / "cert.pem").read_text())
    return path


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
