"""Calls of a Kubernetes API server, JSON both ways, so many a second; and lists that are kept current.

Objects stay as the server sends them, dictionaries: the classes of the package `kubernetes` take longer
to make than a call takes.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, Self
from urllib.parse import urlencode
from urllib.request import getproxies_environment

import aiohttp
import orjson

from trimtab.clusters.kube.access import Access, find_access
from trimtab.errors import ApiRefused, ClusterLost, ConfigError

Json = dict[str, Any]

MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
RENEWED_AFTER_S = 60.0  # of credentials; kubelet renews a token when a fifth of its life, an hour, is left
CONFLICT, GONE, NOT_FOUND, FORBIDDEN = 409, 410, 404, 403

_JSON: Final = "application/json"
_PAGE: Final = 500  # objects of one answer to a list
_CONNECTIONS: Final = 64
_LONGEST_LINE: Final = 1 << 22  # bytes of an event of a watch; etcd takes objects of 1.5 MiB
_TIMEOUT_S: Final = 30.0
_WATCH_S: Final = 300  # then the server ends a watch, and it begins again where it was
_SLACK_S: Final = 15.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 10.0

logger = logging.getLogger(__name__)


class RateLimit:
    """So many calls a second, and so many at once after a pause (token bucket)."""

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s, self._burst = per_s, burst
        self._left, self._at_s = burst, time.monotonic()

    async def take(self) -> None:
        """Wait for the next call's turn."""
        now_s = time.monotonic()
        self._left = min(self._burst, self._left + (now_s - self._at_s) * self._per_s) - 1.0
        self._at_s = now_s
        if self._left < 0.0:
            await asyncio.sleep(-self._left / self._per_s)


class _Response(aiohttp.ClientResponse):
    """An answer; `close`, as after a call that was cancelled, ends its connection at once.

    Else TLS says goodbye, for longer than the loop may go on, and `KubeApi.close` knows nothing of it.
    """

    def close(self) -> None:
        if (connection := self.connection) is not None and connection.transport is not None:
            connection.transport.abort()
        super().close()


class KubeApi:
    """One API server, as one user. `connect` in the event loop that uses it; `async with` closes it."""

    def __init__(self, access: Access, limit: RateLimit) -> None:
        self._access, self._limit = access, limit
        self._authorization, self._renewed_s = access.authorization, time.monotonic()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=_CONNECTIONS, ssl=access.tls),
            read_bufsize=_LONGEST_LINE // 2,
            response_class=_Response,
            # without a proxy a session need not look at the environment, in a thread at each call
            trust_env=bool(getproxies_environment()),
        )
        self.host = access.host
        self.clock_skew_s = 0.0  # of the server's clock, by its last answer, to about a second

    @classmethod
    async def connect(
        cls, kubeconfig: str = "", context: str = "", *, qps: float = 50.0, burst: float = 100.0
    ) -> Self:
        """The server of a kubeconfig, of $KUBECONFIG or ~/.kube/config, or of the pod's service account.

        Raises ConfigError where none of these can be read, MissingExtra where one needs a package.
        """
        return cls(await find_access(kubeconfig, context), RateLimit(qps, burst))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def get(self, path: str, **query: Any) -> Json:
        """One object, or one page of a list."""
        return await self.call("GET", path, query)

    async def post(self, path: str, body: Json) -> Json:
        """Create an object, or a subresource such as a binding."""
        return await self.call("POST", path, {}, body)

    async def put(self, path: str, body: Json) -> Json:
        """Replace an object of the `resourceVersion` in it."""
        return await self.call("PUT", path, {}, body)

    async def patch(self, path: str, body: Any, kind: str = STRATEGIC, **query: Any) -> Json:
        """Change an object."""
        return await self.call("PATCH", path, query, body, kind)

    async def delete(self, path: str, body: Json | None = None) -> Json:
        """Delete an object; `body`: DeleteOptions."""
        return await self.call("DELETE", path, {}, body)

    async def serves(self, group: str, version: str, resource: str) -> bool:
        """Whether the API serves a resource, such as ("resource.k8s.io", "v1", "resourceclaims")."""
        try:
            served = await self.get(f"/apis/{group}/{version}")
        except ApiRefused as error:
            if error.status == NOT_FOUND:
                return False
            raise
        return any(each["name"] == resource for each in served.get("resources", ()))

    async def list(self, path: str, **query: Any) -> tuple[list[Json], str]:
        """All objects of a collection, and the version from which a watch goes on."""
        found: list[Json] = []
        after: dict[str, Any] = {}
        while True:
            page = await self.get(path, limit=_PAGE, **query, **after)
            found += page.get("items") or ()
            if not (token := page["metadata"].get("continue")):
                return found, page["metadata"]["resourceVersion"]
            after = {"continue": token}

    async def watch(self, path: str, version: str, **query: Any) -> AsyncIterator[tuple[str, Json]]:
        """(ADDED, MODIFIED, DELETED or BOOKMARK, object) since a version, until the server ends it.

        Raises ApiRefused(410) where the server no longer knows that version.
        """
        asked = {**query, "watch": "1", "resourceVersion": version, "timeoutSeconds": _WATCH_S}
        asked["allowWatchBookmarks"] = "true"
        response = await self._request("GET", path, asked, None, _JSON, _WATCH_S + _SLACK_S)
        try:
            async for line in response.content:
                event = orjson.loads(line)
                if event["type"] == "ERROR":
                    raise _refusal(event["object"].get("code", 0), event["object"], "GET", path)
                yield event["type"], event["object"]
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ClusterLost(f"the API server {self.host} is gone: {_line(error)}") from error
        finally:
            response.close()

    async def call(
        self, method: str, path: str, query: Mapping[str, Any], body: Any = None, kind: str = _JSON
    ) -> Json:
        """One call. Raises ApiRefused for an answer that is an error, ClusterLost where none comes."""
        response = await self._request(method, path, query, body, kind, _TIMEOUT_S)
        try:
            data = await response.read()  # to the end, so that the connection is used again
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ClusterLost(f"the API server {self.host} is gone: {_line(error)}") from error
        return orjson.loads(data) if data else {}

    async def _request(
        self, method: str, path: str, query: Mapping[str, Any], body: Any, kind: str, timeout_s: float
    ) -> aiohttp.ClientResponse:
        await self._limit.take()
        url = f"{self.host}{path}?{urlencode(query)}" if query else self.host + path
        headers = {"Content-Type": kind, "Accept": _JSON, **await self._credentials()}
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=_TIMEOUT_S)
        data = None if body is None else orjson.dumps(body)
        try:
            response = await self._session.request(
                method, url, headers=headers, data=data, timeout=timeout, **self._access.options
            )
            self._note_clock(response.headers.get("Date"))
            if response.status >= 400:
                raise _refusal(response.status, await response.read(), method, path)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ClusterLost(f"the API server {self.host} is gone: {_line(error)}") from error
        return response

    async def _credentials(self) -> dict[str, str]:
        """The header of this call. One call a minute renews it, and others go on with the last meanwhile."""
        now_s = time.monotonic()
        if now_s - self._renewed_s > RENEWED_AFTER_S:
            self._renewed_s = now_s
            try:
                self._authorization = await self._access.renewed()
            except ConfigError as error:
                logger.warning("%s", error)
        return {"Authorization": self._authorization} if self._authorization else {}

    def _note_clock(self, date: str | None) -> None:
        if date:
            from email.utils import parsedate_to_datetime

            self.clock_skew_s = parsedate_to_datetime(date).timestamp() - time.time()


