"""A site of a federation over HTTP: asks, learns from its own data, sends its update, until it is over."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import aiohttp

from trimtab.domain.artifact import Artifact
from trimtab.errors import TrimtabError, UsageError
from trimtab.learn.federated.learning_problem import PROTOCOL, Problem, Site, identity
from trimtab.learn.federated.rounds import update_content
from trimtab.learn.federated.server import PROTOCOL_HEADER, WAIT_S
from trimtab.learn.federated.settings import problem_of

if TYPE_CHECKING:
    from trimtab.learn.federated.encrypted_rounds import SealedSite

_AGAIN_S: Final = 1.0  # between two calls of a server that is away
_NAME: Final = re.compile(r'filename="([\w.-]{1,100})"')


@dataclass(frozen=True)
class Access:
    """How a site reaches the server.

    Attributes:
        url: https://HOST:PORT, or http:// on this machine.
        key: of the site; "" = its certificate says who it is.
        ca: PEM file of the server's authority; None = the system's.
        certificate: PEM file of the site's own certificate, and `certificate_key` with its key.
        patience_s: how long a server may be away.
        sum_key: file with the sites' secret key, for a server that must not read updates.
    """

    url: str
    key: str = ""
    ca: Path | None = None
    certificate: Path | None = None
    certificate_key: Path | None = None
    patience_s: float = 600.0
    sum_key: Path | None = None

    def context(self) -> ssl.SSLContext:
        """For TLS. Raises UsageError for files that cannot be used."""
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.certificate_key)
        except (OSError, ssl.SSLError) as error:
            given = [str(path) for path in (self.ca, self.certificate, self.certificate_key) if path]
            raise UsageError(
                f"cannot be used: {error}", field="certificate", value=given, expected="PEM files"
            ) from error
        return context


class AwayError(Exception):
    """The server did not answer."""


async def take_part(
    access: Access, make: Callable[[Problem], Site], told: Callable[[int, int], None]
) -> tuple[str, bytes]:
    """Take part until all rounds have ended; returns name and content of what was learned.

    Args:
        access: to the server.
        make: the site of a problem, from its own data; called once, in a thread.
        told: called with (rounds answered, rounds).

    Raises:
        UsageError: the server refuses the site, or its problem is of another version.
        TrimtabError: the server is away for longer than `patience_s`.
    """
    timeout = aiohttp.ClientTimeout(total=4 * WAIT_S, sock_connect=10.0)
    headers = {PROTOCOL_HEADER: PROTOCOL}
    if access.key:
        headers["Authorization"] = f"Bearer {access.key}"
    connector = aiohttp.TCPConnector(ssl=access.context() if access.url.startswith("https:") else False)
    async with aiohttp.ClientSession(
        timeout=timeout, headers=headers, connector=connector, cookie_jar=aiohttp.DummyCookieJar()
    ) as session:
        return await _Part(access, session, told).until_the_end(make)


class _Part:
    def __init__(
        self, access: Access, session: aiohttp.ClientSession, told: Callable[[int, int], None]
    ) -> None:
        self._access, self._session, self._told = access, session, told

    async def until_the_end(self, make: Callable[[Problem], Site]) -> tuple[str, bytes]:
        _, told, _ = await self._call("GET", "/v1/problem")
        answer = _json(told)
        problem = problem_of(answer["problem"])
        own, sealed = identity(problem.told()), self._sealed(problem, answer.get("sums"))
        site = await asyncio.to_thread(make, problem)
        await self._call("POST", "/v1/join", f'{{"identity": "{own}"}}'.encode())
        answered, rounds = 0, problem.rounds()
        while True:
            known = 0 if sealed is None else len(sealed.history)
            status, content, _ = await self._call("GET", f"/v1/ask?known={known}", goes_on=(410,))
            if status == 410:
                break
            if status == 204:
                continue
            ask = Artifact.parsed(content, "question of the server")
            content = await asyncio.to_thread(_answered, site, sealed, ask, own)
            await self._call("POST", f"/v1/answers/{int(ask.meta['round'])}", content, goes_on=(409,))
            answered += 1
            self._told(answered, rounds)
        _, content, headers = await self._call("GET", "/v1/result")
        if sealed is not None:
            return await asyncio.to_thread(sealed.result, content)
        name = _NAME.search(headers.get("Content-Disposition", ""))
        return (name[1] if name is not None else "learned"), content

    def _sealed(self, problem: Problem, sums: Mapping[str, Any] | None) -> SealedSite | None:
        """None = updates are sent as they are. Raises UsageError unless server and site agree on that."""
        path = self._access.sum_key
        if path is None and sums is None:
            return None
        if path is None or sums is None:
            given = "no key" if path is None else str(path)
            expected = (
                "the key, as the server adds encrypted updates"
                if path is None
                else "no key: its server reads updates"
            )
            raise UsageError("does not fit the server", field="--sum-key", value=given, expected=expected)
        from trimtab.learn.federated.encrypted_rounds import SealedSite
        from trimtab.privacy.secure_sums import SumKey

        return SealedSite.of(problem, sums, SumKey.read(path))

    async def _call(
        self, method: str, path: str, body: bytes | None = None, goes_on: tuple[int, ...] = ()
    ) -> tuple[int, bytes, Any]:
        """Status, content and headers; again and again while the server is away."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._access.patience_s
        while True:
            try:
                status, content, headers = await self._once(method, path, body)
            except AwayError as error:
                if loop.time() >= until_s:
                    raise TrimtabError(f"{self._access.url}: {error}") from error
                await asyncio.sleep(_AGAIN_S)
                continue
            if status < 400 or status in goes_on:
                return status, content, headers
            raise UsageError(
                f"the server refuses this site: {_reason(content)}",
                field="--server",
                value=self._access.url,
                expected=f"another answer than {status} to {method} {path}",
            )

    async def _once(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes, Any]:
        url = self._access.url.rstrip("/") + path
        try:
            async with self._session.request(method, url, data=body, allow_redirects=False) as response:
                content = await response.read()
                if response.status >= 500:
                    raise AwayError(f"answers {response.status}")
                return response.status, content, response.headers
        except aiohttp.ClientConnectorCertificateError as error:
            raise UsageError(
                f"shows a certificate that is not trusted: {error.certificate_error}",
                field="--server",
                value=self._access.url,
                expected="--ca FILE of its authority",
            ) from error
        except aiohttp.InvalidURL as error:
            raise UsageError(
                "is no URL", field="--server", value=self._access.url, expected="https://HOST:PORT"
            ) from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise AwayError(f"cannot be reached: {error or type(error).__name__}") from error


def _answered(site: Site, sealed: SealedSite | None, ask: Artifact, identity_: str) -> bytes:
    if sealed is not None:
        return sealed.answer(site, ask, identity_)
    return update_content(site.answer(ask), identity_)


def _json(content: bytes) -> Any:
    import orjson

    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise UsageError("does not answer as a federation", field="--server", expected="its URL") from error


def _reason(content: bytes) -> str:
    try:
        return str(_json(content)["error"]["message"])
    except (UsageError, KeyError, TypeError):
        return content[:200].decode("utf-8", "replace")
