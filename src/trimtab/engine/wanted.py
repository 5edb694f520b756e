"""How many candidates of a decision can make a difference."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trimtab.domain.options import Eviction
from trimtab.domain.view import MAX_RANKED
from trimtab.engine.state import State


def n_wanted(state: State, work: NDArray[np.void]) -> int:
    """Candidates that the host of these rows of WORK looks at.

    1 where a node refuses nothing that a policy could not have seen: a second candidate is then never asked.
    """
    config = state.config[0]
    is_seen = config["telemetry_period_s"] == 0.0 and not config["placement_terms"]
    is_pinned = config["eviction"] == int(Eviction.PLAN_PINNED)
    if is_seen and not is_pinned and not state.demand.shape[1] and _fit_together(state, work):
        return 1
    return MAX_RANKED


def _fit_together(state: State, work: NDArray[np.void]) -> bool:
    """Whether each model and adapter that a request needs fit every node that serves its class."""
    if not state.item_is_adapter.any():
        return True
    work = work[work["adapter_idx"] >= 0]
    gib = state.item_gib[work["model_idx"]] + state.item_gib[work["adapter_idx"]]
    is_served = state.fixed_s[work["class_idx"]] < np.inf  # [rows, types]
    return not (is_served & (gib[:, None] > state.views[0].memory_gib)).any()
