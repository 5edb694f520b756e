"""Resources of nodes (CPU, memory, I/O, …): a request with a slot takes its class's demand of the capacity.

All amounts are whole multiples of `new_state.RESOURCE_STEP`, so sums are exact: requests give back exactly
the amounts that they took, and `used` never exceeds `capacity`.
"""

from __future__ import annotations

from trimtab.compiled.kernel import helper
from trimtab.engine.state import State


@helper(inline=True)
def can_hold(s: State, r: int, j: int) -> bool:
    """Whether request r would fit node j if nothing ran there."""
    c = s.work.class_idx[r]
    for k in range(s.demand.shape[1]):  # noqa: SIM110 - numba compiles no generator expressions
        if s.demand[c, k] > s.capacity[j, k]:
            return False
    return True


@helper(inline=True)
def fits_beside(s: State, r: int, j: int) -> bool:
    """Whether request r fits node j beside the running requests."""
    c = s.work.class_idx[r]
    for k in range(s.demand.shape[1]):  # noqa: SIM110 - numba compiles no generator expressions
        if s.used[j, k] + s.demand[c, k] > s.capacity[j, k]:
            return False
    return True


@helper(inline=True)
def take(s: State, r: int, j: int) -> None:
    """Take the demand of request r, which fits, from node j."""
    c = s.work.class_idx[r]
    for k in range(s.demand.shape[1]):
        s.used[j, k] += s.demand[c, k]


@helper(inline=True)
def give_back(s: State, r: int, j: int) -> None:
    """Give the demand of request r back to node j."""
    c = s.work.class_idx[r]
    for k in range(s.demand.shape[1]):
        s.used[j, k] -= s.demand[c, k]
