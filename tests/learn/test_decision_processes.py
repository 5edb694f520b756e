"""The decision processes against closed forms, known policies and brute force, not through their tables."""

from __future__ import annotations

import itertools
from collections import Counter
from math import factorial

import numpy as np
import pytest
from numpy.typing import NDArray

from trimtab.errors import UsageError
from trimtab.learn.oracles.decision_process import DecisionProcess
from trimtab.learn.oracles.oracle_env import OracleEnv
from trimtab.learn.oracles.queueing_problems import two_class_admission, two_queues, unequal_servers


def stationary(moves: Counter[tuple[tuple[int, ...], tuple[int, ...]]]) -> dict[tuple[int, ...], float]:
    """The distribution of a chain in continuous time, from its rates, by least squares."""
    states = sorted({state for move in moves for state in move})
    number = {state: i for i, state in enumerate(states)}
    rates = np.zeros((len(states), len(states)))
    for (a, b), rate in moves.items():
        rates[number[a], number[b]] += rate
    balance = np.vstack([(rates - np.diag(rates.sum(axis=1))).T, np.ones(len(states))])
    shares = np.linalg.lstsq(balance, np.eye(len(states) + 1)[-1], rcond=None)[0]
    return dict(zip(states, shares.tolist(), strict=True))


def requests_with_threshold(threshold: int, arrival: float, fast: float, slow: float, longest: int) -> float:
    """Requests in a system whose slow server starts only when the queue is longer than `threshold`.

    Written apart from the process: states are (requests but for the slow server's, slow server busy).
    """
    moves: Counter[tuple[tuple[int, ...], tuple[int, ...]]] = Counter()

    def settled(n: int, busy: int) -> tuple[int, int]:
        return (n - 1, 1) if n - 1 > threshold and not busy else (n, busy)

    for n, busy in itertools.product(range(longest + 2), (0, 1)):
        if settled(n, busy) != (n, busy):
            continue
        if n <= longest:
            moves[(n, busy), settled(n + 1, busy)] += arrival
        if n:
            moves[(n, busy), settled(n - 1, busy)] += fast
        if busy:
            moves[(n, 1), settled(n, 0)] += slow
    return sum(share * (n + busy) for (n, busy), share in stationary(moves).items())


def state_actions(process: DecisionProcess, actions: NDArray[np.int64]) -> dict[tuple[int, ...], int]:
    return {tuple(state): int(a) for state, a in zip(process.states.tolist(), actions, strict=True)}


def test_the_slow_server_waits_for_a_threshold_and_no_other_threshold_is_better() -> None:
    process = unequal_servers(0.8, 1.0, 0.15, longest=20)
    best = process.optimum()
    taken = state_actions(process, best.actions)
    assert all(taken[q, 0, busy] == 0 for q in range(1, 21) for busy in (0, 1))  # the fast server never idles
    starts = [taken[q, 1, 0] == 1 for q in range(15)]  # near the end of the queue, losses come into it
    assert starts == sorted(starts)
    assert starts.index(True) == 3
    costs = [requests_with_threshold(m, 0.8, 1.0, 0.15, 20) for m in range(12)]
    assert int(np.argmin(costs)) == 2
    assert best.average_cost == pytest.approx(min(costs), rel=1e-3)


def test_a_server_that_never_ends_is_not_used_and_leaves_mm1() -> None:
    process = unequal_servers(0.5, 1.0, 0.02, longest=30)
    best = process.optimum()
    assert best.average_cost == pytest.approx(0.5 / (1 - 0.5), rel=1e-3)
    taken = state_actions(process, best.actions)
    assert {taken[q, 1, 0] for q in range(1, 20)} == {2}


def test_equal_servers_are_mm2() -> None:
    process = unequal_servers(1.2, 1.0, 1.0, longest=60)
    rho = 0.6
    assert process.optimum().average_cost == pytest.approx(2 * rho / (1 - rho**2), rel=1e-4)


