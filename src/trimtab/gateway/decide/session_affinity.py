"""Session affinity: the nodes that hold a session, a stored response, or the prefix of a prompt."""

from __future__ import annotations

from typing import Final

from trimtab.gateway.api.prefix import PrefixIndex
from trimtab.gateway.api.units import BLOCK_TOKENS
from trimtab.gateway.decide.pool import PolicyPool
from trimtab.gateway.model import Exchange, Health, Node
from trimtab.gateway.nodes.fleet import Fleet

MOST: Final = 65_536


class AffinityMap:
    """(Tenant, name) → node's name, bounded: the oldest entry goes first. Each tenant has its own names."""

    __slots__ = ("_most", "_node_of")

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._node_of: dict[tuple[str, str], str] = {}

    def set(self, tenant: str, name: str, node: str) -> str | None:
        """Map the name to this node. Returns the name of the entry that had to go, of any tenant."""
        entries, key = self._node_of, (tenant, name)
        entries.pop(key, None)  # to the end of the order
        entries[key] = node
        if len(entries) <= self._most:
            return None
        oldest = next(iter(entries))
        del entries[oldest]
        return oldest[1]

    def get(self, tenant: str, name: str) -> str | None:
        """The node's name; None = unknown."""
        return self._node_of.get((tenant, name))


class OwnedAffinityMap:
    """Names that are unique over all tenants: the first tenant to set one owns it."""

    __slots__ = ("_entries", "_owner_of")

    def __init__(self, most: int = MOST) -> None:
        self._entries = AffinityMap(most)
        self._owner_of: dict[str, str] = {}

    def set(self, tenant: str, name: str, node: str) -> None:
        """Map the name to this node, unless another tenant owns it."""
        if self._owner_of.setdefault(name, tenant) != tenant:
            return
        forgotten = self._entries.set(tenant, name, node)
        if forgotten is not None:
            del self._owner_of[forgotten]

    def get(self, tenant: str, name: str) -> str | None:
        """The node's name; None = unknown, or another tenant's."""
        return self._entries.get(tenant, name)

    def is_foreign(self, tenant: str, name: str) -> bool:
        """Whether another tenant owns the name."""
        return self._owner_of.get(name, tenant) != tenant


class SessionAffinity:
    """The nodes of sessions and of stored responses, and the prefix index, where `prefix_blocks` > 0."""

    def __init__(self, fleet: Fleet, prefix_blocks: int) -> None:
        self._fleet = fleet
        self._sessions, self._responses = AffinityMap(), OwnedAffinityMap()
        self.prefixes = PrefixIndex(prefix_blocks) if prefix_blocks else None

    def is_foreign(self, exchange: Exchange, response_id: str) -> bool:
        """Whether another tenant owns this response."""
        return self._responses.is_foreign(_owner(exchange), response_id)

    def node_of(self, exchange: Exchange) -> tuple[int, bool]:
        """The node of the request, its session or its response, or -1; and whether it is required."""
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
        """This node holds the request's session from now on, and its response, if that has a name."""
        if exchange.session:
            self._sessions.set(_owner(exchange), exchange.session, node.name)
        if response_id:
            self._responses.set(_owner(exchange), response_id, node.name)

    def show_prefix(self, exchange: Exchange, pool: PolicyPool) -> dict[int, int]:
        """Show the policy the expected cached part of the prompt at each node; returns node → blocks."""
        tokens = pool.live.prefix_tokens
        tokens[:] = 0.0
        facts = None if self.prefixes is None else exchange.facts  # without caches no prompts, as simulated
        pool.live.show_prompt(0.0 if facts is None else facts.prompt_tokens)
        if self.prefixes is None or facts is None or not facts.prefix_blocks:
            return {}
        matched = dict(self.prefixes.match(facts.prefix_blocks, len(tokens)))
        for j, blocks in matched.items():
            tokens[j] = blocks * BLOCK_TOKENS
        return matched

    def note_prefix(self, exchange: Exchange, node_idx: int) -> None:
        """The node will have the prompt of this request."""
        if self.prefixes is not None and exchange.facts is not None:
            self.prefixes.add(node_idx, exchange.facts.prefix_blocks)

    def forget(self, node: Node) -> None:
        """The node is gone, with its cache."""
        if self.prefixes is not None:
            self.prefixes.forget(node.idx)


def _owner(exchange: Exchange) -> str:
    """The tenant whose sessions and responses the request may name."""
    return "" if exchange.tenant is None else exchange.tenant.name
