"""The Cache-Control header, as far as the result cache obeys it (RFC 9111)."""

from __future__ import annotations

from math import inf
from typing import NamedTuple


class CacheControl(NamedTuple):
    """The directives of a request or a response."""

    no_store: bool = False
    no_cache: bool = False
    private: bool = False
    max_age_s: float = inf


def cache_control(value: bytes) -> CacheControl:
    """The directives of a header's value. A number that is not understood counts as 0: stale."""
    names: dict[bytes, bytes] = {}
    for directive in value.lower().split(b","):
        name, _, argument = directive.strip().partition(b"=")
        names[name.strip()] = argument.strip(b' \t"')
    age = names.get(b"s-maxage", names.get(b"max-age"))
    max_age_s = inf if age is None else float(age) if age.isdigit() and len(age) < 10 else 0.0
    return CacheControl(b"no-store" in names, b"no-cache" in names, b"private" in names, max_age_s)
