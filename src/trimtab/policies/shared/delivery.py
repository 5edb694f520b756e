"""When a node has served work whose data move to it first, and what policies do that know less of this."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from trimtab.compiled.kernel import helper
from trimtab.domain.needs import Need
from trimtab.domain.view import Memory, View, can_take, estimate_s, missing_load_s, type_of_node
from trimtab.policies.shared.selection import NOTES, rank_noted
from trimtab.policies.shared.transfers import transfer_s
from trimtab.policies.shared.waits import expected_wait_s
from trimtab.policies.shared.without import NO_LINKS, NO_LOADS, NO_ROUND_TRIPS

WITHOUT_DELIVERY: Final[Mapping[Need, str]] = {
    Need.RESIDENCY: NO_LOADS,
    Need.ZONES: NO_ROUND_TRIPS,
    Need.LINKS: NO_LINKS,
}
"""The needs of `delivered_completion_s`, and the effects where they are not met."""


@helper(inline=True)
def delivered_completion_s(view: View, work: Any, j: int) -> float:
    """Expected seconds until node j has served this work, including the transfer; j can serve the work."""
    start_s = max(transfer_s(view, work, j), expected_wait_s(view, j))
    return start_s + missing_load_s(view, work, j) + estimate_s(view, work, type_of_node(view, j))


@helper(inline=True)
def rank_by_delivery(view: View, needs: Any, memory: Memory, ranking: Any) -> int:
    """Rank the nodes that can take the work by expected completion; returns how many. Uses the notes."""
    floats = memory.floats
    for j in range(view.context.n_nodes):
        is_able = can_take(view, needs, j)
        floats[NOTES + j] = delivered_completion_s(view, needs, j) if is_able else np.inf
    return int(rank_noted(floats, ranking, view.context.n_nodes))
