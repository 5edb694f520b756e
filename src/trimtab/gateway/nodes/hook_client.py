"""Calls of load hooks, with a node's own key and TLS."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aiohttp
import orjson
from yarl import URL

from trimtab.gateway.lazy_session import LazySession
from trimtab.gateway.model import Node
from trimtab.gateway.nodes.load_hooks import HookCall, Probe

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
        host = f"[{node.host}]" if ":" in node.host else node.host
        url = f"{'https' if node.tls else 'http'}://{host}:{node.port}{node.base_path}{path}"
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
