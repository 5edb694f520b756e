"""Routes of flows through the network: least delay, then fewest links; of the equal ones, by `Routing`.

ECMP draws a link at every vertex from the seed, the flow's row and the attempt, so all policies meet the same
draws. The least congested route is the one whose least share, capacity ÷ (flows + 1) over its links, is
largest when the flow starts; a search of the equal routes finds it, cut off where a branch cannot win.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from trimtab.compiled.kernel import helper
from trimtab.domain.network import EQUAL_S, Routing
from trimtab.engine.draws import stream, uniform
from trimtab.engine.state import State

_ECMP, _LEAST_CONGESTED = int(Routing.ECMP), int(Routing.LEAST_CONGESTED)
_STREAM = 1 << 42  # routes draw from serials that no request has
_MOST_TRIED = 256  # links that one search tries


@helper
def find_ways(s: State) -> None:
    """Find the routes of least delay between all vertices over the links that are there."""
    n = len(s.out_first) - 1
    for a in range(n):
        for b in range(n):
            s.way_s[a, b] = 0.0 if a == b else np.inf
            s.way_links[a, b] = 0
            s.next_link[a, b] = -1
    is_changed = True
    while is_changed:
        is_changed = False
        for link in range(len(s.link_target)):
            if s.net_links.gib_per_s[link] > 0.0 and _shorten(s, link, n):
                is_changed = True
    for a in range(n):
        for b in range(n):
            for link in range(s.out_first[a + 1] - 1, s.out_first[a] - 1, -1):
                if a != b and is_next(s, link, a, b):
                    s.next_link[a, b] = link


@helper
def _shorten(s: State, link: int, n: int) -> bool:
    """Shorten the routes that this link shortens; returns whether any is."""
    a, b, is_shorter = s.net_links.source[link], s.link_target[link], False
    link_s = s.net_links.delay_s[link]
    first, end = (b, b + 1) if b < len(s.nodes.up) else (0, n)  # nodes forward nothing
    for to in range(first, end):
        then_s, then = link_s + s.way_s[b, to], s.way_links[b, to] + 1
        less = then_s < s.way_s[a, to] - EQUAL_S
        if less or (then_s < np.inf and then_s <= s.way_s[a, to] + EQUAL_S and then < s.way_links[a, to]):
            s.way_s[a, to], s.way_links[a, to] = then_s, then
            is_shorter = True
    return is_shorter


@helper(inline=True)
def is_next(s: State, link: int, a: int, b: int) -> bool:
    """Whether a route of least delay from vertex a to vertex b may begin with this link, which leaves a."""
    v = s.link_target[link]
    if s.net_links.gib_per_s[link] == 0.0 or (v < len(s.nodes.up) and v != b):
        return False
    then_s = s.net_links.delay_s[link] + s.way_s[v, b]
    return bool(abs(then_s - s.way_s[a, b]) <= EQUAL_S and s.way_links[a, b] == s.way_links[v, b] + 1)


@helper(inline=True)
def there_and_back_s(s: State, a: int, b: int) -> float:
    """Delay of the routes from vertex a to vertex b and back; inf = there are none."""
    return float(s.way_s[a, b] + s.way_s[b, a])


@helper
def lay_route(s: State, f: int, draw: int) -> bool:
    """Write the links that flow f takes. False if no route leads there now."""
    a, b = s.flows.source[f], s.flows.target[f]
    if s.way_s[a, b] == np.inf or s.way_links[a, b] > s.config.route_max[0]:
        return False
    if s.config.routing[0] == _LEAST_CONGESTED:
        _lay_least_congested(s, f, a, b)
        return True
    state: Any = stream(s.config.seed[0], _STREAM + draw, 0)
    hops, v = 0, a
    while v != b:
        link = s.next_link[v, b]
        if s.config.routing[0] == _ECMP:
            link = _drawn(s, v, b, uniform(state, hops))
        s.flow_link[f * s.config.route_max[0] + hops] = link
        v = s.link_target[link]
        hops += 1
    s.flows.links[f] = hops
    return True


@helper
def _drawn(s: State, v: int, b: int, u: float) -> int:
    """The link that draw u names of those that may come next."""
    count = 0
    for link in range(s.out_first[v], s.out_first[v + 1]):
        count += 1 if is_next(s, link, v, b) else 0
    k = int(u * count)
    found = -1
    for link in range(s.out_first[v], s.out_first[v + 1]):
        if is_next(s, link, v, b):
            found = link
            if k == 0:
                break
            k -= 1
    return found


@helper
def _lay_least_congested(s: State, f: int, a: int, b: int) -> None:
    """Search the routes of least delay in depth; the first of the best ones wins."""
    first, trial = f * s.config.route_max[0], s.trial
    depth, v, best, tried = 0, a, -math.inf, 0
    trial.link[0], trial.least[0] = s.out_first[a], math.inf
    while depth >= 0:
        link = trial.link[depth]
        if link >= s.out_first[v + 1]:
            depth -= 1  # all were tried here: back to the vertex before
            if depth >= 0:
                v = s.net_links.source[trial.link[depth]]
                trial.link[depth] += 1
            continue
        least = -math.inf
        if is_next(s, link, v, b) and (best == -math.inf or tried < _MOST_TRIED):
            tried += 1
            share = s.net_links.gib_per_s[link] / (s.link_active[link] + 1)
            least = min(trial.least[depth], share)
        if least <= best:
            trial.link[depth] = link + 1
            continue
        depth += 1
        v = s.link_target[link]
        if v == b:
            best = least
            s.flows.links[f] = depth
            for i in range(depth):
                s.flow_link[first + i] = trial.link[i]
            depth -= 1
            v = s.net_links.source[link]
            trial.link[depth] += 1
        else:
            trial.link[depth], trial.least[depth] = s.out_first[v], least
