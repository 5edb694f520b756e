"""Pseudonyms for recordings: nothing in them leads back to a tenant, a session or a prompt.

The key is random per recording and never written, so equal names are equal within one recording only.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Hashable, Sequence
from typing import Any

MOST_TENANTS = 10_000  # a key that may name tenants could name any number
MOST_SESSIONS = 50_000
MOST_BLOCKS = 65_536


class Numbers:
    """Values as integers from 0 on, in order of appearance.

    Holds at most `most` values, and at least that half of them that was used last. A value that was forgotten
    gets a new number when it comes again. Two generations instead of an exact order of use: to keep that in a
    dict costs tens of microseconds per new value once it is full.
    """

    def __init__(self, most: int) -> None:
        self._most_young, self._next = most // 2, 0
        self._young: dict[Hashable, int] = {}  # used since the generations last changed
        self._old: dict[Hashable, int] = {}  # used in the time before, and not since

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def of(self, value: Hashable) -> int:
        """The number of one value."""
        number = self._young.get(value)
        return self._renewed(value) if number is None else number

    def of_all(self, values: Sequence[Hashable]) -> list[int]:
        """The numbers of several values."""
        numbers: list[Any] = list(map(self._young.get, values))
        return [self.of(value) for value in values] if None in numbers else numbers

    def _renewed(self, value: Hashable) -> int:
        """A value that is not among the young ones is so from now on."""
        number = self._old.pop(value, -1)
        if number < 0:
            number, self._next = self._next, self._next + 1
        if len(self._young) >= self._most_young:
            self._young, self._old = {}, self._young
        self._young[value] = number
        return number


def new_key() -> bytes:
    """A key for the names of one recording."""
    return secrets.token_bytes(32)


class Pseudonyms:
    """The names of one recording."""

    def __init__(self, key: bytes = b"") -> None:
        """Processes that record together have the same key; b"" = one of its own."""
        self._key = key or new_key()
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
