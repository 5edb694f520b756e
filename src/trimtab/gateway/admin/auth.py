"""Authentication of the admin port: keys, one-time sign-in links, cookie sessions. Stored as digests."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Iterable
from typing import Final

LINK_S: Final = 600.0
SESSION_S: Final = 12 * 3600.0
MOST_LINKS: Final = 16
MOST_SESSIONS: Final = 256


def digest(secret: str) -> bytes:
    """SHA-256 of a key or token. These are long and random, so a slow hash is not needed."""
    return hashlib.sha256(secret.encode()).digest()


class AdminAuth:
    """Admin keys, link tokens and sessions.

    `digests`: SHA-256 digests of the keys. Without keys only a sign-in link gives access.
    `open_to_all` is for `--insecure-no-auth`. `clock` is in seconds and monotonic.
    """

    def __init__(
        self,
        digests: Iterable[bytes],
        *,
        open_to_all: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._digests = tuple(digests)
        self._clock = clock
        self._links = _Grants(MOST_LINKS)
        self._sessions = _Grants(MOST_SESSIONS)
        self.open_to_all = open_to_all

    def replace_keys(self, digests: Iterable[bytes]) -> None:
        """Replace the keys after a reload. If they differ all sessions end: a session's key may be gone."""
        digests = tuple(digests)
        if set(digests) == set(self._digests):
            return
        self._digests = digests
        self._sessions.clear()

    def is_key(self, key: str) -> bool:
        """Whether this is an admin key. The comparison takes constant time."""
        given = digest(key)
        return sum(hmac.compare_digest(given, known) for known in self._digests) > 0

    def make_link_token(self) -> str:
        """A token for `/login?token=…`: valid once, for ten minutes."""
        return self._links.grant(self._clock() + LINK_S, self._clock())

    def use_link_token(self, token: str) -> bool:
        """Whether the token is valid. It is invalid afterwards."""
        return self._links.take(token, self._clock())

    def open_session(self) -> str:
        """Open a session. Returns its token, for the cookie."""
        return self._sessions.grant(self._clock() + SESSION_S, self._clock())

    def is_session(self, token: str) -> bool:
        """Whether the cookie's token belongs to an open session."""
        return self._sessions.has(token, self._clock())

    def close_session(self, token: str) -> None:
        """Sign out."""
        self._sessions.take(token, self._clock())


class _Grants:
    """Random tokens that expire, by digest. When full, the token that expires first is dropped."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._until_s: dict[bytes, float] = {}  # all have the same lifetime, so it is ordered by expiry

    def grant(self, until_s: float, now_s: float) -> str:
        self._forget(now_s)
        while len(self._until_s) >= self._most:
            del self._until_s[next(iter(self._until_s))]
        token = secrets.token_urlsafe(32)
        self._until_s[digest(token)] = until_s
        return token

    def has(self, token: str, now_s: float) -> bool:
        return self._until_s.get(digest(token), 0.0) > now_s

    def take(self, token: str, now_s: float) -> bool:
        return self._until_s.pop(digest(token), 0.0) > now_s

    def clear(self) -> None:
        self._until_s.clear()

    def _forget(self, now_s: float) -> None:
        for known in [known for known, until_s in self._until_s.items() if until_s <= now_s]:
            del self._until_s[known]
