"""Polls the metrics of nodes and of their machines' exporters into `node.reported`, which policies see.

Nodes that share a page (eight servers on one machine) share one fetch. The page is read in pieces, so that
the event loop serves requests in between. Values that were not renewed for some periods are removed and
marked by `SOURCE_stale` = 1: an old report is worse than none, since the gateway's own counts are always
current.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from trimtab.errors import ConfigError
from trimtab.gateway.model import Node
from trimtab.gateway.nodes.address import Address, beside
from trimtab.gateway.nodes.fleet import Fleet
from trimtab.gateway.nodes.metric_mappings import SAMPLE_FINDER, Reader, Reading, rates
from trimtab.gateway.nodes.node_calls import ProbeClient, UnansweredError
from trimtab.gateway.nodes.periodic import PeriodicTask
from trimtab.traces.prometheus_text import pieces

_MOST_APART_S = 0.02  # between the starts of two fetches
_SPREAD_FRAC = 0.8  # of the period, over which a round is spread

BACKEND, MACHINE, GPU = "backend", "machine", "gpu"  # the sources


@dataclass(frozen=True, slots=True)
class PollingOptions:
    """How nodes are polled."""

    period_s: float = 2.0
    timeout_s: float = 1.5
    stale_after_s: float = 10.0
    piece_bytes: int = 16384  # parsed without a break


@dataclass(slots=True)
class _Source:
    """One page, and the nodes that it is about."""

    kind: str
    address: Address
    credentials_of: Node | None  # the node whose key and TLS the fetch uses
    nodes: list[Node] = field(default_factory=list)
    last: Reading | None = None
    names: tuple[str, ...] = ()  # of its values in `reported`


class Poller:
    """Polls the pages that the nodes' entries name."""

    def __init__(self, fleet: Fleet, options: PollingOptions | None = None) -> None:
        self._fleet, self._options = fleet, options or PollingOptions()
        self._client = ProbeClient(self._options.timeout_s)
        self._task = PeriodicTask("polling", self.poll, self._options.period_s)
        self._sources: dict[tuple[str, str, int], _Source] = {}

    def start(self) -> None:
        """Poll from now on."""
        self._task.start()

    async def close(self) -> None:
        """Stop polling. `start` begins again."""
        await self._task.close()
        await self._client.close()

    async def poll(self) -> None:
        """Fetch all pages, begun one after the other: many at once would delay the loop."""
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
            page = await self._client.get(source.credentials_of, source.address)
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
            reader.feed(SAMPLE_FINDER.samples(piece))
            await asyncio.sleep(0)
        return reader.reading(self._fleet.loop.time())

    def _tell(self, source: _Source, reading: Reading) -> None:
        values = reading.gauges | (rates(source.last, reading) if source.last else {})
        values |= {f"{source.kind}_stale": 0.0, f"{source.kind}_read_unix_s": time.time()}
        for node in source.nodes:
            for name in source.names:
                node.reported.pop(name, None)
            node.reported |= values
            if source.kind == BACKEND:
                self._fleet.report_adapters(node, reading.adapters)
            node.reported_s[source.kind] = reading.read_s
            self._fleet.reports(node, source.kind, values)
        source.last, source.names = reading, tuple(values)

    def _age(self, source: _Source) -> None:
        now_s = self._fleet.loop.time()
        if source.last is not None and now_s - source.last.read_s < self._options.stale_after_s:
            return
        for node in source.nodes:
            for name in source.names:
                node.reported.pop(name, None)
            node.reported[f"{source.kind}_stale"] = 1.0
            node.reported_s.pop(source.kind, None)
            self._fleet.reports(node, source.kind, {})
        source.last, source.names = None, ()

    def _gathered(self) -> dict[tuple[str, str, int], _Source]:
        """The pages to fetch now; known ones keep their last reading."""
        gathered: dict[tuple[str, str, int], _Source] = {}
        for node in self._fleet.present():
            for found in self._sources_of(node):
                credentials_idx = -1 if found.credentials_of is None else found.credentials_of.idx
                key = (found.kind, found.address.url, credentials_idx)
                known = self._sources.get(key)
                source = gathered.setdefault(key, replace(known, nodes=[]) if known else found)
                source.nodes.append(node)
        return gathered

    def _sources_of(self, node: Node) -> Iterator[_Source]:
        state = self._fleet.state(node)
        spec, base = state.spec, replace(state.address, server_name=node.server_name)
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
            is_own = kind == BACKEND and address.is_same_origin(base)  # only the node itself may see its key
            yield _Source(kind, address, node if is_own else None)
