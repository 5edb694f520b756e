"""The last decision about each request, for hosts that reuse rows: one row of numbers, kept as bytes."""

from __future__ import annotations

from functools import lru_cache
from struct import Struct, unpack
from typing import NamedTuple

from trimtab.compiled.kernel import helper
from trimtab.domain.requests import Status
from trimtab.engine.slots import expected_s
from trimtab.engine.state import TRACE_COLUMNS, State

SHOWN = 4  # recorded candidates

# The columns of `decision_trace`.
ESTIMATE_S, HELD, DECISIONS, SHADOW_IDX, SHADOW_S = range(5)
CANDIDATES = 8  # nodes, best first; -1 = no more
PREDICTED_S = CANDIDATES + SHOWN  # service seconds there
IN_FLIGHT = PREDICTED_S + SHOWN  # other requests there

ROW = Struct(f"={TRACE_COLUMNS}d")
FIRST = Struct("=5d")  # of them, up to SHADOW_S
_NAMED = slice(8 * CANDIDATES, 8 * PREDICTED_S)  # bytes

_HELD = int(Status.HELD)


class DecisionTrace(NamedTuple):
    """A decision, in the order of its row."""

    estimate_s: float  # service on the node that it was sent to
    n_held: float  # other requests in the central queue
    decisions: float  # decisions about this request before this one
    shadow_idx: float  # node that the shadow would choose; -1 = none
    shadow_s: float  # service seconds there
    candidates: tuple[int, ...]
    predicted_s: tuple[float, ...]
    in_flight: tuple[float, ...]


def candidates_of(row: bytes) -> tuple[int, ...]:
    """Indices of the recorded candidate nodes, best first."""
    return _positions(row[_NAMED])


@lru_cache(1024)  # mostly the same ones again
def _positions(named: bytes) -> tuple[int, ...]:
    return tuple([int(j) for j in unpack(f"={SHOWN}d", named) if j >= 0.0])


def read(row: bytes) -> DecisionTrace:
    """A row as a DecisionTrace. The fields of candidates have one entry for each recorded candidate."""
    numbers, named = ROW.unpack(row), candidates_of(row)
    return DecisionTrace(
        estimate_s=numbers[ESTIMATE_S],
        n_held=numbers[HELD],
        decisions=numbers[DECISIONS],
        shadow_idx=numbers[SHADOW_IDX],
        shadow_s=numbers[SHADOW_S],
        candidates=named,
        predicted_s=numbers[PREDICTED_S : PREDICTED_S + len(named)],
        in_flight=numbers[IN_FLIGHT : IN_FLIGHT + len(named)],
    )


@helper
def note_decision(s: State, r: int, count: int) -> None:
    """Record the `count` ranked candidates of request r, before the decision is carried out."""
    row, nodes = s.decision_trace, s.nodes
    row[r, HELD] = s.contexts.n_held[0] - (1 if s.requests.status[r] == _HELD else 0)
    row[r, DECISIONS] = s.requests.attempt[r]
    for i in range(SHOWN):
        j = s.ranking.node_idx[i] if i < count else -1
        row[r, CANDIDATES + i] = j
        if 0 <= j < len(nodes.up):
            row[r, PREDICTED_S + i] = expected_s(s, r, j)
            row[r, IN_FLIGHT + i] = nodes.in_flight[j]


@helper
def note_shadow(s: State, r: int, j: int) -> None:
    """Record node j as the shadow policy's choice for request r."""
    s.decision_trace[r, SHADOW_IDX] = j
    s.decision_trace[r, SHADOW_S] = expected_s(s, r, j)
