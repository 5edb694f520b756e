"""The scheduling problem of a run: the checked and sorted input of every lower bound."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from trimtab.errors import UsageError
from trimtab.validation.names import require

FloatArray: TypeAlias = npt.NDArray[np.float64]


class Instance(NamedTuple):
    """Requests in order of arrival, the first at time 0, on groups of identical nodes.

    Requests that no group can serve, and groups that serve no request, are left out. A group that cannot
    serve a request has infinity there, in both tables.
    """

    arrival_s: FloatArray  # [requests]
    service_s: FloatArray  # [requests, groups]
    release_s: FloatArray  # [requests, groups], earliest start
    slots: npt.NDArray[np.int64]  # [groups], of all nodes of the group together

    @property
    def least_service_s(self) -> FloatArray:
        """Transfer and service of each request at its best group, without waiting, shape [requests]."""
        least_s: FloatArray = np.min(self.release_s + self.service_s, axis=1) - self.arrival_s
        return least_s

    @property
    def horizon_s(self) -> float:
        """A time that no earliest finish exceeds: the scale of the rounding errors."""
        return float(np.max(self.arrival_s + self.least_service_s))


def build_instance(
    arrival_s: npt.ArrayLike, service_s: npt.ArrayLike, release_s: npt.ArrayLike, slots: npt.ArrayLike
) -> Instance:
    """Check and sort the tables; shapes as in `Instance`, infinity where a group cannot serve.

    Raises UsageError for wrong shapes, NaN, negative service, starts before arrival, and an empty problem.
    """
    arrival = _floats("arrival_s", arrival_s, ndim=1)
    service = _floats("service_s", service_s, ndim=2)
    release = _floats("release_s", release_s, ndim=2)
    free = _floats("slots", slots, ndim=1)
    _check(arrival, service, release, free)
    possible = np.isfinite(service) & np.isfinite(release) & (free > 0)
    rows, groups = np.flatnonzero(possible.any(axis=1)), np.flatnonzero(possible.any(axis=0))
    if not rows.size:
        raise UsageError("no group of nodes can serve any request", field="service_s")
    rows = rows[np.argsort(arrival[rows], kind="stable")]
    origin_s, cell = arrival[rows[0]], np.ix_(rows, groups)
    return Instance(
        arrival[rows] - origin_s,
        np.where(possible, service, np.inf)[cell],
        np.where(possible, release - origin_s, np.inf)[cell],
        free[groups].astype(np.int64),
    )


def _floats(field: str, values: npt.ArrayLike, *, ndim: int) -> FloatArray:
    array = np.asarray(values, dtype=np.float64)
    require(array.ndim == ndim, field, f"an array of {ndim} dimension(s)", value=array.shape)
    require(not np.isnan(array).any(), field, "numbers, not NaN")
    return array


def _check(arrival: FloatArray, service: FloatArray, release: FloatArray, slots: FloatArray) -> None:
    shape = (arrival.size, slots.size)
    require(service.shape == shape, "service_s", f"shape {shape}", value=service.shape)
    require(release.shape == shape, "release_s", f"shape {shape}", value=release.shape)
    require(bool(np.isfinite(arrival).all()), "arrival_s", "finite times")
    require(bool((service >= 0).all()), "service_s", "seconds, zero or more")
    require(bool((release >= arrival[:, None]).all()), "release_s", "no start before the arrival")
    require(bool(((slots >= 0) & (slots == np.floor(slots))).all()), "slots", "whole numbers, zero or more")
