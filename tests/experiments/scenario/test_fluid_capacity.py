"""The fluid programme against closed forms and a brute-force grid."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.errors import UsageError
from trimtab.experiments.scenario.build.cluster_arrays import CapacityResult, fluid_capacity_per_s


def assert_serves(result: CapacityResult, service, share, slots) -> None:
    """The allocation carries the whole stream, within the slots, and fills at least one group."""
    allocation = result.allocation_per_s
    np.testing.assert_allclose(allocation.sum(axis=1), result.rate_per_s * np.asarray(share), rtol=1e-9)
    busy = np.where(allocation > 0, service, 0.0) * allocation
    used = busy.sum(axis=0)
    assert (allocation >= 0).all()
    assert (used <= np.asarray(slots) * (1 + 1e-9)).all()


def test_one_class_uses_every_slot_at_its_own_speed():
    result = fluid_capacity_per_s([[2.0, 5.0, np.inf]], [1.0], [4, 10, 7])
    assert result.rate_per_s == pytest.approx(4 / 2 + 10 / 5)
    np.testing.assert_allclose(result.allocation_per_s, [[2.0, 2.0, 0.0]])


def test_one_group_serves_the_mean():
    result = fluid_capacity_per_s([[1.0], [3.0]], [0.25, 0.75], [10])
    assert result.rate_per_s == pytest.approx(10 / (0.25 * 1 + 0.75 * 3))


def test_related_machines_have_the_closed_form():
    size, speed, slots, share = np.array([1.0, 4.0]), np.array([1.0, 2.0, 5.0]), [3, 2, 1], [0.7, 0.3]
    service = size[:, None] / speed
    result = fluid_capacity_per_s(service, share, slots)
    assert result.rate_per_s == pytest.approx((3 * 1 + 2 * 2 + 1 * 5) / (0.7 * 1 + 0.3 * 4))
    assert_serves(result, service, share, slots)


def test_specialised_groups_serve_what_they_are_good_at():
    result = fluid_capacity_per_s([[1.0, 10.0], [10.0, 1.0]], [0.5, 0.5], [1, 1])
    assert result.rate_per_s == pytest.approx(2.0)
    np.testing.assert_allclose(result.allocation_per_s, np.eye(2), atol=1e-9)


def test_the_bottleneck_is_the_class_with_one_group():
    result = fluid_capacity_per_s([[1.0, 1.0], [np.inf, 4.0]], [0.5, 0.5], [100, 1])
    assert result.rate_per_s == pytest.approx(0.5)
    assert result.allocation_per_s[1, 0] == 0


def test_shares_need_not_sum_to_one():
    whole = fluid_capacity_per_s([[1.0, 2.0], [3.0, 1.0]], [0.5, 0.5], [2, 2])
    part = fluid_capacity_per_s([[1.0, 2.0], [3.0, 1.0], [np.inf, np.inf]], [0.25, 0.25, 0.0], [2, 2])
    assert part.rate_per_s == pytest.approx(2 * whole.rate_per_s)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e5])
def test_the_unit_of_time_only_scales_the_rate(scale):
    service = np.array([[1.0, 2.0, 9.0], [3.0, 1.0, 2.0]])
    reference = fluid_capacity_per_s(service, [0.6, 0.4], [2, 3, 1])
    scaled = fluid_capacity_per_s(service * scale, [0.6, 0.4], [2, 3, 1])
    assert scaled.rate_per_s * scale == pytest.approx(reference.rate_per_s, rel=1e-9)


@pytest.mark.parametrize("seed", range(8))
def test_no_split_on_a_grid_is_better_and_one_is_nearly_as_good(seed):
    rng = np.random.default_rng(seed)
    service = rng.lognormal(0, 1, (2, 3))
    service[rng.integers(2), rng.integers(3)] = np.inf
    share, slots = rng.dirichlet([2, 2]), rng.integers(1, 5, 3)
    result = fluid_capacity_per_s(service, share, slots)
    assert_serves(result, service, share, slots)
    best = best_rate_on_grid(service, share, slots, steps=60)
    assert best <= result.rate_per_s * (1 + 1e-9)
    assert best >= result.rate_per_s * 0.95


def best_rate_on_grid(service, share, slots, steps):
    splits = [
        np.array([a, b, steps - a - b]) / steps
        for a, b in itertools.product(range(steps + 1), repeat=2)
        if a + b <= steps
    ]
    per_class = []
    for row, weight in zip(service, share, strict=True):
        allowed = [s for s in splits if not (s[np.isinf(row)] > 0).any()]
        per_class.append(np.array([weight * np.where(s > 0, row, 0.0) * s for s in allowed]))
    first, second = per_class
    utilisation = ((first[:, None, :] + second[None, :, :]) / slots).max(axis=2)
    return 1 / utilisation.min()


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_more_slots_never_lower_the_rate(classes, groups, seed):
    rng = np.random.default_rng(seed)
    service, share = rng.lognormal(0, 1, (classes, groups)), rng.dirichlet(np.ones(classes))
    slots = rng.integers(1, 9, groups)
    more = slots + rng.integers(0, 3, groups)
    few, many = (fluid_capacity_per_s(service, share, s) for s in (slots, more))
    assert_serves(few, service, share, slots)
    assert many.rate_per_s >= few.rate_per_s * (1 - 1e-9)


def test_the_closed_form_does_not_import_the_solver():
    script = (
        "import sys; from trimtab.experiments.scenario.build.cluster_arrays import fluid_capacity_per_s as f;"
        "f([[1.0, 2.0], [2.0, 4.0]], [0.5, 0.5], [1, 2]); sys.exit('scipy.optimize' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@pytest.mark.parametrize(
    ("service", "share", "slots", "message"),
    [
        ([[1.0], [np.inf]], [0.5, 0.5], [1], r"share.*class 1"),
        ([[1.0, np.inf], [np.inf, 2.0]], [0.5, 0.5], [1, 0], r"share.*class 1"),
        ([[1.0]], [0.5, 0.5], [1], r"mean_service_s.*shape \(2, 1\)"),
        ([[0.0]], [1.0], [1], r"mean_service_s.*above zero"),
        ([[np.nan]], [1.0], [1], r"mean_service_s.*above zero"),
        ([[1.0]], [-1.0], [1], "share.*zero or more"),
        ([[1.0]], [0.0], [1], "share.*at least one"),
        ([[1.0]], [1.0], [-1], "slots.*zero or more"),
    ],
)
def test_bad_tables_are_named(service, share, slots, message):
    with pytest.raises(UsageError, match=message):
        fluid_capacity_per_s(service, share, slots)


def test_a_resource_binds_before_the_slots():
    """Ten slots but four cores of which each request takes two: two at a time, half a second each."""
    result = fluid_capacity_per_s([[0.5]], [1.0], [10], demand=[[2.0]], capacity=[[4.0]])
    assert result.rate_per_s == pytest.approx(4.0)


def test_complementary_demands_share_a_node_better_than_equal_ones():
    """Classes that take (3, 1) and (1, 3) of (4, 4): one of each at a time, so two seconds serve two."""
    result = fluid_capacity_per_s([[1.0], [1.0]], [1, 1], [9], demand=[[3, 1], [1, 3]], capacity=[[4, 4]])
    assert result.rate_per_s == pytest.approx(1.0)
    alone = fluid_capacity_per_s([[1.0]], [1.0], [9], demand=[[3, 1]], capacity=[[4, 4]])
    assert alone.rate_per_s == pytest.approx(4 / 3)


def test_a_group_without_the_resource_serves_nothing_of_the_class():
    result = fluid_capacity_per_s([[1.0, 1.0]], [1.0], [5, 5], demand=[[1.0]], capacity=[[0.0], [3.0]])
    assert result.rate_per_s == pytest.approx(3.0)
    np.testing.assert_allclose(result.allocation_per_s, [[0.0, 3.0]])
    with pytest.raises(UsageError, match="class 0"):
        fluid_capacity_per_s([[1.0]], [1.0], [5], demand=[[1.0]], capacity=[[0.0]])


@pytest.mark.parametrize("seed", range(4))
def test_with_resources_no_split_on_a_grid_is_better_and_one_is_nearly_as_good(seed):
    rng = np.random.default_rng(seed)
    service, share, slots = rng.lognormal(0, 1, (2, 2)), rng.dirichlet([2, 2]), rng.integers(2, 6, 2)
    demand, capacity = rng.uniform(0.2, 1, (2, 2)), rng.uniform(1, 2, (2, 2))
    result = fluid_capacity_per_s(service, share, slots, demand, capacity)
    best = 0.0
    for first, second in itertools.product(np.linspace(0, 1, 101), repeat=2):
        busy = service * share[:, None] * np.array([[first, 1 - first], [second, 1 - second]])
        used = np.concatenate([busy.sum(axis=0) / slots, (demand.T @ busy / capacity.T).ravel()])
        best = max(best, 1.0 / used.max())
    assert best <= result.rate_per_s * (1 + 1e-9)
    assert best >= result.rate_per_s * 0.97


def test_resource_tables_that_do_not_fit_are_refused():
    with pytest.raises(UsageError, match="demand"):
        fluid_capacity_per_s([[1.0]], [1.0], [5], demand=[[1.0, 2.0]], capacity=[[1.0]])
    with pytest.raises(UsageError, match="capacity"):
        fluid_capacity_per_s([[1.0]], [1.0], [5], demand=[[1.0]], capacity=[[np.nan]])