def test_admission_keeps_slots_for_the_dear_class_and_no_other_number_is_better() -> None:
    arrivals, losses, slots = (1.0, 3.0), (8.0, 1.0), 4
    process = two_class_admission(arrivals, losses, slots)
    best = process.optimum()
    taken = state_actions(process, best.actions)
    assert all(taken[busy, 1] == 0 for busy in range(slots))

    def cost(cheap_below: int) -> float:
        """Losses per second, from a birth-death chain."""
        weights = [1.0]
        for busy in range(slots):
            weights.append(weights[-1] * (arrivals[0] + arrivals[1] * (busy < cheap_below)) / (busy + 1))
        refused = [
            arrivals[0] * losses[0] * (b == slots) + arrivals[1] * losses[1] * (b >= cheap_below)
            for b in range(slots + 1)
        ]
        return float(np.dot(weights, refused) / np.sum(weights))

    costs = [cost(below) / (sum(arrivals) + slots) for below in range(slots + 1)]
    assert best.average_cost == pytest.approx(min(costs), rel=1e-6)
    assert [taken[busy, 2] == 0 for busy in range(slots)].index(False) == int(np.argmin(costs))


def test_taking_all_of_one_class_is_erlangs_loss() -> None:
    process = two_class_admission((3.0, 0.0), (1.0, 1.0), slots=5)
    blocked = 3.0**5 / factorial(5) / sum(3.0**k / factorial(k) for k in range(6))
    assert process.optimum().average_cost == pytest.approx(3.0 * blocked / 8.0, rel=1e-6)


def test_equal_queues_are_joined_where_they_are_shorter() -> None:
    process = two_queues(1.5, (1.0, 1.0), longest=15)
    taken = state_actions(process, process.optimum().actions)
    for first, second in itertools.permutations(range(13), 2):  # apart from where queues are full
        assert taken[first, second, 1] == int(first > second)


def test_the_curve_of_unequal_queues_switches_once() -> None:
    process = two_queues()
    taken = state_actions(process, process.optimum().actions)
    for first in range(10):
        choices = [taken[first, second, 1] for second in range(10)]
        assert choices == sorted(choices, reverse=True)


def test_a_second_queue_without_a_server_leaves_mm1() -> None:
    process = two_queues(0.5, (1.0, 0.02), longest=20)
    assert process.optimum().average_cost == pytest.approx(1.0, rel=2e-3)


@pytest.mark.parametrize(
    "process", [unequal_servers(), two_class_admission(), two_queues()], ids=lambda p: p.name
)
def test_the_cost_of_the_optimal_policy_is_the_optimum(process: DecisionProcess) -> None:
    best = process.optimum()
    assert process.average_cost(best.actions) == pytest.approx(best.average_cost, rel=1e-6)


def test_a_simulation_costs_what_the_distribution_says() -> None:
    process = two_queues()
    first = process.allowed.argmax(axis=1)
    env = OracleEnv(process, 500, "index")
    states, _ = env.reset(seed=3)
    table = np.zeros(env.single_observation_space.n, np.int64)
    table[env.observations] = first
    costs = []
    for _ in range(3_000):
        states, rewards, *_ = env.step(table[states])
        costs.append(-rewards.mean())
    assert np.mean(costs[500:]) == pytest.approx(process.average_cost(first), rel=0.02)


def test_forbidden_actions_are_refused_by_name() -> None:
    process = unequal_servers()
    with pytest.raises(UsageError, match=r"unequal servers: action 0 in state .*'queue': 0"):
        process.average_cost(np.zeros(len(process.states), np.int64))
    env = OracleEnv(process, 4)
    env.reset(seed=0)
    with pytest.raises(UsageError, match=r"copy \d: unequal servers: an action that is not allowed"):
        env.step(np.where(env.action_masks()[:, 0], 2, 0))


def test_observations_of_the_three_forms() -> None:
    process = two_queues()
    assert OracleEnv(process, 2, "rows").single_observation_space.shape == (2, 3)
    assert OracleEnv(process, 2, "flat").single_observation_space.shape == (3,)
    assert OracleEnv(process, 2, "index").single_observation_space.n == len(process.states)
    assert OracleEnv(process, 2, "index", first_only=True).single_observation_space.n == 11 * 2
