"""The search finds what a test of every mix finds, with few tests."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from trimtab.errors import UsageError
from trimtab.experiments.serving.fleet_search import Mix, cheapest_mix
from trimtab.experiments.serving.objectives import Objective, objectives_of


def searched(  # type: ignore[no-untyped-def]
    prices, is_met, nodes_max, usd_max=np.inf, is_over=lambda: False, power=None, least=0.0, unpaid=None,
    directions=None, pools=(),
):  # fmt: skip
    of_type = np.ones(len(prices)) if power is None else power
    tested: list[Mix] = []

    def test(mix: Mix) -> bool:
        tested.append(mix)
        return bool(is_met(mix))

    found = cheapest_mix(
        prices,
        test,
        lambda mixes: mixes @ of_type >= least,
        lambda mixes: (mixes @ of_type).astype(float),
        least,
        unpaid=unpaid or (lambda mixes: np.zeros(len(mixes))),
        unpaid_max=max(prices),
        nodes_max=nodes_max,
        usd_max=usd_max,
        is_over=is_over,
        directions=directions or [tuple(int(t == u) for u in range(len(prices))) for t in range(len(prices))],
        pools=pools,
    )
    return found, tested


@pytest.mark.parametrize("seed", range(25))
def test_brute_force_finds_no_cheaper_mix(seed: int) -> None:
    rng = np.random.default_rng(seed)
    types, nodes_max = int(rng.integers(1, 4)), 7
    prices, power = rng.uniform(0.5, 4.0, types).round(2), rng.uniform(0.3, 3.0, types)
    bend, needed = rng.uniform(0.4, 1.0, types), float(rng.uniform(1.0, 9.0))

    def is_met(mix: Mix) -> bool:  # any function that grows with every count
        return float(np.sum(power * np.array(mix) ** bend)) >= needed

    def unpaid(mixes):  # type: ignore[no-untyped-def]  # one node of the first type, on every second seed
        return np.minimum(mixes[:, 0], seed % 2) * prices[0]

    def cost(mix: Mix) -> float:
        return float(np.dot(prices, mix) - unpaid(np.array([mix]))[0])

    every = [m for m in itertools.product(range(nodes_max + 1), repeat=types) if 0 < sum(m) <= nodes_max]
    least = min((cost(m) for m in every if is_met(m)), default=None)
    found, tested = searched(prices, is_met, nodes_max, unpaid=unpaid)
    assert found.is_proven
    if least is None:
        assert found.best is None
    else:
        assert cost(found.best) == pytest.approx(least)
        assert is_met(found.best)
    assert len(tested) <= len(every) + 3 * types


def test_most_mixes_need_no_test() -> None:
    prices, power = [1.0, 1.9, 3.7, 0.6], np.array([1.0, 2.1, 4.3, 0.5])
    # A bound that is 10 % off still spares nearly all of the 135,750 mixes of up to 40 nodes.
    found, tested = searched(prices, lambda mix: np.dot(power, mix) >= 40.0, 40, power=power, least=36.0)
    assert found.is_proven
    best = min(  # 40 / 4.3 nodes of the third type, rounded by the others
        np.dot(prices, m) for m in itertools.product(range(3), range(3), range(8, 11), range(3))
        if np.dot(power, m) >= 40.0
    )  # fmt: skip
    assert np.dot(prices, found.best) == pytest.approx(best)
    assert len(tested) < 600


def test_a_budget_and_a_time_limit_are_kept() -> None:
    found, _ = searched([2.0], lambda mix: mix[0] >= 4, 9, usd_max=7.0)
    assert (found.best, found.is_proven) == (None, True)
    found, _ = searched([2.0], lambda mix: mix[0] >= 4, 9, usd_max=8.0)
    assert found.best == (4,)
    stopped, tested = searched([1.0, 1.1], lambda mix: sum(mix) >= 4, 9, is_over=lambda: True)
    assert not stopped.is_proven
    assert stopped.untested > 0
    assert not tested


def test_objectives_as_texts() -> None:
    assert objectives_of("completion_p99<8s, wait_p99<=250ms,slo_attained>99%") == (
        Objective("completion_p99_s", 8.0),
        Objective("queueing_p99_s", 0.25),
        Objective("slo_attained_frac", 0.99, is_least=True),
    )
    assert Objective("completion_p99_s", 8.0).overshoot({"completion_p99_s": 10.0}) == pytest.approx(0.25)
    assert Objective("slo_attained_frac", 0.99, True).overshoot({"slo_attained_frac": 0.995}) < 0
    assert Objective("completion_p99_s", 8.0).overshoot({"completion_p99_s": float("nan")}) == float("inf")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("completion_p99", "such as completion_p99_s<60"),
        ("completion_p98<8s", "perhaps 'completion_p99_s'"),
        ("completion_p99>8s", "wrong way round"),
        ("slo_attained<0.9", "wrong way round"),
        ("completion_p99<0s", "a value above 0"),
        ("completion_p99<1e", "no number"),
        ("usd_per_1k<2", "--max-usd-per-hour for cost"),
    ],
)
def test_texts_that_are_no_objectives(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        objectives_of(text)


def test_pairs_are_lowered_to_what_each_pool_needs() -> None:
    """One type that reads prompts, two that make tokens: 3 of the first, and 10 of the others."""

    def is_met(mix: Mix) -> bool:
        return mix[0] >= 3 and 2 * mix[1] + mix[2] >= 10

    found = cheapest_mix(
        (5.0, 3.0, 1.0),
        is_met,
        lambda mixes: (mixes[:, 0] > 0) & (mixes[:, 1] + mixes[:, 2] > 0),
        lambda mixes: mixes.sum(axis=1).astype(float),
        0.0,
        unpaid=lambda mixes: np.zeros(len(mixes)),
        unpaid_max=0.0,
        nodes_max=20,
        usd_max=np.inf,
        is_over=lambda: False,
        directions=[(1, 1, 0), (1, 0, 1)],
    )
    assert (found.best, found.is_proven) == ((3, 0, 10), True)


@pytest.mark.parametrize("seed", range(25))
def test_pools_alone_rule_out_only_what_brute_force_does(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pools, nodes_max = ([0, 1], [2, 3]) if seed % 2 else ([0, 1], [1, 2]), 6
    types = 4 if seed % 2 else 3
    prices, power = rng.uniform(0.5, 4.0, types).round(2), rng.uniform(0.3, 3.0, types)
    needed, in_all = rng.uniform(0.5, 5.0, 2), float(rng.uniform(2.0, 10.0))

    def is_met(mix: Mix) -> bool:
        got = power * np.array(mix) ** 0.9
        return all(got[p].sum() >= n for p, n in zip(pools, needed, strict=True)) and got.sum() >= in_all

    def cost(mix: Mix) -> float:
        return float(np.dot(prices, mix))

    every = [m for m in itertools.product(range(nodes_max + 1), repeat=types) if 0 < sum(m) <= nodes_max]
    least = min((cost(m) for m in every if is_met(m)), default=None)
    pairs = {tuple(int(t in pair) for t in range(types)) for pair in itertools.product(*pools)}
    found, _ = searched(prices, is_met, nodes_max, directions=sorted(pairs), pools=pools)
    assert found.is_proven
    assert (least is None) == (found.best is None)
    if least is not None:
        assert is_met(found.best)
        assert cost(found.best) == pytest.approx(least)


def test_a_test_of_a_pool_spares_those_of_its_mixes() -> None:
    prices, power = [4.0, 1.3, 4.1, 1.2], np.array([3.0, 1.0, 3.2, 0.8])

    def is_met(mix: Mix) -> bool:
        got = power * np.array(mix)
        return bool(got[:2].sum() >= 9.5 and got[2:].sum() >= 12.3)

    pairs = [(1, 0, 1, 0), (1, 0, 0, 1), (0, 1, 1, 0), (0, 1, 0, 1)]
    alone, tested = searched(prices, is_met, 40, directions=pairs, pools=([0, 1], [2, 3]))
    plain, more = searched(prices, is_met, 40, directions=pairs)
    assert alone.is_proven
    assert plain.is_proven
    assert np.dot(prices, alone.best) == pytest.approx(np.dot(prices, plain.best))
    assert 2 * len(tested) < len(more)


def test_a_pool_that_was_enough_stays_so() -> None:
    """A node of the first type beside others of its pool harms: the pool of the second alone is kept."""

    def is_met(mix: Mix) -> bool:
        return mix[2] >= 2 and (mix[0] >= 4 or (mix[0] == 0 and mix[1] >= 5))

    found, _ = searched([3.0, 1.0, 2.0], is_met, 12, directions=[(1, 0, 1), (0, 1, 1)], pools=([0, 1], [2]))
    assert found.best == (0, 5, 2)
