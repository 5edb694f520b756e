"""Options of clients in headers and bodies: Prefer, Cache-Control, and what makes an answer repeatable."""

from __future__ import annotations

import re
from math import inf
from typing import Final, NamedTuple

import orjson

from trimtab.gateway.model import Kind

_PREFERENCE: Final = re.compile(rb'(?:[^,"]|"(?:[^"\\]|\\.)*"?)+')  # a comma in quotes is no border


def wants_async(prefer: bytes) -> bool:
    """Whether a Prefer header with one or several preferences requests a job instead of a response."""
    preferences = _PREFERENCE.findall(prefer)
    return any(one.partition(b";")[0].strip().lower() == b"respond-async" for one in preferences)


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


_ALWAYS: Final = frozenset((Kind.EMBEDDING, Kind.RERANK))
_SAMPLED: Final = frozenset((Kind.CHAT, Kind.COMPLETION, Kind.MESSAGES))
_SEEDED: Final = frozenset((Kind.CHAT, Kind.COMPLETION, Kind.IMAGE))


def is_deterministic(kind: Kind, body: bytes) -> bool:
    """Whether equal requests have equal answers: embeddings and scores; temperature 0; a seed. No streams."""
    if kind not in _ALWAYS and kind not in _SAMPLED and kind not in _SEEDED:
        return False
    try:
        request = orjson.loads(body)
    except ValueError:
        return False
    if not isinstance(request, dict) or request.get("stream"):
        return False
    if kind in _ALWAYS:
        return True
    is_seeded = kind in _SEEDED and type(request.get("seed")) is int
    temperature = request.get("temperature")
    is_greedy = kind in _SAMPLED and type(temperature) in (int, float) and temperature == 0
    return is_seeded or is_greedy
