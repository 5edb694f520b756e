"""Requests of jobs to backends. Jobs are rare and long, so each has a connection of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import IO

import aiohttp
from yarl import URL

from trimtab.gateway.model import Cause, Node
from trimtab.gateway.nodes.address import with_port
from trimtab.gateway.nodes.node_calls import LazySession

PIECE_BYTES = 65_536


class Lost(Exception):  # noqa: N818 - reads as the sentence it prints
    """No whole answer; `cause` says how."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause.value)
        self.cause = cause


class NodeClient:
    """An HTTP client for all nodes. Open it inside the loop."""

    def __init__(self, connect_s: float, idle_s: float) -> None:
        """`idle_s`: the longest time without a byte, of an answer that may take long to begin."""
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_s, sock_read=idle_s)
        self._session = LazySession(self._new_session)

    @asynccontextmanager
    async def send(
        self,
        node: Node,
        method: str,
        target: str,
        headers: dict[str, str] | None = None,
        body: IO[bytes] | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer's head, and its body to be read within. Raises Lost, whatever breaks in between."""
        try:
            async with self._session.opened().request(
                method,
                _url(node, target),
                headers=_headers(node) | (headers or {}),
                data=body,
                ssl=True if node.ssl is None else node.ssl,
                server_hostname=node.server_name or None if node.tls else None,
                allow_redirects=False,
            ) as response:
                yield response
        except aiohttp.ClientConnectorError:
            raise Lost(Cause.CONNECT) from None
        except TimeoutError as error:
            connecting = isinstance(error, aiohttp.ConnectionTimeoutError)
            raise Lost(Cause.CONNECT if connecting else Cause.IDLE) from None
        except aiohttp.ClientResponseError:
            raise Lost(Cause.BAD_RESPONSE) from None
        except (aiohttp.ClientError, ConnectionError):
            raise Lost(Cause.RESET) from None

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    def _new_session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            timeout=self._timeout,
            # A connection that is used once only: what breaks on it was not broken before.
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            cookie_jar=aiohttp.DummyCookieJar(),
        )


def _url(node: Node, target: str) -> URL:
    scheme, address = "https" if node.tls else "http", with_port(node.host, node.port)
    return URL(f"{scheme}://{address}{node.base_path.rstrip('/')}{target}", encoded=True)


def _headers(node: Node) -> dict[str, str]:
    headers = {"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "trimtab-gateway"}
    if node.server_name:
        headers["Host"] = f"{node.server_name}:{node.port}"
    if node.authorization:
        headers["Authorization"] = node.authorization.decode("latin-1")
    return headers
