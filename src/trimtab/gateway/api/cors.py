"""Cross-origin requests: pages of other origins that browsers let read the gateway's responses (Fetch, CORS).

Keys travel in headers, not in cookies, so credentials mode is never allowed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from trimtab.gateway.model import Endpoint, Kind

PREFLIGHT: Final = Endpoint("*", ("OPTIONS",), Kind.PREFLIGHT, local=True)
"""The endpoint of the question that a browser asks first. It needs no key."""

_METHODS: Final = b"GET, HEAD, POST, DELETE"
_EXPOSED: Final = (
    b"x-request-id, x-trimtab-node, retry-after, location, x-ratelimit-limit-requests, "
    b"x-ratelimit-remaining-requests, x-ratelimit-reset-requests, x-ratelimit-limit-tokens, "
    b"x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens"
)
_HEADERS: Final = (
    "authorization, content-type, x-api-key, anthropic-version, anthropic-beta, openai-organization, "
    "openai-project, openai-beta, prefer, idempotency-key, x-request-id, traceparent, x-trimtab-session, "
    "x-trimtab-deadline-ms, x-trimtab-priority, x-trimtab-tenant, x-stainless-lang, "
    "x-stainless-package-version, x-stainless-os, x-stainless-arch, x-stainless-runtime, "
    "x-stainless-runtime-version, x-stainless-retry-count, x-stainless-timeout, x-stainless-helper-method, "
    "x-stainless-async, x-stainless-poll-helper, anthropic-dangerous-direct-browser-access"
)


class Cors:
    """The origins whose pages may read responses."""

    def __init__(self, origins: Iterable[str], max_age_s: float) -> None:
        """`max_age_s`: how long a browser may remember the answer to a preflight."""
        self._lines = {
            origin.encode(): b"access-control-allow-origin: %b\r\n" % origin.encode()
            + b"access-control-expose-headers: %b\r\nvary: origin\r\n" % _EXPOSED
            for origin in origins
        }
        self._preflight = (
            ("access-control-allow-methods", _METHODS.decode()),
            ("access-control-allow-headers", _HEADERS),
            ("access-control-max-age", str(int(max_age_s))),
        )

    def lines(self, origin: bytes) -> bytes:
        """Header lines for a request of a page of `origin`; one that is not named is allowed nothing."""
        return self._lines.get(origin, b"vary: origin\r\n")

    def preflight(self, origin: bytes) -> tuple[tuple[str, str], ...]:
        """Further headers of the answer to a preflight."""
        return self._preflight if origin in self._lines else ()
