"""The record of the last decision about each request, for hosts that reuse rows."""

from __future__ import annotations

from trimtab.compiled.kernel import helper
from trimtab.domain.requests import Status
from trimtab.engine.slots import expected_s
from trimtab.engine.state import SHOWN, State

_HELD = int(Status.HELD)


@helper
def note_decision(s: State, r: int, count: int) -> None:
    """Record the `count` ranked candidates of request r, before the decision is carried out."""
    trace, nodes = s.decision_trace, s.nodes
    trace.n_held[r] = s.contexts.n_held[0] - (1 if s.requests.status[r] == _HELD else 0)
    trace.decisions[r] = s.requests.attempt[r]
    for i in range(SHOWN):
        j = s.ranking.node_idx[i] if i < count else -1
        trace.node_idx[r, i] = j
        if 0 <= j < len(nodes.up):
            trace.predicted_s[r, i] = expected_s(s, r, j)
            trace.in_flight[r, i] = nodes.in_flight[j]


@helper
def note_shadow(s: State, r: int, j: int) -> None:
    """Record node j as the shadow policy's choice for request r."""
    s.decision_trace.shadow_idx[r] = j
    s.decision_trace.shadow_s[r] = expected_s(s, r, j)
