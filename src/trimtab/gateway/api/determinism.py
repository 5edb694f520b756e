"""Which requests have an answer that a second, equal request may get too."""

from __future__ import annotations

from typing import Final

import orjson

from trimtab.gateway.model import Kind

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
