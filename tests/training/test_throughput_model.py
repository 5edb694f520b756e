"""The fit against SciPy's minimum of the same error, and the choice of batches against all of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from trimtab.training.batch_choice import LIMITS, divided_batch, goodputs
from trimtab.training.throughput_model import fit_error, fit_throughput


def step_times(theta: Any, nodes: Any, gpus: Any, local: Any) -> tuple[Any, Any]:
    """The model as the paper writes it."""
    grad = theta[0] + theta[1] * local
    beyond = np.maximum(gpus - 2, 0)
    sync = np.where(nodes > 1, theta[2] + theta[3] * beyond, theta[4] + theta[5] * beyond)
    sync = np.where(gpus == 1, 0.0, sync)
    return grad, (grad ** theta[6] + sync ** theta[6]) ** (1 / theta[6])


def measured(rng: np.random.Generator, rows: int, noise: float) -> tuple[Any, ...]:
    theta = np.append(rng.uniform(0.02, 0.3, 6), rng.uniform(1, 4)) * np.array(
        [1, 0.05, 1, 0.1, 0.5, 0.05, 1]
    )
    nodes = rng.integers(1, 4, rows).astype(float)
    gpus = nodes * rng.integers(1, 5, rows)
    local = rng.integers(8, 64, rows).astype(float)
    grad, step = step_times(theta, nodes, gpus, local)
    wrong = np.exp(noise * rng.standard_normal((2, rows)))
    return nodes, gpus, local, grad * wrong[0], step * wrong[1]


@pytest.mark.parametrize("rows", [1, 2, 4, 10, 30])
def test_the_fit_is_no_worse_than_scipys(rows: int, rng: np.random.Generator) -> None:
    for _ in range(5):
        data = measured(rng, rows, 0.05)
        found = fit_throughput(*data)
        least = [1e-8] * 6 + [1.0]
        start = np.array([0.1, 0.01] * 3 + [1.001])
        others = minimize(
            lambda x, d=data, low=tuple(least): fit_error(np.maximum(x, low), *d),
            start,
            method="L-BFGS-B",
            bounds=list(zip(least, [None] * 6 + [10.0], strict=True)),
        )
        if (data[0] > 1).any() and ((data[0] == 1) & (data[1] > 1)).any():  # no prior after the fit
            assert fit_error(found, *data) <= others.fun + 2e-3


def test_exact_data_is_reproduced(rng: np.random.Generator) -> None:
    data = measured(rng, 40, 0.0)
    grad, step = step_times(fit_throughput(*data), *data[:3])
    assert grad == pytest.approx(data[3], rel=0.02)
    assert step == pytest.approx(data[4], rel=0.1)


def test_one_measurement_of_one_gpu() -> None:
    found = fit_throughput(*(np.array([x]) for x in (1.0, 1.0, 16.0, 0.8, 0.8)))
    assert found[0] == pytest.approx(0.4)
    assert found[1] == pytest.approx(0.4 / 16, rel=1e-2)
    grad, step = step_times(found, np.array([2.0]), np.array([8.0]), np.array([16.0]))
    assert step == pytest.approx(grad, rel=1e-3)  # links never seen cost nothing


def brute_force(theta: Any, noise: float, bound: Any, nodes: int, gpus: int) -> float:
    """The best of all batches that the source tries."""
    best = 0.0
    first = max(bound["init_batch"], bound["min_local"] * gpus)
    for batch in np.geomspace(first, bound["max_batch"]):
        local = batch / gpus
        passes = math.ceil(local / bound["max_local"] - 1e-8) - 1
        if gpus == 1 and local > bound["init_batch"] + 1e-8:
            passes = max(passes, 1)
        atomic = math.ceil(local / (passes + 1) - 1e-8)
        if not bound["min_local"] <= atomic <= bound["max_local"]:
            continue
        grad, step = step_times(theta, *(np.array(x) for x in (nodes, gpus, atomic)))
        whole = gpus * atomic * (passes + 1)
        gain = (noise + 1) / (noise * bound["init_batch"] / whole + 1)
        best = max(best, float(gain / (step + passes * grad)))
    return best


def test_the_best_batch_is_found(rng: np.random.Generator) -> None:
    theta = np.array([0.02, 0.004, 0.1, 0.01, 0.03, 0.002, 1.5])
    bound = np.zeros(1, LIMITS)
    bound[0] = (16, 1024, 4, 40, 0, 0)
    gpus = np.array([1, 2, 4, 8, 16, 64])
    nodes = -(-gpus // 4)
    for noise in (0.0, 1.0, 30.0):
        value, atomic, passes = np.zeros(6), np.zeros(6), np.zeros(6, np.int64)
        zeros = np.zeros(6, np.int64)
        goodputs(
            theta[None],
            np.array([noise]),
            bound,
            zeros,
            nodes,
            gpus,
            -np.ones(6),
            zeros,
            value,
            atomic,
            passes,
        )
        expected = [brute_force(theta, noise, bound[0], n, k) for n, k in zip(nodes, gpus, strict=True)]
        assert value == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("batch", "gpus", "expected"),
    [
        (64, 1, (16, 3)),
        (16, 1, (16, 0)),
        (20, 1, (10, 1)),
        (64, 4, (16, 0)),
        (65, 4, (17, 0)),
        (1000, 12, (16, 4)),
    ],
)
def test_a_given_batch_is_divided(batch: int, gpus: int, expected: tuple[int, int]) -> None:
    most = 17 if batch == 65 else 20
    assert divided_batch(float(batch), gpus, 16.0, 1000.0, float(most)) == expected
