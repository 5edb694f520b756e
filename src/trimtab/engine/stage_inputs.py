"""Where the inputs of stages lie, and what a node lacks of them.

Data belong to outputs. An output lies on the node that made it. A node that fetched it keeps a copy until
it fails. An output is lost when all nodes that hold it have failed since, unless it is stored. `epoch` counts
the failures of a node, so a holder of an older epoch has lost what it held.

What a node lacks of a stage's inputs moves in one transfer: the part from other zones over the link into the
node's zone, then all of it over the node's own link. The round trip is the longest to any source. A stage may
read a part of an output only; the node then keeps no copy.
"""

from __future__ import annotations

import numpy as np

from trimtab.compiled.kernel import helper
from trimtab.domain.chains import Flow
from trimtab.engine.flow_routes import there_and_back_s
from trimtab.engine.layout import ABSENT, NO_OUTPUT, PRESENT
from trimtab.engine.state import State

_EACH = int(Flow.EACH)


@helper(inline=True)
def _first_input(s: State, r: int, e: int) -> int:
    """First row whose output row r reads over input edge e; `_n_inputs` says how many follow."""
    g = s.stages.group[r]
    h = s.runs.group[s.stages.run[r]] + s.input_edges.stage[e]
    return s.groups.row[h] + (r - s.groups.row[g] if s.input_edges.flow[e] == _EACH else 0)


@helper(inline=True)
def _n_inputs(s: State, r: int, e: int) -> int:
    """Rows whose outputs row r reads over input edge e."""
    if s.input_edges.flow[e] == _EACH:
        return 1
    return s.groups.count[s.runs.group[s.stages.run[r]] + s.input_edges.stage[e]]


@helper(inline=True)
def _first_edge(s: State, r: int) -> int:
    return s.stage_specs.input_first[s.groups.spec[s.stages.group[r]]]


@helper(inline=True)
def _end_edge(s: State, r: int) -> int:
    return s.stage_specs.input_end[s.groups.spec[s.stages.group[r]]]


@helper(inline=True)
def _made_at(s: State, p: int, j: int) -> bool:
    return s.requests.node_idx[p] == j and s.stages.epoch[p] == s.hidden.epoch[j]


@helper(inline=True)
def _is_at(s: State, p: int, j: int) -> bool:
    """Whether node j holds the output of row p."""
    if _made_at(s, p, j):
        return True
    k = s.stages.copies[p]
    while k >= 0:
        if s.copies.node_idx[k] == j and s.copies.epoch[k] == s.hidden.epoch[j]:
            return True
        k = s.copies.next[k]
    return False


@helper
def _source_of(s: State, p: int) -> int:
    """The node that gives the output of row p: its maker, else the last one with a copy; -1 = none."""
    j = s.requests.node_idx[p]
    if j >= 0 and _made_at(s, p, j):
        return j
    k = s.stages.copies[p]
    while k >= 0:
        if s.copies.epoch[k] == s.hidden.epoch[s.copies.node_idx[k]]:
            return s.copies.node_idx[k]
        k = s.copies.next[k]
    return -1


@helper
def _zone_of(s: State, p: int) -> int:
    """Zone that the output of row p comes from. A stored output comes from the zone in which it was made."""
    j = _source_of(s, p)
    if j < 0:
        j = s.requests.node_idx[p]
    return s.nodes.zone_idx[j] if j >= 0 else s.work.zone_idx[s.stages.run[p]]


@helper
def is_lost(s: State, p: int) -> bool:
    """Whether the output of row p was there and is lost."""
    if s.stages.output[p] != PRESENT or s.stages.output_gib[p] == 0.0:
        return False
    if s.stages.answered[p] == 1 or s.stage_specs.stored[s.groups.spec[s.stages.group[p]]] == 1:
        return False
    return _source_of(s, p) < 0


@helper
def inputs_state(s: State, r: int) -> int:
    """PRESENT: stage r reads nothing, or some input is there. EMPTY, ABSENT: the most that its inputs are."""
    first, end = _first_edge(s, r), _end_edge(s, r)
    found = PRESENT if first == end else ABSENT
    for e in range(first, end):
        p = _first_input(s, r, e)
        if s.input_edges.flow[e] == _EACH:
            output = s.stages.output[p]
            found = max(found, output if output != NO_OUTPUT else PRESENT)
        elif s.groups.present[s.stages.group[p]] > 0 or s.groups.left[s.stages.group[p]] > 0:
            found = PRESENT
    return found


@helper
def set_origin(s: State, r: int) -> None:
    """Write the size of all inputs of stage r, and the zone of the largest, for policies."""
    first, end = _first_edge(s, r), _end_edge(s, r)
    if first == end:
        return
    total_gib, largest_gib = 0.0, -1.0
    for e in range(first, end):
        p = _first_input(s, r, e)
        for q in range(p, p + _n_inputs(s, r, e)):
            if s.stages.output[q] == PRESENT:
                gib = s.stages.output_gib[q] * s.input_edges.frac[e]
                total_gib += gib
                if gib > largest_gib:
                    largest_gib = gib
                    s.work.zone_idx[r] = _zone_of(s, q)
    s.work.payload_gib[r] = total_gib


