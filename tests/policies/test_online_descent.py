"""Numbers learned in rollouts: on functions whose least is known, and beside rules of equal numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from scipy.linalg import hadamard

from support.builders import cluster, requests
from support.dispatch_by_hand import Desk
from trimtab.domain.options import Options
from trimtab.domain.planning import History, Variant
from trimtab.domain.policy import Decider
from trimtab.domain.view import Plan, View, empty_plan, new_work
from trimtab.engine.driver import Driver
from trimtab.policies import find
from trimtab.policies.hybrid.hybrid_optimise import HybridOptimise
from trimtab.policies.hybrid.hybrid_rules import HybridRules
from trimtab.policies.optimising.dual_price import DualPrice
from trimtab.policies.shared.online_descent import losses, signs

SERVICES = np.random.default_rng(3).exponential(1.0, 400)


class Simulated:
    """A rollout in which a plan stretches all completions by the exponential of its loss."""

    declared = None
    stages_per_run = 1.0

    def __init__(self, loss: Callable[[Plan], float]) -> None:
        self._loss = loss

    def __call__(
        self, variants: Sequence[Variant], future: Any, service_cv: float = 0.0, s_per_usd: float = 0.0
    ) -> Any:
        return np.outer([math.exp(self._loss(v.plan)) for v in variants], np.resize(SERVICES, len(future)))


def view_of(types: int = 2) -> View:
    c = cluster(4, types=types)
    return Driver(c, requests(c, 1), Options(), Decider.of(DualPrice()), mode="interpreted").view()


def past(n: int, plan: Plan) -> History:
    """So many arrivals, ten a second, up to now."""
    work = new_work(n)
    work["serial"], work["arrival_s"], work["units"], work["deadline_s"] = (
        np.arange(n),
        np.arange(n) / 10,
        1.0,
        np.inf,
    )
    work["model_idx"] = work["adapter_idx"] = -1
    nowhere = np.full(n, -1, np.int32)
    return History(work, np.full(n, np.nan), nowhere, nowhere >= 0, plan)


def followed(policy: Any, loss: Callable[[Plan], float] | None, steps: int = 120) -> Plan:
    """The plan after so many plans, with 150 requests between them."""
    plan, view = empty_plan(), view_of()
    for k in range(1, steps + 1):
        view.context.now_s = 15.0 * k
        rollout = None if loss is None else Simulated(loss)
        plan = policy.plan(view, past(150 * k, plan), new_work(0), rollout) or plan
    return plan


@pytest.mark.parametrize("numbers", [1, 2, 3, 4, 7, 9])
def test_directions_are_those_of_a_hadamard_matrix(numbers: int) -> None:
    rows = 1 << numbers.bit_length()
    found = np.array([signs(step, numbers) for step in range(rows, 2 * rows)])
    np.testing.assert_array_equal(found, hadamard(rows)[:, 1 : numbers + 1])


def test_the_loss_is_of_the_mean_and_of_the_longest_fiftieth() -> None:
    completion_s = np.array([[*[1.0] * 98, 3.0, 5.0], [*[2.0] * 98, np.nan, 2.0]])
    found = losses(completion_s, 0.5)
    assert found[0] == pytest.approx(math.log(1.06) + 0.5 * math.log(4.0))
    assert found[1] == pytest.approx(math.log(2.08) + 0.5 * math.log(6.0))  # the one not served took 2 × 5 s


@pytest.mark.parametrize(("least", "found"), [(2.0, 2.0), (5.0, 5.0), (40.0, 6.0), (0.1, 1.5)])
def test_a_number_is_found_within_its_bounds(least: float, found: float) -> None:
    """Of a parabola over the logarithm of `w_load`; from 3 up to twice that and down to half."""
    plan = followed(HybridRules(), lambda plan: math.log(plan.params[1] / least) ** 2)
    assert plan.params[1] == pytest.approx(found, rel=0.06)
    assert plan.params[0] == HybridRules().ageing


def test_numbers_that_do_no_better_are_not_used() -> None:
    plan = followed(HybridRules(), lambda plan: abs(math.log(plan.params[1] / 3.0)), steps=20)
    assert tuple(plan.params[:4]) == HybridRules().weights


def test_nothing_is_learned_without_rollouts_or_news() -> None:
    view, rule = view_of(), HybridRules()
    assert rule.plan(view, past(400, empty_plan()), new_work(0), None) is None
    rollout = Simulated(lambda plan: float(plan.params[1]))
    plan = rule.plan(view, past(400, empty_plan()), new_work(0), rollout)
    assert plan is not None
    assert rule.plan(view, past(549, plan), new_work(0), rollout) is None
    assert rule.plan(view, past(550, plan), new_work(0), rollout) is not None


@pytest.mark.parametrize("nodes", [3, 80])  # with an index of waits, and without
def test_the_numbers_of_a_plan_count_as_parameters_of_the_rule(nodes: int) -> None:
    given = "ageing=0.3,w_load=5,w_waste=2.5,patient=3"
    c = cluster(nodes, types=3, speeds=[1, 2, 4], models=1, load_s=8.0)
    learned, rule = Desk(c, HybridRules()), Desk(c, find(f"late-binding({given})")[0])
    learned.follow(empty_plan()._replace(params=np.array([0.3, 5.0, 2.5, 3.0])))
    for held in (0, 2, 3, 50):
        told = []
        for desk in (learned, rule):
            desk.work["units"], desk.work["model_idx"], desk.work["estimate_s"] = 4.0, 0, 1.0
            desk.state.resident[:, 0] = np.arange(nodes) % 2
            desk.set(2, in_flight=1, running=1, backlog_s=0.1)
            desk.state.contexts["n_held"] = held
            desk.at(9.0)
            found = desk.decide()
            told.append((found, desk.score() if found else 0.0))
        assert told[0] == told[1]


def test_prices_are_corrected_by_type_within_the_bound() -> None:
    """The loss falls with the price of the first type's nodes, and rises with that of the second."""
    policy = HybridOptimise(bound=3.0)
    plan = followed(policy, lambda plan: 0.2 * float(plan.price[1, 0] - plan.price[0, 0]), steps=150)
    learned, planned = plan.price.T
    assert planned.min() > 0.0  # ten a second is more than the nodes can serve
    np.testing.assert_allclose(learned / planned, [3.0, 1.0 / 3.0, 3.0, 1.0 / 3.0], rtol=0.05)


def test_without_rollouts_prices_are_those_of_the_optimiser() -> None:
    plan = followed(HybridOptimise(gain=0.0), None, steps=3)
    np.testing.assert_array_equal(plan.price[:, :1], followed(DualPrice(), None, steps=3).price)
