"""The batch with the highest goodput: what the agent of a job that adapts its batch chooses.

Idea: goodput = throughput × statistical efficiency. Of 50 global batches in geometric steps, from the initial
batch (or the least local batch on each GPU) to the largest, each is divided among the GPUs, and into passes
where it does not fit; the one with the highest goodput is chosen.
Source: Qiao et al., Pollux, OSDI 2021, §3.3, and the simulator published with it.
Deviations: none. A single GPU takes two passes at least when its batch is above the initial one, as in the
source, because one pass tells nothing about the noise of the gradient.

Statistical efficiency: how much a larger batch helps, from the noise of the gradient.

Idea: at batch M = s B an iteration makes as much progress as gain = (var + sqr) / (var / s + sqr) iterations
at the initial batch B; sqr and var are squared norm and variance of the gradient.
Source: McCandlish et al., An Empirical Model of Large-Batch Training, 2018; Johnson et al., AdaScale SGD,
2020; Qiao et al., Pollux, OSDI 2021, §3.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.training_jobs import Floats
from trimtab.domain.training_profiles import ApplicationProfile
from trimtab.training.throughput_model import log_overlapped, log_sync


@dataclass(frozen=True, slots=True)
class BatchCurve:
    """The progress at one global batch, by epoch."""

    grad_sqr: Floats  # [epochs]
    grad_var: Floats  # [epochs]
    gain: Floats  # [epochs] progress of an iteration
    iterations: Floats  # [epochs] done at the end of each
    loss: Floats  # [epochs] at the end of each


class GradientNoise:
    """The curves of an application; linear between two measured batches. Each answer is kept."""

    def __init__(self, profile: ApplicationProfile) -> None:
        self._profile = profile
        self._known: dict[float, BatchCurve] = {}

    def at(self, batch: float) -> BatchCurve:
        """The curves of this global batch; beyond the measured batches those of the nearest."""
        if batch not in self._known:
            self._known[batch] = self._curve(batch)
        return self._known[batch]

    def _curve(self, batch: float) -> BatchCurve:
        profile = self._profile
        sqr, var = self._between(profile.grad_sqr, batch), self._between(profile.grad_var, batch)
        scale = batch / profile.init_batch
        gain = (var + sqr) / (var / scale + sqr)
        iterations, loss = self._between(profile.iterations, batch), self._between(profile.loss, batch)
        return BatchCurve(sqr, var, gain, iterations, loss)

    def _between(self, values: Floats, batch: float) -> Floats:
        batches = self._profile.batches
        high = int(np.searchsorted(batches, batch))
        if high < len(batches) and batches[high] == batch:
            return values[high]
        if high in (0, len(batches)):
            return values[max(high - 1, 0)]
        low, width = high - 1, batches[high] - batches[high - 1]
        between: Floats = (
            (batch - batches[low]) * values[high] + (batches[high] - batch) * values[low]
        ) / width
        return between


BATCHES: Final = 50
_EPS: Final = 1e-8  # of rounding up

LIMITS: Final = np.dtype(
    [
        ("init_batch", "f8"),
        ("max_batch", "f8"),
        ("min_local", "f8"),
        ("max_local", "f8"),
        ("asked_batch", "f8"),  # global, 0 = none
        ("agent_batch", "f8"),  # global batch at which the agent always trains; 0 = it adapts
    ]
)
"""The bounds of a job's batch on a type of GPU."""


@helper
def divided_batch(batch: Any, gpus: Any, init_batch: Any, max_batch: Any, max_local: Any) -> Any:
    """Local batch and accumulation of a given global batch on so many GPUs."""
    local = math.ceil(batch / gpus - _EPS)
    accumulation = math.ceil(local / max_local - _EPS) - 1
    if gpus == 1 and batch > init_batch:
        accumulation = max(1, accumulation)
    atomic = math.ceil(local / (accumulation + 1) - _EPS)
    return min(atomic, int(max_batch / (gpus * (accumulation + 1)))), accumulation


@helper(inline=True)
def _goodput(fit: Any, sync: Any, noise: Any, init_batch: Any, gpus: Any, atomic: Any, passes: Any) -> Any:
    """Progress per second. `fit`: (αc, βc, γ); `noise`: variance over squared norm; passes = accumulation."""
    grad_s = fit[0] + fit[1] * atomic
    step_s = passes * grad_s + math.exp(log_overlapped(math.log(grad_s), sync, fit[2]))
    scale = gpus * atomic * (passes + 1) / init_batch
    return (noise + 1.0) / (noise / scale + 1.0) / step_s


@kernel
def goodputs(
    parameters: Any, noise: Any, limits: Any, row: Any, nodes: Any, gpus: Any, local: Any, passes: Any,
    value: Any, atomic: Any, accumulation: Any,
) -> None:  # fmt: skip
    """Goodput, local batch and accumulation of each pair of a job's `row` and a configuration.

    parameters [rows, 7], noise [rows], limits [rows]; the other arrays are flat, one element a pair. `local`:
    0 = equal parts of what the job asked for, below 0 = the agent chooses.
    """
    for i in range(row.size):
        j = row[i]
        bound = limits[j]
        count = gpus[i]
        value[i], atomic[i], accumulation[i] = 0.0, 0.0, 0
        if count < 1 or nodes[i] < 1 or nodes[i] > count:
            continue
        fit = (parameters[j, 0], parameters[j, 1], parameters[j, 6])
        sync = log_sync(
            nodes[i], count, parameters[j, 2], parameters[j, 3], parameters[j, 4], parameters[j, 5]
        )
        batch = bound.agent_batch if local[i] < 0.0 else bound.asked_batch
        if local[i] > 0.0:
            b, a = local[i], passes[i]
        elif batch > 0.0:
            b, a = divided_batch(batch, count, bound.init_batch, bound.max_batch, bound.max_local)
            b = float(b)
        else:
            first = max(bound.init_batch, bound.min_local * count)
            if first > bound.max_batch:
                continue
            value[i], atomic[i], accumulation[i] = _best(fit, sync, noise[j], bound, count, first)
            continue
        if bound.min_local <= b <= bound.max_local:
            value[i] = _goodput(fit, sync, noise[j], bound.init_batch, count, b, a)
            atomic[i], accumulation[i] = b, a


@helper
def _best(fit: Any, sync: Any, noise: Any, bound: Any, gpus: Any, first: Any) -> Any:
    ratio = math.exp(math.log(bound.max_batch / first) / (BATCHES - 1))
    best, best_b, best_a = 0.0, 0.0, 0
    last_b, last_a = -1.0, -1
    batch = first
    for k in range(BATCHES):
        if k == BATCHES - 1:
            batch = bound.max_batch
        local = batch / gpus
        a = math.ceil(local / bound.max_local - _EPS) - 1
        if gpus == 1 and local > bound.init_batch + _EPS:
            a = max(a, 1)
        b = math.ceil(local / (a + 1) - _EPS) * 1.0
        batch *= ratio
        if (b == last_b and a == last_a) or b < bound.min_local or b > bound.max_local:
            continue
        last_b, last_a = b, a
        goodput = _goodput(fit, sync, noise, bound.init_batch, gpus, b, a)
        if goodput > best:
            best, best_b, best_a = goodput, b, a
    return best, best_b, best_a
