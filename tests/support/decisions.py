"""Decisions of the gateway's dispatcher, made by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trimtab.engine.state import DECISION, SHOWN
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
    record, count = np.zeros((), DECISION), len(nodes)
    record["decisions"], record["shadow_idx"] = decisions, shadow_idx
    record["node_idx"][:] = [*range(count), *[-1] * (SHOWN - count)]
    record["predicted_s"][:count], record["in_flight"][:count] = predicted_s, in_flight
    return Decision(policy, tuple(nodes), record.tobytes(), {}, False)
