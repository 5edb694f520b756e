"""Parts of unlike size: by hand, by their definition, and what they gain where nodes differ in speed."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from support.builders import cluster
from support.by_hand import asked, played
from trimtab.compiled.kernel import interpreted
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Options
from trimtab.domain.policy import Decider
from trimtab.domain.requests import Requests
from trimtab.domain.view import Plan, empty_plan
from trimtab.engine.driver import Driver
from trimtab.engine.layout import part_frac
from trimtab.policies.data_aware.split_merge import SplitMerge, priced
from trimtab.policies.load_aware.least_expected_completion import LeastExpectedCompletion
from trimtab.policies.shared.sampling import together

frac = interpreted(part_frac)


class Halves(LeastExpectedCompletion):
    """Two parts, of these relative sizes."""

    plan_period_s = 1e9
    weight: tuple[float, ...] = ()

    def plan(self, view: Any, history: Any, waiting: Any, rollout: Any) -> Plan:
        weight = np.array([self.weight] if self.weight else np.zeros((0, 0)))
        return empty_plan()._replace(split_max=np.array([2]), part_weight=weight)


def of_weight(*weight: float) -> Halves:
    policy = Halves()
    object.__setattr__(policy, "weight", weight)
    return policy


def two_speeds(n: int = 2, fast: float = 2.0, fixed_s: float = 0.0) -> Cluster:
    """Nodes by turns of 1 and `fast` units a second."""
    return replace(cluster(n, types=2, fixed_s=fixed_s), unit_s=np.array([[1.0, 1.0 / fast]]))


@pytest.mark.parametrize(
    ("weight", "end_s"), [((), 3.0), ((2.0, 1.0), 2.0), ((1.0, 1.0), 3.0), ((5.0, 1.0), 2.5)]
)
def test_parts_by_speed_end_together(weight: tuple[float, ...], end_s: float) -> None:
    """Six images: 3 and 3 take 1.5 and 3 s, 4 and 2 take 2 s each, 5 and 1 take 2.5 and 1 s."""
    c = two_speeds()
    r = asked(c, [0.0], 6.0, parts_max=6)
    d = played(c, r, Options(join_s=np.zeros(1)), of_weight(*weight))
    assert d.state.requests["finish_s"][0] == pytest.approx(end_s)


def sizes(weight: list[float], images: int, count: int) -> list[float]:
    plan = empty_plan()._replace(part_weight=np.array([weight]))
    return [images * frac(plan, 0, images, count, i) for i in range(count)]


@pytest.mark.parametrize("seed", range(20))
def test_sizes_are_whole_images_near_their_weights(seed: int) -> None:
    rng = np.random.default_rng(seed)
    images = int(rng.integers(2, 17))
    count = int(rng.integers(2, min(images, 8) + 1))
    weight = np.sort(rng.uniform(0.2, 4.0, count))[::-1]
    made = np.array(sizes(weight.tolist(), images, count))
    np.testing.assert_allclose(made, np.round(made), atol=1e-9)
    assert made.sum() == pytest.approx(images)
    assert made.min() >= 1 - 1e-9
    exact = images * weight / weight.sum()
    if exact.min() >= 1.0:
        assert np.abs(made - exact).max() < 1.0 + 1e-9


@pytest.mark.parametrize(("images", "count"), list(itertools.product([3, 7, 8, 12], [2, 3])))
def test_equal_weights_are_as_even_as_none(images: int, count: int) -> None:
    plan = empty_plan()
    without = [images * frac(plan, 0, images, count, i) for i in range(count)]
    assert sorted(sizes([1.0] * count, images, count)) == pytest.approx(sorted(without))


def test_requests_of_more_parts_or_other_classes_than_weights_are_split_evenly() -> None:
    plan = empty_plan()._replace(part_weight=np.array([[3.0, 1.0]]))
    assert [frac(plan, 1, 4, 2, i) for i in range(2)] == [0.5, 0.5]
    assert [frac(plan, 0, 6, 3, i) for i in range(3)] == pytest.approx([1 / 3] * 3)
    assert [frac(plan, 0, 4, 2, i) for i in range(2)] == [0.75, 0.25]


def test_together_by_hand() -> None:
    zero = np.zeros(2)
    assert together(zero, np.array([1.0, 2.0]), 6.0).tolist() == [4.0, 2.0]
    assert together(np.array([0.0, 5.0]), np.ones(2), 4.0).tolist() == [4.0, 0.0]  # ends at 4, before 5
    assert together(np.array([0.0, 2.0]), np.ones(2), 4.0).tolist() == [3.0, 1.0]


@pytest.mark.parametrize("seed", range(10))
def test_no_other_sizes_end_earlier(seed: int) -> None:
    """Random shifts of work between two nodes, of which none lowers the latest end."""
    rng = np.random.default_rng(seed)
    fixed_s, unit_s = rng.uniform(0.0, 3.0, 4), rng.uniform(0.2, 2.0, 4)
    best = together(fixed_s, unit_s, 5.0)
    assert best.sum() == pytest.approx(5.0)

    def end_s(of: np.ndarray) -> float:
        return float(np.where(of > 0.0, fixed_s + unit_s * of, 0.0).max())

    for _ in range(300):
        other = rng.dirichlet(np.ones(4)) * 5.0 * (rng.random(4) < 0.8)
        if other.sum() > 0.0:
            assert end_s(best) <= end_s(other * 5.0 / other.sum()) + 1e-9


def after_all(c: Cluster, r: Requests, policy: SplitMerge) -> Driver:
    """All have arrived, and nodes are empty."""
    d = Driver(c, r, Options(), Decider.of(policy), mode="interpreted")
    d.state.counts["arrived"], d.state.counts["now_s"] = len(r), r.work["arrival_s"][-1]
    return d


def planned(c: Cluster, r: Requests, policy: SplitMerge) -> Plan:
    d = after_all(c, r, policy)
    plan = policy.plan(d.view(), d.history(), None, None)
    assert plan is not None
    return plan


def two_classes(load: float, seed: int = 1) -> tuple[Cluster, Requests]:
    """Class 0: parts pay a second each again, a whole request takes 2. Class 1: parts pay almost nothing."""
    c = cluster(10, classes=2)
    c = replace(c, fixed_s=np.array([[1.0], [0.02]]), unit_s=np.array([[0.25], [1.0]]))
    rng, n = np.random.default_rng(seed), 200
    arrival_s = np.cumsum(rng.exponential(3.0 / (10 * load), n))
    return c, asked(c, arrival_s.tolist(), 4.0, class_idx=np.arange(n) % 2, parts_max=4)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_each_class_has_the_number_of_parts_that_costs_least_together(load: float) -> None:
    """Against all pairs of numbers, priced by the policy's own formula."""
    policy = SplitMerge()
    c, r = two_classes(load)
    chosen = planned(c, r, policy).split_max
    view = after_all(c, r, policy).view()
    recent, pairs = priced(view, r.work), itertools.product(range(1, 5), repeat=2)
    cost_s = {pair: policy.mean_s(recent, 10, np.array(pair)) for pair in pairs}
    assert cost_s[tuple(chosen.tolist())] == pytest.approx(min(cost_s.values()))