def _refusal(status: int, data: Any, method: str, path: str) -> ApiRefused:
    """The error in an answer, which is a Status or plain text."""
    try:
        told = orjson.loads(data) if isinstance(data, bytes) else data
        reason, message = told.get("reason", ""), told.get("message", "")
    except (ValueError, AttributeError):
        reason, message = "", bytes(data).decode(errors="replace")[:200]
    return ApiRefused(status, reason, f"{method} {path}: {message or reason or status}")


def _line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


class Pause:
    """Seconds to wait before the next try: twice as long each time, with jitter, up to ten."""

    def __init__(self) -> None:
        self._next_s = _FIRST_PAUSE_S

    def reset(self) -> None:
        """The last try went well."""
        self._next_s = _FIRST_PAUSE_S

    async def wait(self) -> None:
        """Wait."""
        await asyncio.sleep(self._next_s * random.uniform(0.5, 1.0))
        self._next_s = min(_LONGEST_PAUSE_S, 2.0 * self._next_s)


Listed = Callable[[list[Json]], None]
Changed = Callable[[str, Json], None]


async def follow(
    api: KubeApi,
    path: str,
    listed: Listed,
    changed: Changed,
    is_current: Callable[[bool], None],
    **query: Any,
) -> None:
    """Keep a caller's copy of a collection current: `listed` gets all objects, `changed` each change.

    Never returns.

    Where the server is gone it is asked again after a pause, and the watch goes on where it was; where it no
    longer knows that version, all are listed anew. `is_current` hears whether the copy follows the server.

    Raises ApiRefused where the server refuses the first list, such as for want of a right. Later refusals
    pass: a server that has just started knows no rights yet.
    """
    pause, version, has_listed = Pause(), "", False
    while True:
        try:
            if not version:
                objects, version = await api.list(path, **query)
                listed(objects)
                has_listed = True
            is_current(True)
            async for kind, each in api.watch(path, version, **query):
                version = each["metadata"]["resourceVersion"]
                pause.reset()
                if kind != "BOOKMARK":
                    changed(kind, each)
        except ApiRefused as error:
            if error.status == GONE:
                version = ""
                continue
            if not has_listed and error.status < 500 and error.status != 429:
                raise
            logger.warning("%s", error)
            is_current(False)
            await pause.wait()
        except ClusterLost as error:
            logger.warning("%s", error)
            is_current(False)
            await pause.wait()
