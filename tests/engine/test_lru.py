"""Caches that drop what was used longest ago, against an ordered dictionary."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from support.plain_caches import PlainLru
from trimtab.engine.bound_state import Columns
from trimtab.engine.lru import clear, new_caches, use

KEYS, CACHES = 7, 3
uses = st.tuples(st.integers(0, CACHES - 1), st.integers(-1, KEYS - 1))  # key -1: clear


@given(st.integers(1, 5), st.lists(uses, max_size=60))
def test_every_use_finds_what_an_ordered_dictionary_finds(
    capacity: int, asked: list[tuple[int, int]]
) -> None:
    made = new_caches(CACHES, capacity, KEYS)
    arrays = memoryview(made.place), Columns(made.caches), Columns(made.entries)
    plain = [PlainLru(capacity) for _ in range(CACHES)]
    for q, key in asked:
        if key < 0:
            clear(*arrays, q)
            plain[q].clear()
        else:
            assert use(*arrays, q, key) == plain[q].use(key)
        for cache, lru in enumerate(plain):
            assert _newest_first(made, cache) == lru.newest_first()
            assert [key for key in range(KEYS) if made.place[key, cache]] == sorted(lru.newest_first())


def _newest_first(made: object, q: int) -> list[int]:
    _, caches, entries = made  # type: ignore[misc]
    found, i = [], int(caches["newest"][q])
    while i >= 0:
        entry = entries[caches["begin"][q] + i]
        found.append(int(entry["key"]))
        i = int(entry["older"])
    assert len(found) == caches["length"][q]
    return found
