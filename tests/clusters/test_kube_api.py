"""Calls of an API server: what a cancelled one leaves behind."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.certificates import NAME, needs_openssl, self_signed
from support.waiting import TIMEOUT_S, until
from trimtab.clusters.kube.access import Access
from trimtab.clusters.kube.api import KubeApi, RateLimit

pytestmark = needs_openssl


class SilentServer:
    """Takes one request over TLS and never answers, not even a goodbye."""

    def __init__(self, folder: Path) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self_signed(folder))
        self._listening = context.wrap_socket(socket.create_server(("127.0.0.1", 0)), server_side=True)
        self._listening.settimeout(TIMEOUT_S)
        trusted = ssl.create_default_context(cafile=folder / "cert.pem")
        host = f"https://127.0.0.1:{self._listening.getsockname()[1]}"
        self.access = Access(host, trusted, "", self._no_token, {"server_hostname": NAME})
        self.is_asked = False
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    async def _no_token(self) -> str:
        return ""

    def _serve(self) -> None:
        with self._listening, self._listening.accept()[0] as taken:
            self.is_asked = bool(taken.recv(1 << 16))
            self._ends.wait()

    def close(self) -> None:
        self._ends.set()
        self._thread.join()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SilentServer]:
    made = SilentServer(tmp_path)
    yield made
    made.close()


def test_a_call_that_is_cancelled_leaves_no_connection(server: SilentServer) -> None:
    """What it leaves warns when it is collected after its loop has closed; pytest fails the test for it."""

    async def cancelled() -> None:
        api = KubeApi(server.access, RateLimit(100.0, 100.0))
        call = asyncio.create_task(api.get("/version"))
        await until(lambda: server.is_asked)
        call.cancel()
        await asyncio.wait([call])
        await api.close()

    asyncio.run(cancelled())
    gc.collect()
