"""True step times of an application: measurements, and what lies between them.

Idea: a measured placement is interpolated in the local batch; any other one in nodes, GPUs and local batch.
Source: the simulator of Qiao et al., Pollux, OSDI 2021, §5.3 ("simulator construction").
Deviations: beyond the measured local batches the last piece goes on, where the source stops with an error;
beyond the measured nodes and GPUs the nearest measurement counts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Final

import numpy as np

from trimtab.domain.training_jobs import Floats
from trimtab.domain.training_profiles import StepMeasurements


def _exact(seconds: Floats) -> Floats:
    return seconds


def _up(seconds: Floats) -> Floats:
    return np.ceil(seconds - 1e-6)  # a sum that misses a full second by an error of rounding stays there


FINISH_ROUNDINGS: dict[str, Callable[[Floats], Floats]] = {
    "exact": _exact,
    "up": _up,
    "nearest": np.rint,
}


MOST_NODES: Final = 16  # more nodes than that count as so many: none were measured

_FLAT: Final = 1e-12  # a tetrahedron with so small a share of the largest volume is none

Times = tuple[float, float]


class StepTimes:
    """Looks step times up. Each answer is kept."""

    def __init__(self, measured: StepMeasurements) -> None:
        self._measured = measured
        self._known: dict[tuple[tuple[int, ...], int], Times] = {}

    def at(self, placement: tuple[int, ...], local_batch: int) -> Times:
        """Seconds of a step and of its synchronisation. `placement`: GPUs on each node, in ring order."""
        key = placement, local_batch
        if key not in self._known:
            self._known[key] = self._looked_up(placement, local_batch)
        return self._known[key]

    def _looked_up(self, placement: tuple[int, ...], local_batch: int) -> Times:
        turned = min(placement[i:] + placement[:i] for i in range(len(placement)))
        curve = self._measured.placements.get(turned)
        if curve is not None:
            step, sync = on_curve(*curve, local_batch)
        else:
            point = (min(len(placement), MOST_NODES), sum(placement), local_batch)
            step, sync = self._between(point)
        return float(step), float(sync)

    def _between(self, point: tuple[int, int, int]) -> Floats:
        interpolator, points, times = self._volume
        found: Floats = interpolator(point).reshape(2) if interpolator is not None else np.full(2, np.nan)
        if np.isfinite(found).all():
            return found
        width = np.maximum(np.ptp(points, axis=0), 1e-9)
        nearest: Floats = times[np.argmin((((points - point) / width) ** 2).sum(axis=1))]
        return nearest

    @cached_property
    def _volume(self) -> tuple[Any, Floats, Floats]:
        """The interpolator, its points and times; None where the points span no volume."""
        grouped: dict[tuple[float, float, float], list[Floats]] = {}
        for placement, (batches, measured) in self._measured.placements.items():
            for batch, row in zip(batches, measured, strict=True):
                grouped.setdefault((len(placement), sum(placement), batch), []).append(row)
        keys = sorted(grouped)
        means = np.array([np.mean(grouped[key], axis=0) for key in keys])
        points = np.concatenate([np.array(keys, np.float64), self._measured.scaled])
        times = np.concatenate([means, self._measured.scaled_times])
        return _interpolator(points, times), points, times


def _interpolator(points: Floats, times: Floats) -> Any:
    """Linear between the corners of the Delaunay tetrahedron around a point.

    On a grid Qhull's tetrahedra overlap here and there, so the published values depend on how SciPy walks to
    one. SciPy would invert one matrix per tetrahedron with LAPACK, whose threads take seconds on a busy
    machine; the inverses are given to it.
    """
    from scipy.interpolate import LinearNDInterpolator
    from scipy.spatial import Delaunay, QhullError

    try:
        triangulation = Delaunay(points)
    except QhullError:  # the points span no volume
        return None
    last = points[triangulation.simplices[:, 3]]
    x, y, z = np.moveaxis(points[triangulation.simplices[:, :3]] - last[:, None], 1, 0)
    crossed = np.stack([np.cross(y, z), np.cross(z, x), np.cross(x, y)], axis=1)
    volume = (x * crossed[:, 0]).sum(axis=1)
    volume[np.abs(volume) <= _FLAT * np.abs(volume).max()] = np.nan
    inverse = crossed / volume[:, None, None]
    triangulation._transform = np.concatenate([inverse, last[:, None]], axis=1)  # type: ignore[attr-defined]
    return LinearNDInterpolator(triangulation, times)


def on_curve(batches: Floats, times: Floats, local_batch: float) -> Floats:
    """Seconds of a step and of its synchronisation; beyond the measured batches the last piece goes on."""
    if len(batches) == 1:
        only: Floats = times[0] * local_batch / batches[0]
        return only
    high = int(np.clip(np.searchsorted(batches, local_batch), 1, len(batches) - 1))
    low = high - 1
    slope = (times[high] - times[low]) / (batches[high] - batches[low])
    between: Floats = slope * (local_batch - batches[low]) + times[low]
    return between
