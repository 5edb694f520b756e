"""Decisions of the gateway's dispatcher, made by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trimtab.engine.decision_trace import CANDIDATES, DECISIONS, HELD, IN_FLIGHT, PREDICTED_S, SHADOW_IDX
from trimtab.engine.state import TRACE_COLUMNS
from trimtab.gateway.decide.decision_log import Decision


def make_decision(
    policy: str,
    nodes: Sequence[str],
    predicted_s: Sequence[float],
    in_flight: Sequence[int],
    *,
    decisions: int = 1,
    shadow_idx: int = -1,
) -> Decision:
    """All nodes are candidates, the first one first."""
    row, count = np.full(TRACE_COLUMNS, -1.0), len(nodes)
    row[HELD], row[DECISIONS], row[SHADOW_IDX] = 0, decisions, shadow_idx
    row[CANDIDATES : CANDIDATES + count] = range(count)
    row[PREDICTED_S : PREDICTED_S + count] = predicted_s
    row[IN_FLIGHT : IN_FLIGHT + count] = in_flight
    return Decision(policy, tuple(nodes), row.tobytes(), {}, False)
