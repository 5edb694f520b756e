"""Places of nodes that are taken and given back: in the fleet's counts and other pools'."""

from __future__ import annotations

from trimtab.gateway.decide.pool import Entry, Pool
from trimtab.gateway.decide.pools import Pools, Turns
from trimtab.gateway.model import Exchange, Node
from trimtab.gateway.nodes.fleet import Fleet


class Occupancy:
    """Who has which places. Work that one pool sends to a node is load from elsewhere to the others."""

    def __init__(self, fleet: Fleet, pools: Pools, turns: Turns) -> None:
        self._nodes, self._pools, self._turns = fleet.nodes, pools, turns
        # Places that hedged exchanges hold besides their rows', to be given back at their ends:
        self._hedged: dict[Exchange, list[tuple[int, int, float]]] = {}  # node, requests, tokens

    def take(self, pool: Pool, node_idx: int, estimate_s: float, now_s: float) -> None:
        """A pool has started a request on a node, of so many seconds."""
        self._nodes[node_idx].in_flight += 1
        if len(self._pools.by_spec) > 1:
            self._tell_others(pool, node_idx, 1, estimate_s, now_s)

    def inherit(self, pool: Pool, entry: Entry) -> None:
        """A request runs on a node already: the pool has it from its next state on."""
        self._nodes[entry.node_idx].in_flight += 1
        pool.inherit([entry])

    def free(self, pool: Pool, entry: Entry, now_s: float) -> None:
        """A place is given back, if it had one, and what a hedge has left."""
        exchange = entry.exchange
        if entry.node_idx >= 0:
            node_idx, entry.node_idx = entry.node_idx, -1
            self._nodes[node_idx].in_flight -= 1
            if len(self._pools.by_spec) > 1:
                self._tell_others(pool, node_idx, -1, -exchange.estimate_s, now_s)
        if self._hedged:
            for node_idx, requests, tokens in self._hedged.pop(exchange, ()):
                self._change_load(node_idx, -requests, -tokens, now_s)

    def hedge(self, pool: Pool, exchange: Exchange, now_s: float) -> Node | None:
        """Take a place for a second attempt, where the smallest share of a node's places is taken."""
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

    def change(self, pool: Pool, exchange: Exchange, node_idx: int, requests: int, now_s: float) -> None:
        """A hedged exchange has an attempt more on a node, or one fewer."""
        tokens = requests * pool.entries[exchange.row].asked.tokens
        self._hedged.setdefault(exchange, []).append((node_idx, requests, tokens))
        self._change_load(node_idx, requests, tokens, now_s)

    def tell(self, pool: Pool, now_s: float) -> None:
        """Let a fresh state know what its nodes carry besides its own."""
        for other in self._pools.by_spec.values():
            if other is not pool:
                for entry in other.entries.values():
                    if entry.node_idx >= 0:
                        pool.live.add_load(entry.node_idx, 1, entry.exchange.estimate_s, now_s)
        for places in self._hedged.values():
            for node_idx, requests, tokens in places:
                pool.live.add_load(node_idx, requests, 0.0, now_s, tokens)

    def _tell_others(self, pool: Pool, node_idx: int, requests: int, estimate_s: float, now_s: float) -> None:
        for other in self._pools.by_spec.values():
            if other is not pool:
                other.live.add_load(node_idx, requests, estimate_s, now_s)
                if requests < 0:
                    self._turns.turn(other, now_s)

    def _change_load(self, node_idx: int, requests: int, tokens: float, now_s: float) -> None:
        self._nodes[node_idx].in_flight += requests
        for pool in self._pools.by_spec.values():
            pool.live.add_load(node_idx, requests, 0.0, now_s, tokens)
            if requests < 0:
                self._turns.turn(pool, now_s)
