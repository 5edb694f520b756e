"""The assignment problem as a checked integer programme.

minimise (or maximise) Σ value[j, i] x[j, i]
with     Σ_i x[j, i] = 1 for a compulsory task j, ≤ 1 for an optional one,
         Σ_j demand[j, i, r] x[j, i] ≤ capacity[i, r] for every node i and resource r, x binary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trimtab.errors import ProblemError

FloatArray: TypeAlias = NDArray[np.floating[Any]]
IntArray: TypeAlias = NDArray[np.integer[Any]]
BoolArray: TypeAlias = NDArray[np.bool_]
Scalar = TypeVar("Scalar", bound=np.generic)

TOLERANCE_FRAC = 1e-9  # of a capacity that a load may exceed it by: rounding in sums


@dataclass(frozen=True, slots=True)
class AssignmentProblem:
    """Assignment of tasks to nodes; build one with `assignment_problem`, which checks it.

    Attributes:
        value: [tasks, nodes] cost, or utility if `is_maximised`; infinitely bad if a pair is forbidden.
        demand: [tasks, nodes, resources] demand of a task on a node.
        capacity: [nodes, resources].
        is_maximised: whether more is better.
        optional: [tasks] may be left out; compulsory where False.
        skip_value: [tasks] the value of leaving an optional task out.
    """

    value: FloatArray
    demand: FloatArray
    capacity: FloatArray
    is_maximised: bool
    optional: BoolArray
    skip_value: FloatArray

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return int(self.value.shape[0])

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return int(self.value.shape[1])

    @property
    def sign(self) -> float:
        """Factor that turns values into costs: 1 or −1."""
        return -1.0 if self.is_maximised else 1.0

    def objective(self, assignment: IntArray) -> float:
        """Value of an assignment [tasks] of node numbers, −1 for a task left out."""
        placed = np.flatnonzero(assignment >= 0)
        total = self.value[placed, assignment[placed]].sum(dtype=np.float64)
        return float(total + self.skip_value[assignment < 0].sum())

    def load(self, assignment: IntArray) -> NDArray[np.float64]:
        """[nodes, resources] in use."""
        placed = np.flatnonzero(assignment >= 0)
        load = np.zeros(self.capacity.shape)
        np.add.at(load, assignment[placed], self.demand[placed, assignment[placed]])
        return load

    def is_feasible(self, assignment: IntArray) -> bool:
        """Whether every compulsory task has an allowed node, and no node is overloaded."""
        placed = assignment >= 0
        allowed = np.isfinite(self.value[np.flatnonzero(placed), assignment[placed]]).all()
        fits = self.load(assignment) <= self.capacity * (1 + TOLERANCE_FRAC)
        return bool(allowed and fits.all() and (placed | self.optional).all())


def assignment_problem(
    value: ArrayLike,
    demand: ArrayLike,
    capacity: ArrayLike,
    *,
    maximise: bool = False,
    optional: bool | ArrayLike | None = None,
    skip_value: float | ArrayLike = 0.0,
) -> AssignmentProblem:
    """Check a problem and normalise its arrays.

    Args:
        value: [tasks, nodes]; +inf (−inf where maximised) forbids a pair.
        demand: [tasks, nodes], or [tasks, nodes, resources].
        capacity: [nodes], or [nodes, resources].
        maximise: whether values are utilities.
        optional: one for all tasks or [tasks]; by default as `maximise`.
        skip_value: one for all tasks or [tasks]: the value of leaving an optional task out.

    Raises:
        ProblemError: shapes that don't fit, no numbers, no task or node, NaN, negative demands or capacities.
    """
    values, demands = _floats("value", value), _floats("demand", demand)
    capacities = _floats("capacity", capacity).astype(np.float64)
    if values.dtype != demands.dtype:  # kernels are compiled for one precision of both
        values, demands = values.astype(np.float64), demands.astype(np.float64)
    demands = demands[..., None] if demands.ndim == 2 else demands
    capacities = capacities[:, None] if capacities.ndim == 1 else capacities
    _check_shapes(values, demands, capacities)
    _check_numbers(values, demands, capacities, maximise)
    tasks = values.shape[0]
    chosen = _per_task("optional", np.asarray(maximise if optional is None else optional, np.bool_), tasks)
    skip = _per_task("skip_value", _floats("skip_value", skip_value).astype(np.float64), tasks)
    if not np.isfinite(skip).all():
        _refuse("skip_value", np.flatnonzero(~np.isfinite(skip)), skip, "a finite number for every task")
    return AssignmentProblem(values, demands, capacities, maximise, chosen, skip)


def _floats(name: str, given: ArrayLike) -> FloatArray:
    try:
        array = np.asarray(given)
        kept = array.dtype in (np.dtype(np.float32), np.dtype(np.float64))
        return np.asarray(array, array.dtype if kept else np.float64, order="C")
    except (TypeError, ValueError) as error:  # words, rows of several lengths
        raise ProblemError(f"no array of numbers ({error})", field=name) from error


def _per_task(name: str, given: NDArray[Scalar], tasks: int) -> NDArray[Scalar]:
    if given.shape not in ((), (tasks,)):
        raise ProblemError(
            "wrong shape", field=name, value=given.shape, expected=f"one for all, or {(tasks,)}: tasks"
        )
    return np.broadcast_to(given, (tasks,))


def _check_shapes(value: FloatArray, demand: FloatArray, capacity: FloatArray) -> None:
    if value.ndim != 2 or 0 in value.shape:
        raise ProblemError(
            "no problem", field="value", value=value.shape, expected="[tasks, nodes], at least 1 of each"
        )
    if demand.ndim != 3 or demand.shape[:2] != value.shape or demand.shape[2] == 0:
        raise ProblemError(
            "wrong shape", field="demand", value=demand.shape, expected=f"{value.shape} and the resources"
        )
    if capacity.shape != (value.shape[1], demand.shape[2]):
        expected = f"{(value.shape[1], demand.shape[2])}: nodes and resources"
        raise ProblemError("wrong shape", field="capacity", value=capacity.shape, expected=expected)


def _check_numbers(value: FloatArray, demand: FloatArray, capacity: FloatArray, maximise: bool) -> None:
    forbidden = -np.inf if maximise else np.inf
    if not np.isfinite(value.sum(dtype=np.float64)):
        bad = np.argwhere(~np.isfinite(value) & (value != forbidden))
        if bad.size:
            _refuse("value", bad[0], value, f"finite numbers, or {forbidden} for a forbidden pair")
    for name, array in (("demand", demand), ("capacity", capacity)):
        if not (array.min() >= 0 and np.isfinite(array.max())):
            bad = np.argwhere(~(np.isfinite(array) & (array >= 0)))
            _refuse(name, bad[0], array, "finite numbers of at least 0")


def _refuse(name: str, at: IntArray, array: FloatArray, expected: str) -> NoReturn:
    place = tuple(int(k) for k in at)[: array.ndim]
    field = f"{name}[{', '.join(map(str, place))}]"
    raise ProblemError("cannot be used", field=field, value=float(array[place]), expected=expected)
