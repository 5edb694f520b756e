"""Learned demands of classes: against demands that are known, and against a solver of the same problem."""

import numpy as np
import pytest
from scipy.optimize import nnls

from trimtab.domain.cluster import RESOURCES
from trimtab.gateway.decide.learning import ClassCounts, DemandFit, non_negative

CPU, GPU = RESOURCES.index("cpu_cores"), RESOURCES.index("gpu_milli")


def used(**amounts: float) -> list[float | None]:
    return [amounts.get(name) for name in RESOURCES]


def test_demands_are_found_beside_loads_of_others() -> None:
    rng, fit = np.random.default_rng(1), DemandFit()
    true_cpu, true_gpu = np.array([0.5, 2.0, 0.0]), np.array([100.0, 0.0, 40.0])
    for _ in range(400):
        for node, background in enumerate((1.0, 6.0)):  # constant for each node
            x = rng.integers(0, 6, 3)
            noise = rng.normal(0.0, 0.2)
            fit.observe(
                node,
                dict(enumerate(x.astype(float))),
                used(cpu_cores=background + x @ true_cpu + noise, gpu_milli=50.0 * node + x @ true_gpu),
            )
    found = fit.demand(4)
    assert found[:3, CPU] == pytest.approx(true_cpu, abs=0.03)
    assert found[:3, GPU] == pytest.approx(true_gpu, abs=0.5)
    assert not found[3].any(), "a class that was never seen"
    assert not found[:, RESOURCES.index("ram_gib")].any(), "a resource that nobody reports"


def test_a_demand_that_changes_is_followed() -> None:
    rng, fit = np.random.default_rng(2), DemandFit()
    for demand in (3.0, 1.0):
        for _ in range(1500):
            x = float(rng.integers(0, 4))
            fit.observe(0, {0: x}, used(cpu_cores=2.0 + demand * x))
    assert fit.demand(1)[0, CPU] == pytest.approx(1.0, abs=0.05)


def test_few_reports_say_nothing() -> None:
    fit = DemandFit()
    for x in (0.0, 1.0, 2.0):
        fit.observe(0, {0: x}, used(cpu_cores=x))
    assert not fit.demand(1).any()


@pytest.mark.parametrize("seed", range(20))
def test_normal_equations_are_solved_as_by_an_active_set_method(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(30, 5))
    y = x @ rng.normal(size=5) + rng.normal(size=30)  # some true values are negative
    expected, _ = nnls(x, y)
    assert non_negative(x.T @ x, x.T @ y) == pytest.approx(expected, abs=1e-6)


def test_means_are_requests_times_seconds_between_two_reports_of_one_source() -> None:
    counts = ClassCounts()
    counts.add(0, 7, 1, 1, 0.0)
    assert counts.mean(0, "machine", 10.0) == {7: 1.0}, "the first report: those now"
    counts.add(0, 7, 1, 3, 12.0)
    counts.add(0, 7, -1, 1, 13.0)
    counts.add(0, 7, -1, 3, 14.0)
    assert counts.mean(0, "machine", 14.0) == {7: pytest.approx((2 * 1 + 1 * 2 + 1 * 1) / 4)}
    assert counts.mean(0, "gpu", 14.0) == {}, "this source's first: none is there now"
    assert counts.mean(0, "machine", 16.0) == {}
    assert (counts.now(0), counts.answers(0)) == ({}, 0)
