"""HTTP calls of the gateway's own to nodes: probes, metrics pages, and hooks that load items."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson
from yarl import URL

from trimtab.gateway.model import Node
from trimtab.gateway.nodes.address import Address, with_port
from trimtab.gateway.nodes.load_hooks import HookCall, Probe

_PIECE_BYTES = 65536


class LazySession:
    """One session for all requests. `make` creates it."""

    def __init__(self, make: Callable[[], aiohttp.ClientSession]) -> None:
        self._make = make
        self._session: aiohttp.ClientSession | None = None

    def opened(self) -> aiohttp.ClientSession:
        """The open session. Call it inside the event loop."""
        if self._session is None:
            self._session = self._make()
        return self._session

    async def close(self) -> None:
        """Close all connections. A later request opens new ones."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()
            await asyncio.sleep(0)  # transports close in the next turn of the loop


class UnansweredError(Exception):
    """No whole answer; the message says why, for an operator."""

    def __init__(self, reason: str, is_timeout: bool = False) -> None:
        super().__init__(reason)
        self.is_timeout = is_timeout


@dataclass(frozen=True, slots=True)
class Page:
    """An answer."""

    status: int
    body: bytes


class ProbeClient:
    """One aiohttp session for all nodes. Open it inside the loop."""

    def __init__(self, timeout_s: float = 2.0, max_bytes: int = 8 << 20) -> None:
        self._timeout_s, self._max_bytes = timeout_s, max_bytes
        self._session = LazySession(self._new_session)

    async def get(self, node: Node | None, address: Address, path: str = "") -> Page:
        """GET `path` at `address`; `node` gives its key and TLS. Raises UnansweredError."""
        headers = {"Host": address.host_header}
        if node is not None and node.authorization:
            headers["Authorization"] = node.authorization.decode()
        try:
            async with self._session.opened().get(
                address.url + path,
                headers=headers,
                ssl=node.ssl if node is not None and node.ssl is not None else True,
                server_hostname=address.server_name or None,
                allow_redirects=False,
            ) as response:
                return Page(response.status, await self._read(response))
        except TimeoutError:
            raise UnansweredError(f"no answer within {self._timeout_s:g} s", is_timeout=True) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise UnansweredError(_words(error)) from None

    async def close(self) -> None:
        """Close all connections. A later `get` opens new ones."""
        await self._session.close()

    def _new_session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=self._timeout_s),
            connector=aiohttp.TCPConnector(limit=64),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": "trimtab-gateway", "Accept": "*/*"},
        )

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        body = bytearray()
        async for piece in response.content.iter_chunked(_PIECE_BYTES):
            body += piece
            if len(body) > self._max_bytes:
                raise UnansweredError(f"an answer of more than {self._max_bytes} bytes")
        return bytes(body)


def _words(error: Exception) -> str:
    """Why, in plain words. An answer that is no HTTP may be anything, so it is not quoted."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "its certificate is not trusted"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "its name does not resolve"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"cannot be connected: {error.os_error.strerror or 'refused'}"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "closed the connection without an answer"
    return (
        "the answer is no HTTP" if isinstance(error, aiohttp.ClientResponseError) else "the connection broke"
    )


_QUOTED_CHARS = 200  # of a node's answer, in messages
_ALREADY = b"already"


class HookError(Exception):
    """The call did not succeed; the message says why."""


class HookClient:
    """One session for all nodes. Callers set the timeouts."""

    def __init__(self) -> None:
        self._session = LazySession(_new_session)

    async def call(self, node: Node, hook: HookCall, names: Mapping[str, str]) -> None:
        """Make the call. Raises HookError unless the node answers 2xx, or that it is so already."""
        path, body = hook.filled(names)
        status, answer = await self._ask(node, hook.method, path, body)
        if status >= 300 and not (400 <= status < 500 and _ALREADY in answer.lower()):
            quoted = answer[:_QUOTED_CHARS].decode("utf-8", "replace")
            raise HookError(f"{hook.method} {path} answers {status}: {quoted}")

    async def held(self, node: Node, probe: Probe, names: frozenset[str]) -> set[str]:
        """Which of these names the node holds, by its own page. Raises HookError."""
        status, answer = await self._ask(node, "GET", probe.path, None)
        if status != 200:
            raise HookError(f"GET {probe.path} answers {status}")
        try:
            return probe.held(orjson.loads(answer), names)
        except (ValueError, KeyError, TypeError):
            raise HookError(f"GET {probe.path}: the answer is not understood") from None

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def _ask(self, node: Node, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        scheme = "https" if node.tls else "http"
        url = f"{scheme}://{with_port(node.host, node.port)}{node.base_path}{path}"
        headers = {} if body is None else {"Content-Type": "application/json"}
        if node.authorization:
            headers["Authorization"] = node.authorization.decode("latin-1")
        try:
            async with self._session.opened().request(
                method,
                URL(url, encoded=True),
                data=body,
                headers=headers,
                ssl=True if node.ssl is None else node.ssl,
                server_hostname=node.server_name or None if node.tls else None,
                allow_redirects=False,
            ) as response:
                return response.status, await response.content.read(1 << 20)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise HookError(f"{method} {path}: {str(error) or type(error).__name__}") from None


def _new_session() -> aiohttp.ClientSession:
    timeout: Any = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    return aiohttp.ClientSession(timeout=timeout, connector=connector, cookie_jar=aiohttp.DummyCookieJar())
