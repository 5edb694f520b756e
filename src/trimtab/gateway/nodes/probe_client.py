"""Small GET requests to nodes and exporters: bounded, without redirects, with a node's own key and TLS."""

from __future__ import annotations

from dataclasses import dataclass

import aiohttp

from trimtab.gateway.lazy_session import LazySession
from trimtab.gateway.model import Node
from trimtab.gateway.nodes.address import Address

_PIECE_BYTES = 65536


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
