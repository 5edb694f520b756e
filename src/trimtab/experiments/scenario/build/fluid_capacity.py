"""Capacity of a cluster for a mix of request classes: the arrival rate that is load 1.0.

The fluid programme: the highest rate Λ at which rates x_cg of class c on group g exist with
    Σ_g x_cg = Λ share_c,   Σ_c x_cg E[service_cg] ≤ slots_g,   x ≥ 0,   x_cg = 0 where g cannot serve c,
and, where nodes have resources k,   Σ_c x_cg E[service_cg] demand_ck ≤ capacity_gk.
Model loads, transfers and what does not go evenly into a node are left out. Solved as its scaled twin: the
least largest utilisation u at rate 1, Λ = 1/u.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trimtab.errors import TrimtabError
from trimtab.experiments.scenario.spec.shared_types import FloatArray
from trimtab.validation.preconditions import require

SAME_PROFILE = 1e-12  # relative difference up to which classes count as served at equal relative speeds


@dataclass(frozen=True, slots=True, eq=False)
class CapacityResult:
    """The highest sustainable arrival rate, and a split that serves it."""

    rate_per_s: float  # of the whole stream of which the classes have their shares
    allocation_per_s: FloatArray  # [classes, groups], rate of class c served by group g at that rate


def fluid_capacity_per_s(
    mean_service_s: npt.ArrayLike,
    share: npt.ArrayLike,
    slots: npt.ArrayLike,
    demand: npt.ArrayLike | None = None,
    capacity: npt.ArrayLike | None = None,
) -> CapacityResult:
    """Highest arrival rate at which the fluid programme class × group of nodes is feasible, loads excluded.

    `mean_service_s` [classes, groups], infinity where a group cannot serve a class; `share` [classes] of all
    arrivals, which need not sum to one (a class that no type serves has share 0 here); `slots` [groups];
    `demand` [classes, resources] of a request while it is served, of the `capacity` [groups, resources].
    Raises UsageError for tables that do not fit together, and for a class with a share that no group serves.
    """
    service, weight, free = (np.asarray(table, dtype=np.float64) for table in (mean_service_s, share, slots))
    _check(service, weight, free)
    taken = np.zeros((len(weight), 0)) if demand is None else np.asarray(demand, dtype=np.float64)
    held = np.zeros((len(free), 0)) if capacity is None else np.asarray(capacity, dtype=np.float64)
    _check_resources(taken, held, len(weight), len(free))
    service = np.where(((taken[:, None] > 0) & (held == 0)).any(axis=2), np.inf, service)
    classes, groups = np.flatnonzero(weight > 0), np.flatnonzero(free > 0)
    cell = np.ix_(classes, groups)
    _check_served(service[cell], classes)
    use = _use(service[cell], free[groups], taken[classes], held[groups])
    split = _split(service[cell], weight[classes], free[groups], use)
    busy = np.where(split > 0, use, 0.0) * split * weight[classes, None]
    rate_per_s = 1.0 / float(busy.sum(axis=1).max())
    allocation_per_s = np.zeros(service.shape)
    allocation_per_s[cell] = rate_per_s * weight[classes, None] * split
    return CapacityResult(rate_per_s, allocation_per_s)


def _use(service: FloatArray, slots: FloatArray, demand: FloatArray, capacity: FloatArray) -> FloatArray:
    """Seconds of a group's slots, then of each of its resources, that one request uses.

    Shape [1 + resources, classes, groups]; infinite where a group cannot serve.
    """
    seconds = [service / slots]
    for of_class, of_group in zip(demand.T, capacity.T, strict=True):
        share = np.divide(of_class[:, None], of_group, out=np.zeros(service.shape), where=of_group > 0)
        seconds.append(np.where(np.isfinite(service), service, 0.0) * share)
    return np.stack(seconds)


def _split(service: FloatArray, share: FloatArray, slots: FloatArray, use: FloatArray) -> FloatArray:
    """Fraction of each class that each group serves, shape [classes, groups]; rows sum to one."""
    speed = 1.0 / service  # 0 where a group cannot serve
    profile = speed / speed.sum(axis=1, keepdims=True)
    if len(use) == 1 and np.allclose(profile, profile[0], rtol=SAME_PROFILE, atol=0.0):
        return _rows_to_one(
            profile * slots
        )  # any split that fills every group is best: take the same for all
    return _least_utilisation_split(np.where(np.isfinite(service), use, 0.0) * share[:, None])


def _least_utilisation_split(demand: FloatArray) -> FloatArray:
    """Minimise the largest utilisation u over the split z: variables z [classes · groups], then u.

    `demand` [1 + resources, classes, groups] is the utilisation of the slots, then of each resource, of a
    group that serves a class alone; 0 of the slots where it cannot.
    """
    from scipy.optimize import linprog  # 0.4 s to import: only where there is no closed form

    classes, groups = demand.shape[1:]
    possible = demand[0] > 0
    scaled = demand / demand[0].min(axis=1, where=possible, initial=np.inf).sum()  # then u ≥ 1 / groups
    rows = [np.hstack([*(np.diag(row) for row in kind), -np.ones((groups, 1))]) for kind in scaled]
    outcome = linprog(
        np.append(np.zeros(possible.size), 1.0),
        A_ub=np.vstack(rows),
        b_ub=np.zeros(groups * len(rows)),
        A_eq=np.hstack([np.kron(np.eye(classes), np.ones(groups)), np.zeros((classes, 1))]),
        b_eq=np.ones(classes),
        bounds=[(0.0, float(allowed)) for allowed in possible.flat] + [(0.0, None)],
        method="highs",
    )
    if outcome.x is None:
        raise TrimtabError(f"the fluid programme was not solved: {outcome.message}")
    return _rows_to_one(np.clip(outcome.x[:-1].reshape(classes, groups), 0.0, None) * possible)


def _rows_to_one(parts: FloatArray) -> FloatArray:
    return np.asarray(parts / parts.sum(axis=1, keepdims=True), dtype=np.float64)


def _check(service: FloatArray, share: FloatArray, slots: FloatArray) -> None:
    shape = (share.size, slots.size)
    require(service.shape == shape, "mean_service_s", f"shape {shape}", service.shape)
    require(bool((service > 0).all()), "mean_service_s", "seconds above zero", service.min(initial=np.inf))
    require(
        bool((share >= 0).all() and np.isfinite(share).all()), "share", "finite numbers, zero or more", share
    )
    require(bool((share > 0).any()), "share", "at least one class above zero", share)
    require(
        bool((slots >= 0).all() and np.isfinite(slots).all()), "slots", "finite numbers, zero or more", slots
    )


def _check_resources(demand: FloatArray, capacity: FloatArray, classes: int, groups: int) -> None:
    fits = demand.shape[:1] == (classes,) and capacity.shape == (groups, *demand.shape[1:])
    require(fits, "demand", "[classes, resources], with capacity [groups, resources]", demand.shape)
    for name, table in (("demand", demand), ("capacity", capacity)):
        is_amount = bool((table >= 0).all() and np.isfinite(table).all())
        require(is_amount, name, "finite numbers, zero or more", table)


def _check_served(service: FloatArray, classes: npt.NDArray[np.intp]) -> None:
    unserved = classes[~np.isfinite(service).any(axis=1)]
    expected = "classes that some group with slots serves"
    require(not unserved.size, "share", expected, f"class {', '.join(map(str, unserved))}")
