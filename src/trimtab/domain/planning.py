"""Inputs of a planner besides the View: recent arrivals, the head of the central queue, and rollouts."""

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
    """The last arrivals, oldest first, and their outcomes so far."""

    work: NDArray[np.void]  # WORK [arrivals], as they came
    finish_s: NDArray[np.float64]  # [arrivals]; nan = not finished
    node_idx: NDArray[np.int32]  # [arrivals], last node that it was sent to; -1 = none
    in_flight: NDArray[np.bool_]  # [arrivals], at that node, or in transfer to it
    plan: Plan  # the last plan made, in force or pending: the only memory of a planner


class Variant(NamedTuple):
    """An alternative for the dispatcher: a policy under a plan."""

    policy: Policy
    plan: Plan = empty_plan()


class Evidence(NamedTuple):
    """Rollout results behind a composite's choice of a candidate, for explanation."""

    objective: str  # "mean" or "p99" of completion
    value_s: NDArray[np.float64]  # [candidates]
    error_s: NDArray[np.float64]  # [candidates], twice the standard error of that
    apart_s: NDArray[np.float64]  # [candidates], less that of the candidate that was in force
    apart_error_s: NDArray[np.float64]  # [candidates], twice the standard error of the difference, paired


class Rollout(Protocol):
    """Simulates variants from the state that was reported to the planner.

    A rollout has the planner's information only: the View, past arrivals, waiting requests, and estimates.
    Running work takes the rest of its estimate. Nodes that are down stay down, and no node fails but by the
    planned outages of the view, where what runs is lost and starts again. The only
    random inputs are the draws of policies and, if requested, the errors of estimates. All variants share
    them, so differences between variants are differences of paired samples.
    """

    declared: NDArray[np.void] | None  # possible WORK of the host's scenario; never its actual future

    def __call__(
        self,
        variants: Sequence[Variant],
        future: NDArray[np.void],
        service_cv: float = 0.0,
        s_per_usd: float = 0.0,
    ) -> NDArray[np.float64]:
        """Completion seconds [variants, waiting + future]; nan = not served.

        `s_per_usd`: seconds that are added for each dollar of node time that the request takes.
        `future`: WORK rows by arrival_s, in seconds from now. Completion of waiting work counts from now.
        `service_cv`: coefficient of variation of the true service of arrivals around their estimates. Exact
        estimates favour policies that bind work to nodes early.
        """


def checked_plan(plan: Any, n_nodes: int, n_candidates: int = 1) -> Plan:
    """`plan` with arrays of the right types. Raises PolicyError if it is not a valid plan for this cluster.

    `n_candidates`: number of candidates of a composite policy.
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
