"""Max-min fair rates of the flows in the network, by progressive filling.

All flows grow at one pace until a link is full; its flows keep their rate, the others go on. Dimitri
Bertsekas, Robert Gallager: "Data Networks", 2nd edition, 1992, §6.5.2 (there for given paths and capacities).

Only what a change can reach is computed anew. No flow is faster than its narrowest link, its *peak*. A link
whose flows' peaks together do not exceed its capacity bounds none of them beyond that, so changes do not pass
through it. From the links of the flow that changed, the search goes on over the flows of links that may bind.
"""

from __future__ import annotations

import numpy as np

from trimtab.compiled.kernel import helper
from trimtab.engine.state import State

_SLACK = 1.0 + 1e-9  # rounding of sums of peaks


@helper(inline=True)
def _may_bind(s: State, link: int) -> bool:
    return bool(s.net_links.peak_gib_per_s[link] > s.net_links.gib_per_s[link] * _SLACK)


@helper(inline=True)
def _mark_link(s: State, link: int) -> None:
    """Compute this link's flows anew with the next `share_anew`."""
    if s.net_links.mark[link] != s.counts.shared[0]:
        s.net_links.mark[link] = s.counts.shared[0]
        s.touched_link[s.counts.n_touched_links[0]] = link
        s.counts.n_touched_links[0] += 1


@helper(inline=True)
def mark_flow(s: State, f: int) -> None:
    """Compute flow f anew with the next `share_anew`."""
    if s.flows.mark[f] != s.counts.shared[0]:
        s.flows.mark[f] = s.counts.shared[0]
        s.touched_flow[s.counts.n_touched_flows[0]] = f
        s.counts.n_touched_flows[0] += 1


@helper
def join_links(s: State, f: int) -> None:
    """Flow f, whose route is laid, begins to use its links."""
    links, first = s.net_links, f * s.config.route_max[0]
    peak = np.inf
    for i in range(first, first + s.flows.links[f]):
        peak = min(peak, links.gib_per_s[s.flow_link[i]])
    s.flows.peak_gib_per_s[f] = peak
    for i in range(first, first + s.flows.links[f]):
        link = s.flow_link[i]
        s.flow_before[i], s.flow_next[i] = -1, links.first[link]
        if links.first[link] >= 0:
            s.flow_before[links.first[link]] = i
        links.first[link] = i
        s.link_active[link] += 1
        links.peak_gib_per_s[link] += peak
        if _may_bind(s, link):
            _mark_link(s, link)
    mark_flow(s, f)


@helper
def leave_links(s: State, f: int) -> None:
    """Flow f no longer uses its links. What it carried since it joined counts for each of them."""
    links, first = s.net_links, f * s.config.route_max[0]
    carried_gib = s.flows.gib[f] - s.flows.left_gib[f]
    for i in range(first, first + s.flows.links[f]):
        link = s.flow_link[i]
        if _may_bind(s, link):
            _mark_link(s, link)
        before, after = s.flow_before[i], s.flow_next[i]
        if before >= 0:
            s.flow_next[before] = after
        else:
            links.first[link] = after
        if after >= 0:
            s.flow_before[after] = before
        s.link_active[link] -= 1
        links.peak_gib_per_s[link] -= s.flows.peak_gib_per_s[f]
        if s.link_active[link] == 0:
            links.peak_gib_per_s[link] = 0.0
        links.carried_gib[link] += carried_gib
    s.flows.gib[f] = s.flows.left_gib[f]
    s.flows.links[f] = 0


@helper
def change_capacity(s: State, link: int, gib_per_s: float) -> None:
    """Give a link another capacity above 0, or 0 to one that has no flows left."""
    links, route_max = s.net_links, s.config.route_max[0]
    links.gib_per_s[link] = gib_per_s
    for view in range(len(s.contexts.now_s)):
        s.views[view].link_gib_per_s[link] = gib_per_s
    i = links.first[link]
    while i >= 0:
        f = i // route_max
        mark_flow(s, f)
        before, peak, first = s.flows.peak_gib_per_s[f], np.inf, f * route_max
        for k in range(first, first + s.flows.links[f]):
            peak = min(peak, links.gib_per_s[s.flow_link[k]])
        s.flows.peak_gib_per_s[f] = peak
        for k in range(first, first + s.flows.links[f]):
            other = s.flow_link[k]
            if _may_bind(s, other):
                _mark_link(s, other)
            links.peak_gib_per_s[other] += peak - before
            if _may_bind(s, other):
                _mark_link(s, other)
        i = s.flow_next[i]