def test_a_class_that_gains_is_split_beside_one_that_does_not() -> None:
    assert planned(*two_classes(0.8), SplitMerge()).split_max.tolist() == [1, 4]


def test_by_class_is_faster_than_any_one_number() -> None:
    c, r = two_classes(0.8)

    def mean_s(policy: LeastExpectedCompletion | SplitMerge) -> float:
        d = played(c, r, Options(join_s=np.zeros(2)), policy)
        return float((d.state.requests["finish_s"][: len(r)] - r.work["arrival_s"]).mean())

    class Fixed(SplitMerge):
        """The same number for both classes."""

        def plan(self, view: Any, history: Any, waiting: Any, rollout: Any) -> Plan:
            return empty_plan()._replace(split_max=np.full(2, self.batch_max))

    fixed = min(mean_s(Fixed(batch_max=k)) for k in range(1, 5))
    assert mean_s(SplitMerge(plan_period_s=2.0)) < 0.95 * fixed


def test_parts_are_sized_by_the_speeds_of_the_fastest_free_slots() -> None:
    """Two nodes of each speed at a low load: four parts, 2 : 2 : 1 : 1. At equal speeds no weights."""
    c = two_speeds(4)
    r = asked(c, np.arange(0.0, 5000.0, 100.0).tolist(), 12.0, parts_max=4)
    plan = planned(c, r, SplitMerge())
    assert plan.split_max.tolist() == [4]
    np.testing.assert_allclose(plan.part_weight, [[4.0, 4.0, 2.0, 2.0]])
    assert planned(cluster(4), r, SplitMerge()).part_weight.size == 0


def test_parts_by_speed_gain_where_nodes_differ() -> None:
    c = two_speeds(6, fast=3.0, fixed_s=0.5)
    arrival_s = np.cumsum(np.random.default_rng(2).exponential(4.0, 150)).tolist()
    r = asked(c, arrival_s, 12.0, parts_max=12)

    class Equal(SplitMerge):
        """The same numbers, equal parts."""

        def plan(self, view: Any, history: Any, waiting: Any, rollout: Any) -> Plan | None:
            plan = super().plan(view, history, waiting, rollout)
            return None if plan is None else plan._replace(part_weight=np.zeros((0, 0)))

    means = []
    for policy in (SplitMerge(), Equal()):
        d = played(c, r, Options(join_s=np.zeros(1)), policy)
        means.append(float((d.state.requests["finish_s"][: len(r)] - r.work["arrival_s"]).mean()))
    assert means[0] < 0.95 * means[1]
