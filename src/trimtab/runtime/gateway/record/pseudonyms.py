"""Names that a recording may hold: nothing in it leads back to a tenant, a session or a prompt.

The key is random per recording and is written nowhere, so equal names are equal within one recording only.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Hashable, Iterable

MOST_TENANTS = 10_000  # a key that may name tenants could name any number
MOST_SESSIONS = 50_000
MOST_BLOCKS = 65_536


class Numbers:
    """Values as integers from 0 on, in order of appearance. Holds the `most` values used last.

    A value that was forgotten gets a new number when it comes again.
    """

    def __init__(self, most: int) -> None:
        self._most, self._next = most, 0
        self._known: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self._known)

    def of(self, value: Hashable) -> int:
        """The number of one value."""
        number = self._known.pop(value, -1)
        if number < 0:
            number, self._next = self._next, self._next + 1
            if len(self._known) >= self._most:
                del self._known[next(iter(self._known))]
        self._known[value] = number  # at the end: used last
        return number

    def of_all(self, values: Iterable[Hashable]) -> list[int]:
        """The numbers of several values."""
        return [self.of(value) for value in values]


class Pseudonyms:
    """The names of one recording."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._tenants: dict[str, str] = {}
        self.sessions = Numbers(MOST_SESSIONS)
        self.blocks = Numbers(MOST_BLOCKS)

    def tenant(self, name: str) -> str:
        """A keyed hash of a tenant's name."""
        found = self._tenants.get(name)
        if found is None:
            if len(self._tenants) >= MOST_TENANTS:
                self._tenants.clear()  # hashes, so that they are the same again
            digest = hashlib.blake2b(name.encode(), key=self._key, digest_size=6)
            found = self._tenants[name] = digest.hexdigest()
        return found
