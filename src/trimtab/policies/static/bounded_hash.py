"""Consistent hashing with bounded loads: the same key goes to the same node unless that is too busy."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.cluster import Cluster
from trimtab.domain.parameters import Count, Range
from trimtab.domain.policy import Policy
from trimtab.domain.view import Memory, Plan, View, can_take, memory

_CIRCLE = (1 << 31) - 1  # a prime, so that products of two positions fit a signed 64-bit number
_A, _B, _C, _D = 1_103_515_245, 12_345, 1_812_433_253 % _CIRCLE, 907_633_385
_BUILT, _POINTS, _BUSY, _UP, _HEADER = range(5)  # ints: [header, in flight by node, positions, their nodes]


@helper(inline=True)
def position_of(key: int) -> int:
    """Where a key lies on the circle: two rounds of x → (a·x + b) mod p, p = 2³¹ − 1, with a shift between.

    Each round is a universal hash (Carter, Wegman: "Universal classes of hash functions", JCSS 1979, H₁); no
    step leaves 63 bits, so compiled and plain Python agree.
    """
    x = (_A * (key % _CIRCLE) + _B) % _CIRCLE
    x ^= x >> 15
    return (_C * (x % _CIRCLE) + _D) % _CIRCLE


def _split_mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser (Steele, Lea, Flood, OOPSLA 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def ring(node_names: tuple[str, ...], points: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions on the circle in rising order, [nodes × points], and the node of each.

    Position = SplitMix64(BLAKE2b-64(name) + point · 0x9E3779B97F4A7C15) mod p. The name decides, so that a
    node keeps its place for any index and any set of other nodes.
    """
    digests = [hashlib.blake2b(name.encode(), digest_size=8).digest() for name in node_names]
    seeds = np.array([int.from_bytes(digest, "little") for digest in digests], np.uint64)
    steps = np.arange(points, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = _split_mix(seeds[:, None] + steps[None, :]).reshape(-1)
    positions = (mixed % np.uint64(_CIRCLE)).astype(np.int64)
    order = np.argsort(positions, kind="stable")
    return positions[order], order // points


@helper(inline=True)
def _count(view: View, memory: Memory) -> None:
    """Replay the change log: how many requests are in flight on nodes that are up, and how many are up."""
    ints, nodes, first = memory.ints, view.nodes, memory.ints[_BUILT] == 0
    ints[_BUILT] = 1
    for i in range(view.context.n_nodes if first else view.context.n_changed):
        j = i if first else view.changed[i]
        before, after = ints[_HEADER + j], nodes.in_flight[j] if nodes.up[j] == 1 else -1
        ints[_BUSY] += max(after, 0) - max(before, 0)
        ints[_UP] += (1 if after >= 0 else 0) - (1 if before >= 0 else 0)
        ints[_HEADER + j] = after


@helper(inline=True)
def _first_at(ints: Any, begin: int, n_points: int, position: int) -> int:
    """The first point at or after a position (binary search); n_points where there is none."""
    low, high = 0, n_points
    while low < high:
        middle = (low + high) >> 1
        if ints[begin + middle] < position:
            low = middle + 1
        else:
            high = middle
    return low


@dataclass(frozen=True)
class BoundedHash(Policy):
    """Send requests of one key to one node, and on to the next on the circle where that is too busy.

    Idea
        Nodes and keys are hashed to a circle; a request goes clockwise from its key to the first node with
        fewer than ⌈c·m/n⌉ requests in flight, m of them in the whole cluster (this one included) and n nodes.
        Second candidate: the first able node that was passed over as too busy.
    Source
        Vahab Mirrokni, Mikkel Thorup, Morteza Zadimoghaddam: "Consistent hashing with bounded loads", SODA
        2018, §1 (the algorithm; from memory). HAProxy's description of its own implementation was read
        (commit 4f88c636, "Implement bounded-load hash algorithm").
    Reads
        The work's affinity key; requests in flight; which nodes are up, have room and serve the class.
    Cost
        O(log(nodes·points) + 1/ε²) for c = 1 + ε, plus O(1) per change; O(nodes·points) where hardly any node
        is able.
    When it wins / loses
        Wins where a node that holds the key's model, adapter or cache serves it much faster. Loses where keys
        are few or hot, and on unequal nodes: each counts the same.
    Deviations from the source
        Each node has `points` places on the circle, not one; every capacity is rounded up, where the paper
        rounds some down so that they sum to ⌈c·m⌉; requests are not moved when loads change. Where no able
        node is below the bound (others serve other classes), the first able one is taken. Two universal hash
        rounds stand in for a random function. Loads are requests in flight, which the source's balls are not.
    """

    name: ClassVar[str] = "bounded-hash"
    c: Annotated[float, Range(1.0, excludes_least=True)] = 1.25  # bound on load, relative to the mean
    points: Count = 16  # places on the circle per node

    def init(self, cluster: Cluster) -> Memory:
        """The circle, and what is in flight on each node as last seen (-1 = not up)."""
        positions, node_idx = ring(cluster.node_names, self.points)
        unseen = np.full(cluster.n_nodes, -1)
        ints = np.concatenate([[0, len(positions), 0, 0], unseen, positions, node_idx])
        return memory(params=[self.c], ints=ints)

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Walk the circle from the key to the first node below its bound."""
        _count(view, memory)
        ints, n_points = memory.ints, memory.ints[_POINTS]
        bound = math.ceil(memory.params[0] * (ints[_BUSY] + 1) / max(ints[_UP], 1))
        begin = _HEADER + view.context.n_nodes
        start = _first_at(ints, begin, n_points, position_of(work.key))
        passed = -1
        for step in range(n_points):
            j = ints[begin + n_points + (start + step) % n_points]
            if can_take(view, work, j):
                if view.nodes.in_flight[j] < bound:
                    ranking[0] = j
                    ranking[1] = passed
                    return 1 if passed < 0 else 2
                if passed < 0:
                    passed = j
        ranking[0] = passed
        return 0 if passed < 0 else 1