@helper
def show_inputs(s: State, r: int) -> None:
    """Write the GiB of stage r's inputs that each node holds, for policies."""
    for j in range(len(s.input_gib)):
        s.input_gib[j] = 0.0
    if s.stages.run[r] < 0 or len(s.input_gib) == 0:
        return
    for e in range(_first_edge(s, r), _end_edge(s, r)):
        p = _first_input(s, r, e)
        for q in range(p, p + _n_inputs(s, r, e)):
            if s.stages.output[q] == PRESENT and s.stages.output_gib[q] > 0.0:
                _show_holders(s, q, s.input_edges.frac[e])


@helper
def _show_holders(s: State, p: int, frac: float) -> None:
    """Add what each holder of the output of row p has of the part that is read."""
    maker = s.requests.node_idx[p]
    if maker >= 0 and _made_at(s, p, maker):
        s.input_gib[maker] += s.stages.output_gib[p] * frac
    k = s.stages.copies[p]
    while k >= 0:
        j = s.copies.node_idx[k]
        if s.copies.epoch[k] == s.hidden.epoch[j]:
            s.input_gib[j] += s.stages.output_gib[p] * frac
        k = s.copies.next[k]


@helper(inline=True)
def reads_outputs(s: State, r: int) -> bool:
    """Whether row r is a stage that reads outputs, not what a client sends."""
    return s.config.runs[0] == 1 and s.stages.run[r] >= 0 and _first_edge(s, r) < _end_edge(s, r)


@helper
def _vertex_of(s: State, p: int) -> int:
    """Vertex of the network that the output of row p comes from."""
    j = _source_of(s, p)
    return j if j >= 0 else len(s.nodes.up) + _zone_of(s, p)


@helper
def _round_trip_s(s: State, p: int, from_zone: int, j: int) -> float:
    """Round trip between where the output of row p is and node j; 0 where no route leads there now."""
    if s.config.network[0] == 0:
        return s.rtt_s[from_zone, s.nodes.zone_idx[j]]
    away_s = there_and_back_s(s, _vertex_of(s, p), j)
    return away_s if away_s < np.inf else 0.0


@helper
def note_sources(s: State, r: int, j: int) -> int:
    """Write the GiB of row r's inputs that node j lacks to `from_gib` of each vertex that they come from.

    Returns how many vertices these are, the first of `from_vertex`.
    """
    n = 0
    for e in range(_first_edge(s, r), _end_edge(s, r)):
        p = _first_input(s, r, e)
        for q in range(p, p + _n_inputs(s, r, e)):
            gib = s.stages.output_gib[q] * s.input_edges.frac[e]
            if s.stages.output[q] == PRESENT and gib > 0.0 and not _is_at(s, q, j):
                a = _vertex_of(s, q)
                if s.from_gib[a] == 0.0:
                    s.from_vertex[n] = a
                    n += 1
                s.from_gib[a] += gib
    return n


@helper
def measure_transfer(s: State, r: int, j: int) -> float:
    """Write the amounts that move to node j for row r; returns the round trip in seconds."""
    stages, zone = s.stages, s.nodes.zone_idx[j]
    if not reads_outputs(s, r):
        from_zone = s.work.zone_idx[r]
        stages.moving_gib[r] = s.work.payload_gib[r]
        stages.crossing_gib[r] = s.work.payload_gib[r] if from_zone != zone else 0.0
        if s.config.network[0] == 1:
            away_s = there_and_back_s(s, len(s.nodes.up) + from_zone, j)
            return away_s if away_s < np.inf else 0.0
        return s.rtt_s[from_zone, zone]
    stages.moving_gib[r] = 0.0
    stages.crossing_gib[r] = 0.0
    rtt_s = 0.0
    for e in range(_first_edge(s, r), _end_edge(s, r)):
        p = _first_input(s, r, e)
        for q in range(p, p + _n_inputs(s, r, e)):
            if stages.output[q] == PRESENT and not _is_at(s, q, j):
                from_zone = _zone_of(s, q)
                rtt_s = max(rtt_s, _round_trip_s(s, q, from_zone, j))
                gib = stages.output_gib[q] * s.input_edges.frac[e]
                stages.moving_gib[r] += gib
                if from_zone != zone:
                    stages.crossing_gib[r] += gib
    return rtt_s


@helper
def note_fetched(s: State, r: int, j: int) -> None:
    """Node j holds the inputs of row r, which have arrived there."""
    if s.stages.run[r] < 0 or s.stages.moving_gib[r] == 0.0:
        return
    for e in range(_first_edge(s, r), _end_edge(s, r)):
        if s.input_edges.frac[e] < 1.0:
            continue
        p = _first_input(s, r, e)
        for q in range(p, p + _n_inputs(s, r, e)):
            has_size = s.stages.output[q] == PRESENT and s.stages.output_gib[q] > 0.0
            if has_size and not _is_at(s, q, j) and s.counts.copies[0] < len(s.copies.next):
                k = s.counts.copies[0]
                s.counts.copies[0] += 1
                s.copies.node_idx[k], s.copies.epoch[k] = j, s.hidden.epoch[j]
                s.copies.next[k] = s.stages.copies[q]
                s.stages.copies[q] = k
