"""Networks small enough to work out on paper, and max-min fair rates the slow way round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from trimtab.domain.cluster import Cluster
from trimtab.domain.network import Network, Routing


def network(
    nodes: Sequence[str],
    zones: Sequence[str],
    switches: Sequence[str],
    links: Sequence[tuple[str, str, float, float]],
    routing: Routing = Routing.LEAST_DELAY,
    store: str | None = None,
) -> Network:
    """A network of links (end, end, GiB/s, delay), alike in both directions; cable k is `links[k]`."""
    names = (*nodes, *zones, *switches)
    rows = [(names.index(a), names.index(b), gib, s, k) for k, (a, b, gib, s) in enumerate(links)]
    rows += [(b, a, gib, s, k) for a, b, gib, s, k in rows]
    rows.sort(key=lambda row: row[:2])
    source, target, gib_per_s, delay_s, cable = (np.array(column) for column in zip(*rows, strict=True))
    return Network(
        vertex_names=names,
        n_nodes=len(nodes),
        n_zones=len(zones),
        source=source,
        target=target,
        gib_per_s=gib_per_s.astype(np.float64),
        delay_s=delay_s.astype(np.float64),
        cable=cable,
        routing=routing,
        store=-1 if store is None else names.index(store),
    )


def on_network(c: Cluster, given: Network) -> Cluster:
    """The cluster on this network: its round trips are those of the network."""
    return replace(c, network=given, rtt_s=given.round_trips_s())


def fair_rates(routes: Sequence[Sequence[int]], gib_per_s: Sequence[float]) -> list[float]:
    """Max-min fair rates by their definition: all flows grow together until links are full, step by step."""
    rates, room = [0.0] * len(routes), list(gib_per_s)
    growing = set(range(len(routes)))
    while growing:
        users = [sum(link in routes[f] for f in growing) for link in range(len(room))]
        step = min(room[link] / users[link] for link in range(len(room)) if users[link])
        for f in growing:
            rates[f] += step
        full = [
            link
            for link in range(len(room))
            if users[link] and room[link] / users[link] <= step * (1 + 1e-12)
        ]
        room = [left - step * n for left, n in zip(room, users, strict=True)]
        growing -= {f for f in growing if any(link in routes[f] for link in full)}
    return rates


@dataclass
class Moved:
    """What moves from `ready_s` on, and when the last of it is there."""

    ready_s: float
    gib: float
    route: list[int]
    left_gib: float = 0.0
    there_s: float = float("nan")


def move(
    flows: list[Moved], gib_per_s: Sequence[float], changes: Sequence[tuple[float, int, float]] = ()
) -> None:
    """Fill in `there_s` of all flows; `changes` are (time, link, new capacity)."""
    now_s, capacity = 0.0, list(gib_per_s)
    for flow in flows:
        flow.left_gib = flow.gib
    while True:
        here = [f for f in flows if f.ready_s <= now_s and f.there_s != f.there_s]
        rates = fair_rates([f.route for f in here], capacity)
        ends = [now_s + f.left_gib / rate for f, rate in zip(here, rates, strict=True)]
        begins = [f.ready_s for f in flows if f.ready_s > now_s]
        changing = [at_s for at_s, _, _ in changes if at_s > now_s]
        next_s = min([*ends, *begins, *changing], default=float("inf"))
        if next_s == float("inf"):
            return
        for f, rate, end_s in zip(here, rates, ends, strict=True):
            f.left_gib -= rate * (next_s - now_s)
            if end_s <= next_s + 1e-12:
                f.there_s = next_s
        now_s = next_s
        for at_s, link, to in changes:
            if at_s == now_s:
                capacity[link] = to


def route(n: Network, a: int, b: int) -> list[int]:
    """Links of the route of least delay, then fewest links, then least numbers: by trying all."""
    best: tuple[float, int, list[int]] | None = None
    stack: list[tuple[int, float, list[int]]] = [(a, 0.0, [])]
    while stack:
        v, delay_s, links = stack.pop()
        if v == b:
            found = (round(delay_s, 12), len(links), links)
            best = found if best is None else min(best, found)
            continue
        visited = {a, *(int(n.target[link]) for link in links)}
        for link in np.flatnonzero(n.source == v).tolist():
            to = int(n.target[link])
            if to not in visited and (to >= n.n_nodes or to == b):
                stack.append((to, delay_s + float(n.delay_s[link]), [*links, link]))
    assert best is not None
    return best[2]
