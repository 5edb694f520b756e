"""Answers of deterministic requests, for equal requests of the same tenant.

The routes that opt in are covered. An answer is kept if it is whole, JSON, of status 200, and neither a
stream nor compressed. The least recently used ones go when there is no room.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

from trimtab.gateway.http.framing import Length, ResponseHead
from trimtab.gateway.model import Kind

if TYPE_CHECKING:
    from trimtab.gateway.http.request import IncomingExchange

_CONTROL: Final = re.compile(rb"^cache-control:[ \t]*([^\r\n]*)", re.IGNORECASE | re.MULTILINE)
_UNSHARED: Final = re.compile(rb"^(set-cookie:|vary:[ \t]*\*)", re.IGNORECASE | re.MULTILINE)
_ALWAYS: Final = frozenset((Kind.EMBEDDING, Kind.RERANK))
_SAMPLED: Final = frozenset((Kind.CHAT, Kind.COMPLETION, Kind.MESSAGES))
_SEEDED: Final = frozenset((Kind.CHAT, Kind.COMPLETION, Kind.IMAGE))
_OVERHEAD_BYTES: Final = 256  # of an entry


@dataclass(frozen=True, slots=True)
class ResultCacheOptions:
    """The size of the cache, and how long it keeps answers."""

    routes: frozenset[str] = frozenset()
    max_entries: int = 10_000
    max_bytes: int = 64 << 20
    max_age_s: float = 3600.0


class Kept(NamedTuple):
    """An answer."""

    head: ResponseHead
    body: bytes
    kept_s: float
    until_s: float


class ResultCache:
    """The cache of one process. `now_s` of the calls is the event loop's."""

    def __init__(self, options: ResultCacheOptions) -> None:
        self.options = options
        self.n_bytes = self.hits = self.misses = 0
        self._kept: OrderedDict[bytes, Kept] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def key_of(self, exchange: IncomingExchange) -> bytes:
        """The key of a request that may be answered from here or kept; b"" = neither."""
        endpoint, body, tenant = exchange.endpoint, exchange.body, exchange.tenant
        if exchange.route not in self.options.routes or endpoint is None or tenant is None or not body:
            return b""
        control = cache_control(exchange.request.headers.get(b"cache-control", b""))
        if control.no_store or not is_deterministic(endpoint.kind, body):
            return b""
        parts = (tenant.name.encode(), exchange.method.encode(), exchange.target, body)
        return hashlib.sha256(b"".join(b"%d:%b" % (len(part), part) for part in parts)).digest()

    def find(self, key: bytes, exchange: IncomingExchange, now_s: float) -> Kept | None:
        """The answer to a request, if it is fresh enough for it."""
        kept = self._kept.get(key)
        control = cache_control(exchange.request.headers.get(b"cache-control", b""))
        is_fresh = kept is not None and now_s < kept.until_s and now_s - kept.kept_s < control.max_age_s
        if kept is None or not is_fresh or control.no_cache:
            self.misses += 1
            return None
        self.hits += 1
        self._kept.move_to_end(key)
        return kept

    def keep(self, key: bytes, head: ResponseHead, body: bytes, now_s: float) -> None:
        """Keep an answer that is complete, where it allows that."""
        is_whole = head.status == 200 and head.length in (Length.COUNTED, Length.CHUNKED)
        if not is_whole or not head.json or head.coding or head.stream or _UNSHARED.search(head.block):
            return
        found = _CONTROL.findall(head.block)
        control = cache_control(b",".join(found))
        age_s = min(control.max_age_s, self.options.max_age_s)
        size = _size(head, body)
        if control.no_store or control.no_cache or control.private or age_s <= 0.0:
            return
        if size > self.options.max_bytes or self.options.max_entries < 1:
            return
        self._drop((key,))
        self._kept[key] = Kept(head, body, now_s, now_s + age_s)
        self.n_bytes += size
        while self.n_bytes > self.options.max_bytes or len(self._kept) > self.options.max_entries:
            self._drop((next(iter(self._kept)),))

    def obey(self, options: ResultCacheOptions) -> None:
        """Other options: what was kept is forgotten."""
        self.options = options
        self._drop(tuple(self._kept))

    def _drop(self, keys: Collection[bytes]) -> None:
        for key in keys:
            kept = self._kept.pop(key, None)
            if kept is not None:
                self.n_bytes -= _size(kept.head, kept.body)


def _size(head: ResponseHead, body: bytes) -> int:
    return len(head.block) + len(body) + _OVERHEAD_BYTES


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
