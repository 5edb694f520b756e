"""What a planner is given besides the View: the recent past and the head of the central queue."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.domain.errors import PolicyError
from trimtab.domain.view import Plan, empty_plan

HISTORY = 4096  # arrivals that a planner can look back on
WAITING = 256  # held requests that a planner sees


class History(NamedTuple):
    """The last arrivals, oldest first, and what became of them so far."""

    work: NDArray[np.void]  # WORK [arrivals], as they came
    finish_s: NDArray[np.float64]  # [arrivals]; nan = not finished
    node_idx: NDArray[np.int32]  # [arrivals], where it was last sent to; -1 = nowhere
    in_flight: NDArray[np.bool_]  # [arrivals], with that node, or on its way there
    plan: Plan  # the last one that was made, in force or about to be: all that a planner remembers


def checked_plan(plan: Any, n_nodes: int) -> Plan:
    """`plan` with arrays of the right types; raises PolicyError where it is no plan for this cluster."""
    if not isinstance(plan, Plan):
        raise PolicyError(f"plan() returned {type(plan).__name__}; expected a Plan or None")
    arrays = []
    for name, given, template in zip(Plan._fields, plan, empty_plan(), strict=True):
        array = np.ascontiguousarray(given, template.dtype)
        if array.ndim != template.ndim or not _fits(name, array, n_nodes):
            raise PolicyError(
                f"plan field {name!r} has shape {array.shape}; expected one for {n_nodes} nodes"
            )
        if array.dtype.kind == "f" and np.isnan(array).any():
            raise PolicyError(f"plan field {name!r} holds NaN")
        arrays.append(array)
    _check_bound_nodes(arrays[Plan._fields.index("binding")]["node_idx"], n_nodes)
    return Plan(*arrays)


def _fits(name: str, array: NDArray[Any], n_nodes: int) -> bool:
    along = {"weights": 0, "price": 0, "placement": 0, "quota": 1, "eligible": 1}
    return array.size == 0 or name not in along or array.shape[along[name]] == n_nodes


def _check_bound_nodes(node_idx: NDArray[np.int64], n_nodes: int) -> None:
    outside = node_idx[(node_idx < 0) | (node_idx >= n_nodes)]
    if outside.size:
        raise PolicyError(f"plan field 'binding' names node {outside[0]}; expected one of {n_nodes}")
