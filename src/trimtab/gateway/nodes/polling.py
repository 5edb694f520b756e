"""Polling: what nodes and the exporters of their machines report of themselves, into `node.reported`.

A page is fetched once however many nodes share it (eight servers on one machine), and read in pieces,
between which the loop serves others. What was not renewed for some periods is taken away and marked by
`SOURCE_stale` = 1: an old report is worse than none, since one's own counts are always at hand.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from trimtab.errors import ConfigError
from trimtab.gateway.model import Node
from trimtab.gateway.nodes.address import Address, beside
from trimtab.gateway.nodes.client import Client, UnansweredError
from trimtab.gateway.nodes.exposition import pieces
from trimtab.gateway.nodes.fleet import Fleet
from trimtab.gateway.nodes.meanings import FINDER, Reader, Reading, rates
from trimtab.gateway.nodes.rounds import Rounds

_MOST_APART_S = 0.02  # between the beginnings of two pages
_SPREAD_FRAC = 0.8  # of the period, over which a round is spread

BACKEND, MACHINE, GPU = "backend", "machine", "gpu"  # the sources


@dataclass(frozen=True, slots=True)
class PollingOptions:
    """How nodes are polled."""

    period_s: float = 2.0
    timeout_s: float = 1.5
    stale_after_s: float = 10.0
    piece_bytes: int = 16384  # read in one go


@dataclass(slots=True)
class _Source:
    """One page, and who is told what it says."""

    kind: str
    address: Address
    asker: Node | None  # whose key and TLS it is fetched with
    nodes: list[Node] = field(default_factory=list)
    last: Reading | None = None
    words: tuple[str, ...] = ()  # what it has put into `reported`


class Poller:
    """Polls whatever the entries of a fleet's nodes name."""

    def __init__(self, fleet: Fleet, options: PollingOptions | None = None) -> None:
        self._fleet, self._options = fleet, options or PollingOptions()
        self._client = Client(self._options.timeout_s)
        self._rounds = Rounds("polling", self.poll, self._options.period_s)
        self._sources: dict[tuple[str, str, int], _Source] = {}

    def start(self) -> None:
        """Poll from now on."""
        self._rounds.start()

    async def close(self) -> None:
        """Poll no more. It can be started again."""
        await self._rounds.close()
        await self._client.close()

    async def poll(self) -> None:
        """One round over all pages, begun one after the other: many at once would make the loop late."""
        self._sources = self._gathered()
        sources = list(self._sources.values())
        apart_s = min(_MOST_APART_S, _SPREAD_FRAC * self._options.period_s / max(1, len(sources)))
        async with asyncio.TaskGroup() as group:
            for source in sources:
                group.create_task(self._poll_one(source))
                await asyncio.sleep(apart_s)

    async def _poll_one(self, source: _Source) -> None:
        name = f"{source.kind} report of {source.nodes[0].name}"
        try:
            page = await self._client.get(source.asker, source.address)
            if page.status != 200:
                raise UnansweredError(f"its page answers {page.status}")
            reading = await self._read(page.body)
        except UnansweredError as error:
            self._fleet.report(name, str(error))
            self._age(source)
            return
        self._fleet.report(name, "")
        self._tell(source, reading)

    async def _read(self, page: bytes) -> Reading:
        reader = Reader()
        for piece in pieces(page, self._options.piece_bytes):
            reader.feed(FINDER.samples(piece))
            await asyncio.sleep(0)
        return reader.reading(self._fleet.loop.time())

    def _tell(self, source: _Source, reading: Reading) -> None:
        said = reading.gauges | (rates(source.last, reading) if source.last else {})
        said |= {f"{source.kind}_stale": 0.0, f"{source.kind}_read_unix_s": time.time()}
        for node in source.nodes:
            for word in source.words:
                node.reported.pop(word, None)
            node.reported |= said
            if source.kind == BACKEND:
                self._fleet.report_adapters(node, reading.adapters)
        source.last, source.words = reading, tuple(said)

    def _age(self, source: _Source) -> None:
        now_s = self._fleet.loop.time()
        if source.last is not None and now_s - source.last.read_s < self._options.stale_after_s:
            return
        for node in source.nodes:
            for word in source.words:
                node.reported.pop(word, None)
            node.reported[f"{source.kind}_stale"] = 1.0
        source.last, source.words = None, ()

    def _gathered(self) -> dict[tuple[str, str, int], _Source]:
        """The pages to fetch now; known ones keep what they said last."""
        gathered: dict[tuple[str, str, int], _Source] = {}
        for node in self._fleet.present():
            for found in self._sources_of(node):
                asker_idx = -1 if found.asker is None else found.asker.idx
                key = (found.kind, found.address.url, asker_idx)
                known = self._sources.get(key)
                source = gathered.setdefault(key, replace(known, nodes=[]) if known else found)
                source.nodes.append(node)
        return gathered

    def _sources_of(self, node: Node) -> Iterator[_Source]:
        condition = self._fleet.condition(node)
        spec, base = condition.spec, replace(condition.address, server_name=node.server_name)
        urls = ((BACKEND, spec.metrics_url), (MACHINE, spec.exporter_url), (GPU, spec.gpu_exporter_url))
        for kind, url in urls:
            if not url:
                continue
            try:
                address = beside(base, url, field=f"{kind} page")
            except ConfigError as error:
                self._fleet.report(f"{kind} page of {node.name}", str(error))
                continue
            if address.is_same_origin(base):
                address = replace(address, server_name=base.server_name)
            is_own = kind == BACKEND and address.is_same_origin(base)  # a key is for the node alone
            yield _Source(kind, address, node if is_own else None)
