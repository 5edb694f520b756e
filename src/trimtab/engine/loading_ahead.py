"""Loading ahead: nodes load models that are asked for into free memory, before a request comes there.

Each arrival looks at one node, in turn. If the node has a slot free, serves the class, lacks the model, has
memory for it and loads nothing else, it loads the model. So free memory fills with models in proportion to
how often they are asked for. Nothing is evicted for such a load, it holds no slot,
and until a request has used the model it is the first to be evicted.

Why: a policy that chooses what is best for one request avoids a load, so few nodes hold the model. A burst
then finds the other nodes empty, and each of its requests waits for loads that the quiet time before had room
for.
"""

from __future__ import annotations

import numpy as np

from trimtab.compiled.kernel import helper
from trimtab.engine.residency import load
from trimtab.engine.state import State
from trimtab.engine.telemetry import note_change

_SLACK_GIB = 1e-9  # rounding of sums
_NEVER_USED_S = -1.0


@helper(inline=True)
def load_ahead(s: State, r: int, now_s: float) -> None:
    """Request r has arrived: the node whose turn it is loads its model, if it has time and room."""
    if s.config.loads_ahead[0] == 1 and s.work.model_idx[r] >= 0:
        _load_at_next(s, r, now_s)


@helper
def _load_at_next(s: State, r: int, now_s: float) -> None:
    j, m = s.counts.next_to_load[0], s.work.model_idx[r]
    s.counts.next_to_load[0] = j + 1 if j + 1 < len(s.nodes.up) else 0
    free_gib = s.hidden.memory_gib[j] - s.hidden.memory_used_gib[j]
    if s.resident[j, m] == 1 or s.item_gib[m] > free_gib + _SLACK_GIB:
        return
    is_idle = s.nodes.up[j] == 1 and s.nodes.running[j] < s.nodes.slots[j] and s.queues.length[j] == 0
    serves = s.fixed_s[s.work.class_idx[r], s.nodes.type_idx[j]] < np.inf
    if is_idle and serves and not _is_loading(s, j, now_s):
        load(s, j, m, now_s, now_s)
        _offer_first(s, j, m)
        note_change(s, j)


@helper
def _offer_first(s: State, j: int, m: int) -> None:
    """Until its first use item m is evicted before any item that was used."""
    s.items[j].used_s[m] = _NEVER_USED_S
    s.items[j].credit[m] = s.hidden.inflation[j]


@helper
def _is_loading(s: State, j: int, now_s: float) -> bool:
    """Whether node j loads an item now."""
    for m in range(len(s.item_gib)):  # noqa: SIM110 - numba compiles no generator expressions
        if s.resident[j, m] == 1 and s.items[j].ready_s[m] > now_s:
            return True
    return False
