"""Pseudonyms for recordings, so that a recording identifies no tenant, session or prompt.

The key is random per recording and never written. So pseudonyms can be compared within one recording only.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Hashable, Sequence
from typing import Any

MOST_TENANTS = 10_000  # bound: a key with may_name_tenant can name any number of tenants
MOST_SESSIONS = 50_000
MOST_BLOCKS = 65_536


class Numbers:
    """Numbers values from 0 on, in order of appearance.

    It holds at most `most` values, and at least the most recently used half of them. A dropped value gets a
    new number when it appears again. It uses two generations, because an exact order of use in a dict is
    expensive once the dict is full.
    """

    def __init__(self, most: int) -> None:
        self._most_young, self._next = most // 2, 0
        self._young: dict[Hashable, int] = {}  # used since the generations last changed
        self._old: dict[Hashable, int] = {}  # used in the previous generation only

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
        """Move a value to the young generation, or number a new value."""
        number = self._old.pop(value, -1)
        if number < 0:
            number, self._next = self._next, self._next + 1
        if len(self._young) >= self._most_young:
            self._young, self._old = {}, self._young
        self._young[value] = number
        return number


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
                self._tenants.clear()  # a cache: the hashes can be computed again
            digest = hashlib.blake2b(name.encode(), key=self._key, digest_size=6)
            found = self._tenants[name] = digest.hexdigest()
        return found
