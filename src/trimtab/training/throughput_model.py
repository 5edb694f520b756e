"""Step time of data-parallel training as a function of nodes, GPUs and local batch, fitted to measurements.

Idea: with N nodes, K GPUs and local batch b
    T_grad = αc + βc b,    T_sync = αr + βr (K − 2) on one node, αn + βn (K − 2) on several, 0 for K = 1,
    T_opt = (T_grad^γ + T_sync^γ)^(1/γ),    1 ≤ γ ≤ 10.
The fit minimises RMSE of log T_grad + RMSE of log T_opt + 1e-3 (γ − 1)² + 1e-2 [(βn/αn)² + (βr/αr)²].
Where data is missing, priors are optimistic: one local batch seen fixes αc at half of T_grad; links never
seen are free; β is 0 until three GPUs were seen. After the fit, links between nodes are at least 1.1 times
as slow as those within a node.
Source: Qiao et al., Pollux, OSDI 2021, §3.2 and §4.1, and the simulator published with it.
Deviations: the source minimises over the parameters with L-BFGS-B from SciPy and derivatives by autograd.
Here a compiled BFGS with derivatives in closed form works on logarithms of α and β, with the parameters at a
bound left out of each step; the RMSE are smoothed by 1e-4.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from trimtab.compiled.elementwise import elementwise
from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.training_jobs import Floats

PARAMETERS: Final = 7  # αc, βc, αn, βn, αr, βr, γ
LEAST: Final = 1e-8  # of α and β, and the synchronisation of a single GPU
_LOG_LEAST: Final = math.log(LEAST)
_LOG_MOST: Final = math.log(1e4)
_MOST_GAMMA: Final = 10.0
_SMOOTH: Final = 1e-4
_ITERATIONS: Final = 100
_SETTLED: Final = 1e-7  # a smaller gain of a step ends the fit
_START: Final = (0.1, 0.01, 0.1, 0.01, 0.1, 0.01)  # the source's


def fit_throughput(
    nodes: Floats, gpus: Floats, local_batch: Floats, grad_s: Floats, step_s: Floats
) -> Floats:
    """The parameters [7] that fit these measurements [rows] of T_grad and T_opt."""
    point = np.array([*map(math.log, _START), 1.0 + 1e-3])
    free = np.ones(PARAMETERS, np.bool_)
    if (local_batch == local_batch[0]).all():
        point[0], free[0] = math.log(float(grad_s.mean()) / 2), False
    unseen = (
        [2, 3] * (not (nodes > 1).any())
        + [4, 5] * (not ((nodes == 1) & (gpus > 1)).any())
        + [3, 5] * (not (gpus > 2).any())
    )
    point[unseen], free[unseen] = _LOG_LEAST, False
    _fit(
        np.stack(
            [nodes, gpus, local_batch, elementwise(math.log, grad_s), elementwise(math.log, step_s)], axis=1
        ),
        point,
        free,
    )
    found = np.append(elementwise(math.exp, point[:6]), point[6])
    if not (nodes > 1).any():
        found[2:4] = np.maximum(found[2:4], 1.1 * found[4:6])
    return found


def fit_error(
    parameters: Floats, nodes: Floats, gpus: Floats, local: Floats, grad_s: Floats, step_s: Floats
) -> float:
    """The objective of the fit, without smoothing."""
    point = np.append(elementwise(math.log, parameters[:6]), parameters[6])
    data = np.stack(
        [nodes, gpus, local, elementwise(math.log, grad_s), elementwise(math.log, step_s)], axis=1
    )
    return float(_error(data, point, np.zeros(PARAMETERS), 0.0))


def step_seconds(parameters: Floats, nodes: float, gpus: float, local_batch: float) -> float:
    """T_opt by the parameters [7] of a fit."""
    alpha, beta, *links, gamma = parameters.tolist()
    sync = log_sync(nodes, gpus, *links)
    return math.exp(log_overlapped(math.log(alpha + beta * local_batch), sync, gamma))


@helper(inline=True)
def log_sync(nodes: Any, gpus: Any, alpha_n: Any, beta_n: Any, alpha_r: Any, beta_r: Any) -> Any:
    """Logarithm of the seconds of a synchronisation."""
    beyond = max(gpus - 2.0, LEAST)
    if nodes > 1:
        return math.log(alpha_n + beta_n * beyond)
    if gpus > 1:
        return math.log(alpha_r + beta_r * beyond)
    return math.log(LEAST + LEAST * beyond)


@helper(inline=True)
def log_overlapped(log_grad: Any, log_sync_s: Any, gamma: Any) -> Any:
    """Logarithm of T_opt."""
    most = max(log_grad, log_sync_s)
    apart = abs(log_grad - log_sync_s)
    return most + math.log(1.0 + math.exp(-gamma * apart)) / gamma


@kernel
def _error(data: Any, point: Any, slope: Any, smooth: Any) -> Any:
    """Error of the parameters at `point`; its derivatives go into `slope`."""
    alpha_c, beta_c = math.exp(point[0]), math.exp(point[1])
    alpha_n, beta_n = math.exp(point[2]), math.exp(point[3])
    alpha_r, beta_r = math.exp(point[4]), math.exp(point[5])
    gamma = point[6]
    rows = data.shape[0]
    grad_sum = 0.0
    step_sum = 0.0
    first = np.zeros(2)  # derivatives of the two mean squares, halved
    by_grad = np.zeros((2, 2))
    by_step = np.zeros(7)
    for i in range(rows):
        nodes, gpus, local = data[i, 0], data[i, 1], data[i, 2]
        grad_s = alpha_c + beta_c * local
        log_grad = math.log(grad_s)
        beyond = max(gpus - 2.0, LEAST)
        sync = log_sync(nodes, gpus, alpha_n, beta_n, alpha_r, beta_r)
        log_step = log_overlapped(log_grad, sync, gamma)
        miss = log_grad - data[i, 3]
        grad_sum += miss * miss
        by_grad[0, 0] += miss * alpha_c / grad_s
        by_grad[0, 1] += miss * beta_c * local / grad_s
        miss = log_step - data[i, 4]
        step_sum += miss * miss
        weight = math.exp(gamma * (log_grad - log_step))  # of T_grad in T_opt
        by_step[0] += miss * weight * alpha_c / grad_s
        by_step[1] += miss * weight * beta_c * local / grad_s
        rest = 1.0 - weight
        if nodes > 1:
            sync_s = alpha_n + beta_n * beyond
            by_step[2] += miss * rest * alpha_n / sync_s
            by_step[3] += miss * rest * beta_n * beyond / sync_s
        elif gpus > 1:
            sync_s = alpha_r + beta_r * beyond
            by_step[4] += miss * rest * alpha_r / sync_s
            by_step[5] += miss * rest * beta_r * beyond / sync_s
        by_step[6] += miss * (weight * log_grad + rest * sync - log_step) / gamma
    first[0] = math.sqrt(grad_sum / rows + smooth * smooth)
    first[1] = math.sqrt(step_sum / rows + smooth * smooth)
    for k in range(7):
        slope[k] = by_step[k] / rows / first[1] if first[1] > 0.0 else 0.0
    if first[0] > 0.0:
        slope[0] += by_grad[0, 0] / rows / first[0]
        slope[1] += by_grad[0, 1] / rows / first[0]
    between = math.exp(2.0 * (point[3] - point[2]))
    within = math.exp(2.0 * (point[5] - point[4]))
    slope[2] -= 2e-2 * between
    slope[3] += 2e-2 * between
    slope[4] -= 2e-2 * within
    slope[5] += 2e-2 * within
    slope[6] += 2e-3 * (gamma - 1.0)
    return first[0] + first[1] + 1e-3 * (gamma - 1.0) ** 2 + 1e-2 * (between + within)


@helper(inline=True)
def _clipped(k: Any, value: Any) -> Any:
    if k == 6:
        return min(max(value, 1.0), _MOST_GAMMA)
    return min(max(value, _LOG_LEAST), _LOG_MOST)


@kernel
def _fit(data: Any, point: Any, free: Any) -> Any:
    """Minimise the error from `point` on, in place, over the `free` parameters."""
    n = PARAMETERS
    inverse = np.eye(n)  # of the Hessian, estimated
    slope, other = np.zeros(n), np.zeros(n)
    step, trial, held = np.zeros(n), np.zeros(n), np.zeros(n, np.bool_)
    moved, turned, image = np.zeros(n), np.zeros(n), np.zeros(n)
    error = _error(data, point, slope, _SMOOTH)
    small = 0
    for _ in range(_ITERATIONS):
        for k in range(n):
            at_low = point[k] <= (1.0 if k == 6 else _LOG_LEAST)
            at_high = point[k] >= (_MOST_GAMMA if k == 6 else _LOG_MOST)
            held[k] = not free[k] or (at_low and slope[k] > 0.0) or (at_high and slope[k] < 0.0)
        downhill = 0.0
        for k in range(n):
            step[k] = 0.0
            if not held[k]:
                for m in range(n):
                    if not held[m]:
                        step[k] -= inverse[k, m] * slope[m]
            downhill += step[k] * slope[k]
        if downhill >= 0.0:  # the estimate is of no use: steepest descent
            downhill = 0.0
            for k in range(n):
                step[k] = 0.0 if held[k] else -slope[k]
                downhill -= step[k] * step[k]
            inverse[:] = np.eye(n)
        if downhill == 0.0:
            return error
        longest = 0.0
        for k in range(n):
            longest = max(longest, abs(step[k]))
        length = min(1.0, 2.0 / longest)
        lower = error
        for _halving in range(30):
            for k in range(n):
                trial[k] = _clipped(k, point[k] + length * step[k]) if not held[k] else point[k]
            lower = _error(data, trial, other, _SMOOTH)
            if lower <= error + 1e-4 * length * downhill:
                break
            length *= 0.5
        gain = error - lower
        if gain <= 0.0:
            return error
        curve = 0.0
        for k in range(n):
            moved[k], turned[k] = trial[k] - point[k], other[k] - slope[k]
            curve += moved[k] * turned[k]
            point[k], slope[k] = trial[k], other[k]
        error = lower
        if curve > 1e-12:
            quadratic = 0.0
            for k in range(n):
                image[k] = 0.0
                for m in range(n):
                    image[k] += inverse[k, m] * turned[m]
                quadratic += image[k] * turned[k]
            for k in range(n):
                for m in range(n):
                    inverse[k, m] += (1.0 + quadratic / curve) * moved[k] * moved[m] / curve
                    inverse[k, m] -= (image[k] * moved[m] + moved[k] * image[m]) / curve
        small = small + 1 if gain < _SETTLED else 0
        if small == 3:
            return error
    return error