@helper
def share_out(s: State) -> None:
    """Write `fair_gib_per_s` of all flows that the marked links and flows reach, by progressive filling."""
    _reach(s)
    n = _fill_heap(s)
    level = 0.0
    while n > 0:
        key, ref = s.fill_key[0], s.fill_ref[0]
        n = _drop_first(s, n)
        if ref < 0:
            f = -1 - ref
            if s.flows.fair_gib_per_s[f] < 0.0:
                level = max(level, key)
                _freeze(s, f, level)
        elif s.net_links.open[ref] > 0:
            share = s.net_links.room_gib_per_s[ref] / s.net_links.open[ref]
            if share > key:  # flows of it stopped at other links: it fills later
                n = _push(s, n, share, ref)
            else:
                level = max(level, share)
                _freeze_all(s, ref, level)


@helper
def _reach(s: State) -> None:
    """Mark all flows of marked links, and all links of theirs that may bind."""
    route_max, at = s.config.route_max[0], 0
    for k in range(s.counts.n_touched_flows[0]):
        _mark_links_of(s, s.touched_flow[k])
    while at < s.counts.n_touched_links[0]:
        i = s.net_links.first[s.touched_link[at]]
        while i >= 0:
            f = i // route_max
            if s.flows.mark[f] != s.counts.shared[0]:
                mark_flow(s, f)
                _mark_links_of(s, f)
            i = s.flow_next[i]
        at += 1


@helper(inline=True)
def _mark_links_of(s: State, f: int) -> None:
    first = f * s.config.route_max[0]
    for i in range(first, first + s.flows.links[f]):
        if _may_bind(s, s.flow_link[i]):
            _mark_link(s, s.flow_link[i])


@helper
def _fill_heap(s: State) -> int:
    """Start the filling: the links by their equal share, and the flows that a link beyond them bounds."""
    n, links = 0, s.net_links
    for k in range(s.counts.n_touched_links[0]):
        link = s.touched_link[k]
        links.room_gib_per_s[link], links.open[link] = links.gib_per_s[link], s.link_active[link]
        if s.link_active[link] > 0:
            n = _push(s, n, links.gib_per_s[link] / s.link_active[link], link)
    for k in range(s.counts.n_touched_flows[0]):
        f = s.touched_flow[k]
        s.flows.fair_gib_per_s[f] = -1.0
        first, is_bounded = f * s.config.route_max[0], False
        for i in range(first, first + s.flows.links[f]):
            link = s.flow_link[i]
            is_marked = links.mark[link] == s.counts.shared[0]
            is_bounded |= is_marked and links.gib_per_s[link] <= s.flows.peak_gib_per_s[f]
        if s.flows.links[f] == 0:
            s.flows.fair_gib_per_s[f] = 0.0  # it has ended, or waits for a route
        elif not is_bounded:
            n = _push(s, n, s.flows.peak_gib_per_s[f], -1 - f)
    return n


@helper
def _freeze_all(s: State, link: int, gib_per_s: float) -> None:
    i = s.net_links.first[link]
    while i >= 0:
        f = i // s.config.route_max[0]
        if s.flows.fair_gib_per_s[f] < 0.0:
            _freeze(s, f, gib_per_s)
        i = s.flow_next[i]


@helper(inline=True)
def _freeze(s: State, f: int, gib_per_s: float) -> None:
    """Flow f grows no more: take its rate from the room of its links."""
    links, first = s.net_links, f * s.config.route_max[0]
    rate = min(gib_per_s, s.flows.peak_gib_per_s[f])
    s.flows.fair_gib_per_s[f] = rate
    for i in range(first, first + s.flows.links[f]):
        link = s.flow_link[i]
        if links.mark[link] == s.counts.shared[0]:
            links.room_gib_per_s[link] = max(0.0, links.room_gib_per_s[link] - rate)
            links.open[link] -= 1


@helper(inline=True)
def _push(s: State, n: int, key: float, ref: int) -> int:
    keys, refs = s.fill_key, s.fill_ref
    k = n
    while k > 0 and keys[(k - 1) >> 1] > key:
        keys[k], refs[k] = keys[(k - 1) >> 1], refs[(k - 1) >> 1]
        k = (k - 1) >> 1
    keys[k], refs[k] = key, ref
    return n + 1


@helper(inline=True)
def _drop_first(s: State, n: int) -> int:
    keys, refs = s.fill_key, s.fill_ref
    n -= 1
    key, ref, k = keys[n], refs[n], 0
    while 2 * k + 1 < n:
        c = 2 * k + 1
        if c + 1 < n and keys[c + 1] < keys[c]:
            c += 1
        if keys[c] >= key:
            break
        keys[k], refs[k] = keys[c], refs[c]
        k = c
    keys[k], refs[k] = key, ref
    return n
