"""Published results on choosing among many servers: the power of two choices, and the harm of old news."""

from __future__ import annotations

import numpy as np
import pytest

from support.agreement import assert_agrees
from support.builders import cluster
from support.by_hand import asked
from support.formulas import supermarket_tail, supermarket_time
from support.mini_policies import Anywhere, Emptiest, TwoChoices
from support.stations import drawn, stream, times_s
from trimtab.domain.options import Options
from trimtab.domain.policy import Decider, Policy
from trimtab.engine.driver import Driver

SEEDS = range(10)
SERVERS = 1000
LIMIT_BIAS = 0.005  # a thousand servers are not infinitely many


@pytest.mark.parametrize("load", [0.7, pytest.param(0.9, marks=pytest.mark.full)])
def test_two_choices_take_as_long_as_the_mean_field_says(load: float) -> None:
    c = cluster(SERVERS)
    runs = [stream(c, load * SERVERS, 200_000, seed, policy=TwoChoices()) for seed in SEEDS]
    means = [times_s(d).mean() for d in runs]
    assert_agrees(means, supermarket_time(load, 2), bias_frac=LIMIT_BIAS)


def _in_flight(seed: int, load: float) -> np.ndarray:
    """Requests on each server at ten moments, ten service times apart."""
    rng, c = np.random.default_rng(seed), cluster(SERVERS)
    n = int(150 * load * SERVERS)
    r = asked(c, np.cumsum(rng.exponential(1 / (load * SERVERS), n)), drawn("exponential", n, rng))
    driver = Driver(c, r, Options(), Decider.of(TwoChoices()), seed=seed, mode="compiled")
    moments = []
    for time_s in range(50, 150, 10):
        driver.advance(float(time_s))
        moments.append(driver.state.nodes["in_flight"].copy())
    return np.array(moments)


def test_queues_under_two_choices_have_the_doubly_exponential_tail() -> None:
    load = 0.9
    lengths = [_in_flight(seed, load) for seed in range(25)]
    for length in (1, 2, 3):
        samples = [(x >= length).mean() for x in lengths]
        assert_agrees(samples, supermarket_tail(load, 2, length), bias_frac=2 * LIMIT_BIAS)


def _p99_s(policy: Policy, options: Options) -> float:
    c = cluster(50)
    return float(np.quantile(times_s(stream(c, 45.0, 100_000, 1, policy=policy, options=options)), 0.99))


def test_old_news_make_a_herd() -> None:
    """With old information, choosing the best of all is worse than two choices, and worse than chance.

    Mitzenmacher, "How useful is old information?", IEEE TPDS 2000, §4. Fifty dispatchers, so that what each
    knows of its own doings is a small part of the truth.
    """
    stale = Options(telemetry_period_s=5.0, telemetry_delay_s=1.0, dispatchers=50)
    fresh = Options(dispatchers=50)
    assert _p99_s(Emptiest(), fresh) < _p99_s(TwoChoices(), fresh) < _p99_s(Anywhere(), fresh)
    herd_s = _p99_s(Emptiest(), stale)
    assert herd_s > 4.0 * _p99_s(TwoChoices(), stale)
    assert herd_s > _p99_s(Anywhere(), stale)
    assert _p99_s(Anywhere(), stale) == _p99_s(Anywhere(), fresh)  # chance needs no news


def test_old_news_swing_the_load_of_every_node() -> None:
    def spread(policy: Policy) -> float:
        c = cluster(50)
        rng = np.random.default_rng(2)
        n = 20_000
        r = asked(c, np.cumsum(rng.exponential(1 / 45.0, n)), drawn("exponential", n, rng))
        options = Options(telemetry_period_s=5.0, dispatchers=50)
        driver = Driver(c, r, options, Decider.of(policy), mode="compiled")
        variances = []
        for time_s in range(100, 400, 7):
            driver.advance(float(time_s))
            variances.append(driver.state.nodes["in_flight"].var())
        return float(np.mean(variances))

    assert spread(Emptiest()) > 3.0 * spread(TwoChoices())
