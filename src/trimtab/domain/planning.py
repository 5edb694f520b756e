"""What a planner is given besides the View: the recent past and the head of the central queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from trimtab.compiled.arrays import arrays_of
from trimtab.domain.policy import Policy
from trimtab.domain.view import Plan, empty_plan
from trimtab.errors import PolicyError

HISTORY = 4096  # arrivals that a planner can look back on
WAITING = 256  # held requests that a planner sees


class History(NamedTuple):
    """The last arrivals, oldest first, and what became of them so far."""

    work: NDArray[np.void]  # WORK [arrivals], as they came
    finish_s: NDArray[np.float64]  # [arrivals]; nan = not finished
    node_idx: NDArray[np.int32]  # [arrivals], where it was last sent to; -1 = nowhere
    in_flight: NDArray[np.bool_]  # [arrivals], with that node, or on its way there
    plan: Plan  # the last one that was made, in force or about to be: all that a planner remembers


class Variant(NamedTuple):
    """What could decide: a policy under a plan."""

    policy: Policy
    plan: Plan = empty_plan()


class Evidence(NamedTuple):
    """What its rollouts told a composite's planner, for those who want to see why a candidate decides."""

    objective: str  # "mean" or "p99" of completion
    value_s: NDArray[np.float64]  # [candidates]
    error_s: NDArray[np.float64]  # [candidates], twice the standard error of that
    apart_s: NDArray[np.float64]  # [candidates], less that of the candidate that was in force
    apart_error_s: NDArray[np.float64]  # [candidates], twice the standard error of the difference, paired


class Rollout(Protocol):
    """Simulates what would become of work, from the state that was reported to the planner.

    It knows no more than the planner: the View, past arrivals, what waits, and estimates. Running work takes
    what remains of its estimate, nodes that are down stay down, and none fails. A rollout has no other
    source of chance than the draws of policies and, where asked for, the errors of estimates, which are the
    same for all variants: differences of their results are differences of paired samples.
    """

    declared: NDArray[np.void] | None  # WORK that the host's scenario might bring; never what it will bring

    def __call__(
        self, variants: Sequence[Variant], future: NDArray[np.void], service_cv: float = 0.0
    ) -> NDArray[np.float64]:
        """Completion seconds [variants, waiting + future]; nan = not served.

        `future`: WORK rows by arrival_s, which is told from now. Of waiting work the seconds from now count.
        `service_cv`: how far what arrives is from its estimated service, as a coefficient of variation. With
        exact estimates policies look better than they are that bind work to nodes early.
        """


def checked_plan(plan: Any, n_nodes: int, n_candidates: int = 1) -> Plan:
    """`plan` with arrays of the right types; raises PolicyError where it is no plan for this cluster.

    `n_candidates`: of a composite policy.
    """
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
    made = Plan(*arrays)
    _check_bound_nodes(made.binding["node_idx"], n_nodes)
    if made.active_idx.shape != (1,) or not 0 <= made.active_idx[0] < n_candidates:
        raise PolicyError(
            f"plan field 'active_idx' is {made.active_idx}; expected one of {n_candidates} candidates"
        )
    return made


def _fits(name: str, array: NDArray[Any], n_nodes: int) -> bool:
    axes = arrays_of(Plan)[name].axes
    return array.size == 0 or "nodes" not in axes or array.shape[axes.index("nodes")] == n_nodes


def _check_bound_nodes(node_idx: NDArray[np.int64], n_nodes: int) -> None:
    outside = node_idx[(node_idx < 0) | (node_idx >= n_nodes)]
    if outside.size:
        raise PolicyError(f"plan field 'binding' names node {outside[0]}; expected one of {n_nodes}")
