"""Prefix index: the nodes that have probably cached the beginning of a prompt, by hashes of its blocks.

A block's hash covers all text before it, so equal hashes mean equal beginnings. The hash is Python's string
hash (SipHash with a new key in every process), mixed with a salt of this module, so that clients cannot
construct collisions.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from trimtab.gateway.api.units import BLOCK_CHARS, BLOCK_TOKENS, HASHED_CHARS

_SALT: Final = int.from_bytes(os.urandom(7), "big")
_MAX_RETIRED: Final = 64  # bits of removed nodes before all entries are compacted
_TRUST_WEIGHT: Final = 0.1  # weight of the newest report in a node's running average


def chain(model: str, text: str) -> tuple[int, ...]:
    """Chained hashes of the whole blocks of a prompt's beginning: signed 64-bit integers."""
    end = min(len(text), HASHED_CHARS) // BLOCK_CHARS * BLOCK_CHARS
    if not end:
        return ()
    link = hash((_SALT, model))
    links = []
    for start in range(0, end, BLOCK_CHARS):
        link = hash((link, text[start : start + BLOCK_CHARS]))
        links.append(link)
    return tuple(links)


class PrefixIndex:
    """Block → the nodes to which it was sent, for the `max_blocks` most recently used blocks.

    An entry is a bit mask of nodes. Entries live in two generations. A used entry moves to the young one.
    When the young generation holds half of `max_blocks`, the old one is dropped. So memory is bounded, and a
    use needs no list operations.
    """

    __slots__ = ("_bit_of", "_half", "_live", "_node_of", "_old", "_retired", "_trust", "_young")

    def __init__(self, max_blocks: int = 100_000) -> None:
        self._half = max(1, max_blocks // 2)
        self._young: dict[int, int] = {}
        self._old: dict[int, int] = {}
        self._bit_of: dict[int, int] = {}  # node → its bit's position
        self._node_of: list[int] = []  # bit's position → node, −1 where it was forgotten
        self._live = 0  # bits that stand for a node
        self._retired = 0
        self._trust: dict[int, float] = {}  # node → fraction of matches that it really has, 0..1

    def __len__(self) -> int:
        """The number of entries, at most `max_blocks`."""
        return len(self._young) + len(self._old)

    def match(self, blocks: Sequence[int], n_nodes: int, limit: int = 32) -> list[tuple[int, int]]:
        """(node, number of first blocks it has) for nodes below `n_nodes`, longest first, at most `limit`.

        Nodes without a match are left out. A node whose reports showed less than was matched is discounted.
        """
        steps = self._steps(blocks)
        found: list[tuple[int, int]] = []
        seen = 0
        for length, mask in reversed(steps):
            fresh = mask & ~seen
            seen = mask
            while fresh:
                low = fresh & -fresh
                fresh ^= low
                node_idx = self._node_of[low.bit_length() - 1]
                trusted = int(length * self._trust.get(node_idx, 1.0) + 0.5)
                if node_idx < n_nodes and trusted:
                    found.append((node_idx, trusted))
                    if len(found) >= limit:
                        return found
        return found

    def _steps(self, blocks: Sequence[int]) -> list[tuple[int, int]]:
        """(length, nodes that have that many first blocks), for lengths where the set of nodes shrinks."""
        young, old = self._young, self._old
        mask, length = self._live, 0
        steps: list[tuple[int, int]] = []
        for block in blocks:
            entry = young.get(block) or old.get(block)
            both = mask & entry if entry else 0
            if both != mask:
                if length:
                    steps.append((length, mask))
                mask = both
                if not both:
                    return steps
            length += 1
        if length:
            steps.append((length, mask))
        return steps

    def add(self, node_idx: int, blocks: Sequence[int]) -> None:
        """Record that a prompt of these blocks is sent to the node."""
        bit = 1 << self._bit(node_idx)
        young, old, live = self._young, self._old, self._live
        for block in blocks:
            entry = young.get(block)
            if entry is None:
                entry = old.pop(block, 0) & live
            young[block] = entry | bit
        if len(young) >= self._half:
            self._turn()

    def _turn(self) -> None:
        """Drop the old generation. The young one becomes the old one."""
        young = self._young
        while len(young) > self._half:  # one very long prompt: keep the bound
            young.pop(next(iter(young)))
        self._old, self._young = young, {}

    def _bit(self, node_idx: int) -> int:
        position = self._bit_of.get(node_idx)
        if position is None:
            position = len(self._node_of)
            self._bit_of[node_idx] = position
            self._node_of.append(node_idx)
            self._live |= 1 << position
        return position

    def correct(self, node_idx: int, blocks: Sequence[int], cached_tokens: int, matched: int) -> None:
        """Compare a finished request's `cached_tokens` with the `matched` blocks that `match` gave.

        A node that has less than was matched (it evicts early, or caches nothing) is discounted, until its
        reports improve. Half of the expected tokens counts as correct, because tokens are only estimated.
        """
        if not blocks or not (matched or cached_tokens):
            return
        expected = max(matched, 1) * BLOCK_TOKENS
        held_frac = min(1.0, 2.0 * cached_tokens / expected)
        trust = self._trust.get(node_idx, 1.0)
        self._trust[node_idx] = trust + _TRUST_WEIGHT * (held_frac - trust)

    def forget(self, node_idx: int) -> None:
        """Remove a node that lost its cache: it was restarted or removed."""
        self._trust.pop(node_idx, None)
        position = self._bit_of.pop(node_idx, None)
        if position is None:
            return
        self._live &= ~(1 << position)
        self._node_of[position] = -1
        self._retired += 1
        if self._retired >= _MAX_RETIRED:
            self._sweep()

    def _sweep(self) -> None:
        """Compact the bits of present nodes, so that masks are no longer than the number of nodes."""
        nodes = sorted(self._bit_of)
        moves = [(self._bit_of[node_idx], place) for place, node_idx in enumerate(nodes)]
        self._young = _packed(self._young, moves)
        self._old = _packed(self._old, moves)
        self._node_of = nodes
        self._bit_of = {node_idx: place for place, node_idx in enumerate(nodes)}
        self._live = (1 << len(nodes)) - 1
        self._retired = 0


def _packed(entries: dict[int, int], moves: Sequence[tuple[int, int]]) -> dict[int, int]:
    cache: dict[int, int] = {}  # there are few distinct masks
    packed: dict[int, int] = {}
    for block, mask in entries.items():
        new = cache.get(mask)
        if new is None:
            new = cache[mask] = sum(1 << place for position, place in moves if mask >> position & 1)
        if new:
            packed[block] = new
    return packed
