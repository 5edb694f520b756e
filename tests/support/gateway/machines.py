"""Machines that others use too, in virtual time: they report that, and serve as slowly as it leaves them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from support.gateway.dispatch_bench import Asked, Bench

GIB = 1 << 30
SERVICE_S, PERIOD_S, CHANGE_S = 2.0, 2.0, 25.0  # of a request, of reports, of what others do
CORES, OWN_CORES = 16.0, 0.5  # of a node, and of them what one request takes
LOADS: Final = (0.0, 0.3, 0.6, 0.85)  # of others on a node, handed round


class Machines:
    """Nodes with work of others: they report it, and serve as slowly as it leaves them."""

    def __init__(self, bench: Bench, rng: np.random.Generator, gib_per_s: Sequence[float]) -> None:
        self.bench, self.rng, self.gib_per_s = bench, rng, gib_per_s
        self.busy = np.zeros(len(gib_per_s))
        self.rtt_s = np.zeros(len(gib_per_s))
        self.completion_s: list[float] = []
        self.ended: Callable[[Asked], None] = lambda _: None

    async def others(self) -> None:
        """Work of others moves from node to node."""
        while True:
            self.busy = self.rng.permutation(LOADS)[: len(self.busy)]
            await asyncio.sleep(CHANGE_S)

    async def reports(self) -> None:
        """Exporters are read; own requests take a part that the report has too."""
        while True:
            for node in self.bench.fleet.nodes:
                own = node.in_flight * OWN_CORES / CORES
                node.reported["cpu_busy_frac"] = float(min(1.0, self.busy[node.idx] + own))
                self.bench.fleet.reports(node, "machine", node.reported)
            await asyncio.sleep(PERIOD_S)

    async def serve(self, asked: Asked) -> None:
        """A request comes, waits for a node, is sent there and served."""
        begun_s, links = self.bench.loop.time(), self.bench.dispatcher.signals.links
        self.bench.submit(asked)
        while not asked.node:
            await asyncio.sleep(0.01)
        node_idx, sent_s = asked.attempts[-1].node.idx, self.bench.loop.time()
        left = asked.body_bytes
        transfer = links.begin(node_idx, left)
        while transfer is not None and left > 0:  # shares its link with the others that are under way
            await asyncio.sleep(0.05)
            left -= int(0.05 * self.gib_per_s[node_idx] * GIB / links.active[node_idx])
        if transfer is not None:
            transfer.end(self.bench.loop.time(), is_whole=False)
        slowed, rtt_s = 1.0 / (1.0 - float(self.busy[node_idx])), float(self.rtt_s[node_idx])
        await asyncio.sleep(SERVICE_S * slowed * self.rng_of(asked) + rtt_s)
        asked.attempts[-1].begun_s, took_s = sent_s, self.bench.loop.time() - sent_s
        self.bench.done(asked, took_s)
        self.completion_s.append(self.bench.loop.time() - begun_s)
        self.ended(asked)

    @staticmethod
    def rng_of(asked: Asked) -> float:
        """The request's own factor, the same wherever it is served."""
        return float(np.random.default_rng(asked.priority).lognormal(-0.045, 0.3))
