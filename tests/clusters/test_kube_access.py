"""How an API server is reached: in a pod, by a kubeconfig, and what is said where neither can be read."""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import yaml
from aiohttp import web

from support.certificates import NAME, needs_openssl, self_signed
from trimtab.clusters.kube import access, api
from trimtab.clusters.kube.api import KubeApi
from trimtab.errors import ConfigError, MissingExtra

pytestmark = needs_openssl
HOST = "127.0.0.1"


class Pod:
    """The files and the environment of a pod, and an API server that keeps the headers of calls."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[str] = []
        self.token = folder / "token"
        self.token.write_text("first\n")
        self._both = self_signed(folder, f"IP:{HOST},DNS:{NAME}")
        (folder / "cert.pem").rename(folder / "ca.crt")
        monkeypatch.setattr(access, "SERVICE_ACCOUNT", folder)
        monkeypatch.setenv("KUBECONFIG", str(folder / "kubeconfig"))
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", HOST)
        self._set_port = lambda port: monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(port))

    async def _answer(self, request: web.Request) -> web.Response:
        self.seen.append(request.headers.get("Authorization", ""))
        return web.json_response({})

    def meets(self, ask: Callable[[], Awaitable[None]]) -> list[str]:
        """What the server sees in `Authorization` while something asks it."""
        asyncio.run(self._serve(ask))
        return self.seen

    async def _serve(self, ask: Callable[[], Awaitable[None]]) -> None:
        app = web.Application()
        app.router.add_get("/version", self._answer)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(self._both)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            await web.TCPSite(runner, HOST, 0, ssl_context=tls).start()
            self._set_port(runner.addresses[0][1])
            self._url = f"https://{HOST}:{runner.addresses[0][1]}"
            await ask()
        finally:
            await runner.cleanup()

    def has_kubeconfig(self, user: dict[str, object]) -> None:
        cluster = {"server": self._url, "certificate-authority": "ca.crt", "tls-server-name": NAME}
        parts = {"cluster": cluster, "user": user, "context": {"cluster": "one", "user": "one"}}
        made = {f"{kind}s": [{"name": "one", kind: part}] for kind, part in parts.items()}
        path = self.token.with_name("kubeconfig")
        path.write_text(yaml.safe_dump({"current-context": "one", **made}))


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pod:
    return Pod(tmp_path, monkeypatch)


def test_a_pod_needs_no_package_and_reads_its_token_again(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes.aio", None)

    async def ask() -> None:
        async with await KubeApi.connect() as server:
            await server.get("/version")
            pod.token.write_text("second\n")
            await server.get("/version")
            monkeypatch.setattr(api, "RENEWED_AFTER_S", 0.0)
            await server.get("/version")
            pod.token.unlink()
            await server.get("/version")  # with the last that it read

    assert pod.meets(ask) == ["Bearer first", "Bearer first", "Bearer second", "Bearer second"]


def test_what_a_plugin_of_a_kubeconfig_gave_is_renewed_once_it_expires(
    pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "RENEWED_AFTER_S", 0.0)

    def gives(token: str, expires: str) -> None:
        status = {"token": token, "expirationTimestamp": expires}
        kind = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}
        pod.token.write_text(json.dumps({**kind, "status": status}))

    async def ask() -> None:
        version = "client.authentication.k8s.io/v1"
        pod.has_kubeconfig(
            {"exec": {"apiVersion": version, "command": "cat", "args": [str(pod.token)], "env": None}}
        )
        gives("first", "2020-01-01T00:00:00Z")
        async with await KubeApi.connect() as server:
            gives("second", "2999-01-01T00:00:00Z")
            await server.get("/version")
            gives("third", "2999-01-01T00:00:00Z")
            await server.get("/version")

    assert pod.meets(ask) == ["Bearer second", "Bearer second"]


def test_a_kubeconfig_without_the_package_names_the_extra(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes.aio", None)
    with pytest.raises(MissingExtra, match=r"mine\.yaml: needs the package kubernetes.*trimtab\[kube\]"):
        asyncio.run(access.find_access("mine.yaml", ""))


@pytest.mark.parametrize(
    ("lacks", "told"),
    [
        ("KUBERNETES_SERVICE_HOST", "kubeconfig: there is no such file, nor KUBERNETES_SERVICE_HOST"),
        ("token", "token: .*No such file.*expected a kubeconfig"),
        ("ca.crt", r"ca\.crt: .*No such file"),
        ("context", "kubeconfig: .*expected a kubeconfig"),
    ],
)
def test_what_cannot_be_read_is_named(
    pod: Pod, monkeypatch: pytest.MonkeyPatch, lacks: str, told: str
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.delenv(lacks, raising=False)
    pod.token.with_name(lacks).unlink(missing_ok=True)
    with pytest.raises(ConfigError, match=told):
        asyncio.run(access.find_access("", lacks * (lacks == "context")))


def test_authorities_without_key_identifiers_are_trusted(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of EKS; Python is strict by default from 3.13 on."""
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    assert not asyncio.run(access.find_access("", "")).tls.verify_flags & ssl.VERIFY_X509_STRICT
