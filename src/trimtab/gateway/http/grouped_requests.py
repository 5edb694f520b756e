"""Which requests are split or batched before the dispatcher decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from trimtab.gateway.api.batch_body import batch_key, texts_of
from trimtab.gateway.api.split_body import items_of, parsed
from trimtab.gateway.http.batched_requests import Batch, BatchKey, BatchSizes
from trimtab.gateway.http.proxied_exchange import ProxiedExchange
from trimtab.gateway.http.split_requests import SplitRequest
from trimtab.gateway.model import Exchange, Kind

PartSizes = Callable[[Exchange, int], list[int]]
Batching = Callable[[Exchange], tuple[int, float]]  # most requests of a batch, and its window in seconds
_SPLIT = frozenset((Kind.EMBEDDING, Kind.COMPLETION, Kind.IMAGE))


def _unbatched(_: Exchange) -> tuple[int, float]:
    return 1, 0.0


@dataclass(frozen=True, slots=True)
class GroupedRequests:
    """Implements `connection_context.Grouping`. `split`, `batch`: models whose requests may be."""

    split: frozenset[str]
    part_sizes: PartSizes
    batch: frozenset[str] = frozenset()
    batching: Batching = _unbatched
    _open: dict[BatchKey, Batch] = field(default_factory=dict)
    _sizes: BatchSizes = field(default_factory=BatchSizes)

    def take(self, exchange: ProxiedExchange) -> bool:
        """Split or batch the request, where it can be and a plan says so."""
        facts, endpoint, body = exchange.facts, exchange.endpoint, exchange.body
        if facts is None or endpoint is None or not body or facts.stream or not endpoint.replayable:
            return False
        kind = endpoint.kind
        may_split = kind in _SPLIT and facts.model in self.split
        may_batch = kind is Kind.EMBEDDING and facts.model in self.batch
        if not may_split and not may_batch:
            return False
        request = parsed(body)
        return (may_split and self._split(exchange, kind, request)) or (
            may_batch and self._batch(exchange, facts.model, request)
        )

    def _split(self, exchange: ProxiedExchange, kind: Kind, request: dict[str, object]) -> bool:
        items = items_of(kind, request)
        exchange.parts_max = items
        sizes = self.part_sizes(exchange, items) if items > 1 else []
        if len(sizes) < 2:
            return False
        SplitRequest(exchange, request, sizes).start()
        return True

    def _batch(self, exchange: ProxiedExchange, model: str, request: dict[str, object]) -> bool:
        (most, window_s), most_texts = self.batching(exchange), self._sizes.most(model, exchange.arrived_s)
        texts, tenant = texts_of(request), exchange.tenant
        if min(most, most_texts) < 2 or not texts or tenant is None:
            return False
        about = exchange.target, exchange.route, exchange.session, exchange.priority, exchange.background
        key = (tenant.name, *about, batch_key(request, texts))
        batch = self._open.get(key)
        if batch is not None and not batch.takes(texts):
            batch.fill()
            batch = None
        if batch is None:
            batch = self._open[key] = Batch(self._open, key, request, self._sizes, most_texts)
            batch.send_after(exchange.context.loop, window_s)
        if batch.add(exchange, texts) >= most or batch.is_full:
            batch.fill()
        return True
