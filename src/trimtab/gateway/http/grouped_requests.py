"""Which requests are split or batched before the dispatcher decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trimtab.gateway.api.split_body import items_of, parsed
from trimtab.gateway.http.proxied_exchange import ProxiedExchange
from trimtab.gateway.http.split_requests import SplitRequest
from trimtab.gateway.model import Exchange, Kind

PartSizes = Callable[[Exchange, int], list[int]]
_SPLIT = frozenset((Kind.EMBEDDING, Kind.COMPLETION, Kind.IMAGE))


@dataclass(frozen=True, slots=True)
class GroupedRequests:
    """Implements `connection_context.Grouping`. `split`: models whose requests may be split."""

    split: frozenset[str]
    part_sizes: PartSizes

    def take(self, exchange: ProxiedExchange) -> bool:
        """Split the request, where it can be and a plan says so."""
        facts, endpoint, body = exchange.facts, exchange.endpoint, exchange.body
        if facts is None or endpoint is None or not body or facts.model not in self.split:
            return False
        if endpoint.kind not in _SPLIT or not endpoint.replayable or facts.stream:
            return False
        request = parsed(body)
        items = items_of(endpoint.kind, request)
        if items < 2:
            return False
        sizes = self.part_sizes(exchange, items)
        if len(sizes) < 2:
            return False
        SplitRequest(exchange, request, sizes).start()
        return True
