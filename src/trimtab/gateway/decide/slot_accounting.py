"""Accounting of slots that are taken and released: in the fleet's counts and in the other pools."""

from __future__ import annotations

from trimtab.gateway.decide.class_counts import ClassCounts
from trimtab.gateway.decide.pool import Entry, PolicyPool, PoolOwner
from trimtab.gateway.decide.pools import PolicyPools
from trimtab.gateway.model import Exchange, Node
from trimtab.gateway.nodes.fleet import Fleet


class SlotAccounting:
    """The slots of running requests. Work that one pool sends to a node is background load to the others."""

    def __init__(self, fleet: Fleet, pools: PolicyPools, owner: PoolOwner, counts: ClassCounts) -> None:
        self._nodes, self._pools, self._owner, self._counts = fleet.nodes, pools, owner, counts
        # Slots that hedged exchanges hold besides those of their rows, released at their ends:
        self._hedged: dict[Exchange, list[tuple[int, int, float]]] = {}  # node, requests, tokens

    def take(self, pool: PolicyPool, exchange: Exchange, node_idx: int, now_s: float) -> None:
        """A pool has started a request on a node."""
        self._nodes[node_idx].in_flight += 1
        self._counts.begin(node_idx, exchange.class_idx, _answers(exchange), now_s)
        if len(self._pools.by_spec) > 1:
            self._update_other_pools(pool, exchange, node_idx, 1, now_s)

    def inherit(self, pool: PolicyPool, entry: Entry) -> None:
        """A request runs on a node already: the pool's next state includes it."""
        self._nodes[entry.node_idx].in_flight += 1
        exchange = entry.exchange
        self._counts.begin(entry.node_idx, exchange.class_idx, _answers(exchange), self._pools.now_s())
        pool.inherit([entry])

    def free(self, pool: PolicyPool, entry: Entry, now_s: float) -> None:
        """Release the slot of a request, if it had one, and those of its hedge."""
        exchange = entry.exchange
        if entry.node_idx >= 0:
            node_idx, entry.node_idx = entry.node_idx, -1
            self._nodes[node_idx].in_flight -= 1
            self._counts.end(node_idx, entry.spec.class_idx, _answers(exchange), now_s)
            if len(self._pools.by_spec) > 1:
                self._update_other_pools(pool, exchange, node_idx, -1, now_s)
        if self._hedged:
            for node_idx, requests, tokens in self._hedged.pop(exchange, ()):
                self._change_load(exchange, node_idx, -requests, -tokens, now_s)

    def hedge(self, pool: PolicyPool, exchange: Exchange, now_s: float) -> Node | None:
        """Take a slot for a second attempt, on the node with the smallest share of slots in use."""
        tried = {attempt.node.idx for attempt in exchange.attempts}
        nodes, best = pool.live.nodes, -1
        for j in range(len(nodes.up)):
            if (
                j not in tried
                and pool.live.takes(exchange.row, j)
                and (
                    best < 0
                    or nodes.in_flight[j] * nodes.slots[best] < nodes.in_flight[best] * nodes.slots[j]
                )
            ):
                best = j
        if best < 0:
            return None
        self.change(pool, exchange, best, 1, now_s)
        return self._nodes[best]

    def change(
        self, pool: PolicyPool, exchange: Exchange, node_idx: int, requests: int, now_s: float
    ) -> None:
        """A hedged exchange has one more attempt on a node, or one fewer."""
        tokens = requests * pool.entries[exchange.row].spec.tokens
        self._hedged.setdefault(exchange, []).append((node_idx, requests, tokens))
        self._change_load(exchange, node_idx, requests, tokens, now_s)

    def add_background_load(self, pool: PolicyPool, now_s: float) -> None:
        """Tell a rebuilt state the load that its nodes have from elsewhere."""
        for other in self._pools.by_spec.values():
            if other is not pool:
                for entry in other.entries.values():
                    if entry.node_idx >= 0:
                        pool.live.add_load(entry.node_idx, 1, entry.exchange.estimate_s, now_s)
        for slots in self._hedged.values():
            for node_idx, requests, tokens in slots:
                pool.live.add_load(node_idx, requests, 0.0, now_s, tokens)

    def _update_other_pools(
        self, pool: PolicyPool, exchange: Exchange, node_idx: int, requests: int, now_s: float
    ) -> None:
        for other in self._pools.by_spec.values():
            if other is not pool:
                other.live.add_load(node_idx, requests, requests * exchange.estimate_s, now_s)
                other.live.reports.add_use(node_idx, exchange.class_idx, requests)
                if requests < 0:
                    self._owner.turn(other, now_s)

    def _change_load(
        self, exchange: Exchange, node_idx: int, requests: int, tokens: float, now_s: float
    ) -> None:
        self._nodes[node_idx].in_flight += requests
        count = self._counts.begin if requests > 0 else self._counts.end
        count(node_idx, exchange.class_idx, _answers(exchange), now_s)
        for pool in self._pools.by_spec.values():
            pool.live.add_load(node_idx, requests, 0.0, now_s, tokens)
            pool.live.reports.add_use(node_idx, exchange.class_idx, requests)
            if requests < 0:
                self._owner.turn(pool, now_s)


def _answers(exchange: Exchange) -> int:
    return 1 if exchange.facts is None else exchange.facts.answers
