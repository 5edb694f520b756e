"""Where a request would best go for what a node still has of others: sessions, responses, prefixes."""

from __future__ import annotations

from trimtab.gateway.api.prefix import PrefixIndex
from trimtab.gateway.api.units import BLOCK_TOKENS
from trimtab.gateway.decide.places import Homes, OwnedHomes
from trimtab.gateway.decide.pool import Pool
from trimtab.gateway.model import Exchange, Health, Node
from trimtab.gateway.nodes.fleet import Fleet


class Affinity:
    """Homes of sessions and of stored responses, and the prefix index, where `prefix_blocks` > 0."""

    def __init__(self, fleet: Fleet, prefix_blocks: int) -> None:
        self._fleet = fleet
        self._sessions, self._responses = Homes(), OwnedHomes()
        self.prefixes = PrefixIndex(prefix_blocks) if prefix_blocks else None

    def is_foreign(self, exchange: Exchange, response_id: str) -> bool:
        """Whether another tenant has this response."""
        return self._responses.is_foreign(_owner(exchange), response_id)

    def home(self, exchange: Exchange) -> tuple[int, bool]:
        """The node where it, its session or its response lives, or -1; and whether no other node will do."""
        facts, owner = exchange.facts, _owner(exchange)
        if exchange.only_node and (only := self._fleet.find(exchange.only_node)) is not None:
            return only.idx, True
        if facts is not None and facts.previous_response_id:
            node = self._responses.get(owner, facts.previous_response_id)
            found = None if node is None else self._fleet.find(node)
            if found is not None and found.health is not Health.DRAINING:
                return found.idx, True
        if exchange.session:
            node = self._sessions.get(owner, exchange.session)
            found = None if node is None else self._fleet.find(node)
            if found is not None:
                return found.idx, False
        return -1, False

    def remember(self, exchange: Exchange, response_id: str, node: Node) -> None:
        """Its session lives there from now on, and the response that it got, if that has a name."""
        if exchange.session:
            self._sessions.set(_owner(exchange), exchange.session, node.name)
        if response_id:
            self._responses.set(_owner(exchange), response_id, node.name)

    def show_prefix(self, exchange: Exchange, pool: Pool) -> dict[int, int]:
        """Let the policy see how much of its prompt each node seems to have; returns node → blocks."""
        tokens = pool.live.prefix_tokens
        tokens[:] = 0.0
        facts = exchange.facts
        if self.prefixes is None or facts is None or not facts.prefix_blocks:
            return {}
        matched = dict(self.prefixes.match(facts.prefix_blocks, len(tokens)))
        for j, blocks in matched.items():
            tokens[j] = blocks * BLOCK_TOKENS
        return matched

    def note_prefix(self, exchange: Exchange, node_idx: int) -> None:
        """A node has its prompt soon."""
        if self.prefixes is not None and exchange.facts is not None:
            self.prefixes.add(node_idx, exchange.facts.prefix_blocks)

    def forget(self, node: Node) -> None:
        """It is gone, and with it what it had cached."""
        if self.prefixes is not None:
            self.prefixes.forget(node.idx)


def _owner(exchange: Exchange) -> str:
    """Whose sessions and responses a request may name."""
    return "" if exchange.tenant is None else exchange.tenant.name
