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
RUNS = 1024  # arrivals that it can look back on where there are chains, besides the runs that are not over

RUN_STAGE = np.dtype(
    [
        ("expected_s", "f8"),  # declared service of all its instances
        ("output_gib", "f8"),  # declared size of the output of an instance
        ("spec_idx", "i4"),  # which stage of which chain
        ("first_row", "i4"),  # its first instance, in `Runs.rows`
        ("count", "i4"),  # instances; 1 while they are not known
        ("known", "i4"),  # 1 = an instance is or was ready, so their number and sizes are known
        ("failed", "i4"),  # instances that were not served
    ],
    align=True,
)  # a stage of a run

INSTANCE = np.dtype(
    [
        ("output_gib", "f8"),  # size of its output; declared until it is there
        ("node_idx", "i4"),  # last node that it was sent to; -1 = none
        ("status", "u1"),  # requests.Status
        ("output", "u1"),  # 0 = it is not over; else whether it has an output, as the loop counts it
        ("skipped", "u1"),  # why it was not served; 0 = it was, or it is not over
        ("answered", "u1"),  # 1 = its output was known, so it was not served
        ("is_kept", "u1"),  # 1 = its node still holds its output
    ],
    align=True,
)  # an instance of a stage of a run


class Runs(NamedTuple):
    """Runs of chains as far as their dispatcher knows them, with other requests among them; in no order.

    A request without stages is a run of none. Of a stage that is not known yet stands what was declared, as
    one instance. The stages of a run, and the instances of a stage, are consecutive.
    """

    work: NDArray[np.void]  # WORK [runs], as they came
    status: NDArray[np.uint8]  # requests.Status [runs]
    node_idx: NDArray[np.int32]  # [runs], of a request without stages; -1 = none
    path_s: NDArray[np.float64]  # [runs], estimated critical path on arrival
    first_stage: NDArray[np.int64]  # [runs + 1], in `stages`
    stages: NDArray[np.void]  # RUN_STAGE
    rows: NDArray[np.void]  # WORK of each instance
    instances: NDArray[np.void]  # INSTANCE [rows]
    copies: NDArray[np.int64]  # [copies, 2], row and node: where else outputs of runs in flight lie


class History(NamedTuple):
    """The last arrivals, oldest first, and their outcomes so far. Stages arrive once they are ready."""

    work: NDArray[np.void]  # WORK [arrivals], as they came
    finish_s: NDArray[np.float64]  # [arrivals]; nan = not finished
    node_idx: NDArray[np.int32]  # [arrivals], last node that it was sent to; -1 = none
    in_flight: NDArray[np.bool_]  # [arrivals], at that node, or in transfer to it
    plan: Plan  # the last plan made, in force or pending: the only memory of a planner
    runs: Runs | None = None  # of chains, where there are any and the policy uses rollouts

    @property
    def came(self) -> NDArray[np.void]:
        """WORK of what came from outside, oldest first: runs and requests, without stages."""
        if self.runs is None:
            return self.work
        return self.runs.work[np.argsort(self.runs.work["serial"], kind="stable")]


class Variant(NamedTuple):
    """An alternative for the dispatcher: a policy under a plan."""

    policy: Policy
    plan: Plan = empty_plan()


class Evidence(NamedTuple):
    """Rollout results behind a composite's choice of a candidate, for explanation."""

    objective: str  # "mean" or "p99" of completion
    value_s: NDArray[np.float64]  # [candidates], or the first of them, if the others are none here
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

    Runs of chains go on from where they are. What follows is known by their chain; what is not known yet of
    a run, such as the instances of a map or whether a stage is skipped, is that of a run that is over.
    """

    declared: NDArray[np.void] | None  # possible WORK of the host's scenario; never its actual future
    stages_per_run: float  # that are served for what comes, in the mean; 1 = there are no chains

    def __call__(
        self,
        variants: Sequence[Variant],
        future: NDArray[np.void],
        service_cv: float = 0.0,
        s_per_usd: float = 0.0,
    ) -> NDArray[np.float64]:
        """Completion seconds [variants, waiting + future]; nan = not served. Runs in flight are waiting work.

        `s_per_usd`: seconds that are added for each dollar of node time that the request takes.
        `future`: WORK rows by arrival_s, in seconds from now. Completion of waiting work counts from now.
        One with the serial of a run, told or declared, comes with the stages of that run.
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
