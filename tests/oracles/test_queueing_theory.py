"""The simulator against closed forms: every mean lies in its confidence interval, see `agreement`."""

from __future__ import annotations

import numpy as np
import pytest

from support.agreement import assert_agrees
from support.builders import cluster
from support.by_hand import asked, fault_table
from support.formulas import (
    breakdown_number,
    cobham_waits_s,
    erlang_b,
    erlang_c,
    mg1_wait_s,
    mmc_wait_s,
    mmck,
)
from support.mini_policies import Anywhere, ByPriority, Emptiest, Scripted
from support.stations import SCV, drawn, stream, times_s, waits_s
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import OnFailure, OnRefusal, Options
from trimtab.domain.policy import Decider, Policy
from trimtab.domain.requests import Reason
from trimtab.engine.driver import Driver
from trimtab.engine.loop import DONE

SEEDS = range(20)
LOAD = 0.7


@pytest.mark.parametrize("sizes", SCV)
def test_one_server_waits_as_pollaczek_and_khinchine_say(sizes: str) -> None:
    n = 300_000 if sizes == "hyper" else 100_000
    means = [waits_s(stream(cluster(1), LOAD, n, seed, sizes=sizes)).mean() for seed in SEEDS]
    assert_agrees(means, mg1_wait_s(LOAD, 1.0, SCV[sizes]))


def test_waits_in_mm1_are_exponential_beyond_zero() -> None:
    runs = [waits_s(stream(cluster(1), LOAD, 100_000, seed)) for seed in SEEDS]
    assert_agrees([(w > 0).mean() for w in runs], LOAD)
    assert_agrees([(w > 4.0).mean() for w in runs], LOAD * np.exp(-(1.0 - LOAD) * 4.0))


FOUR_SLOTS, FOUR_NODES = cluster(1, slots=4), cluster(4, queue_max=0)


@pytest.mark.parametrize(
    ("c", "policy"), [(FOUR_SLOTS, Scripted()), (FOUR_NODES, Emptiest())], ids=["node queue", "central queue"]
)
def test_many_servers_wait_as_erlang_c_says(c: Cluster, policy: Policy) -> None:
    runs = [waits_s(stream(c, 4 * LOAD, 100_000, seed, policy=policy)) for seed in SEEDS]
    assert_agrees([(w > 0).mean() for w in runs], erlang_c(4, 4 * LOAD))
    assert_agrees([w.mean() for w in runs], mmc_wait_s(4, 4 * LOAD, 1.0))


def test_random_splitting_makes_independent_single_servers() -> None:
    runs = [stream(cluster(10), 10 * LOAD, 120_000, seed, policy=Anywhere()) for seed in SEEDS]
    assert_agrees([waits_s(d).mean() for d in runs], mg1_wait_s(LOAD, 1.0, 1.0))


LOSS = [
    (Options(on_refusal=OnRefusal.REJECT), Reason.REFUSED),
    (Options(held_max=0), Reason.QUEUE_FULL),
]


@pytest.mark.parametrize("sizes", ["constant", "exponential", "hyper"])
@pytest.mark.parametrize(("options", "reason"), LOSS)
def test_loss_without_queues_is_erlang_b_whatever_the_sizes(
    options: Options, reason: Reason, sizes: str
) -> None:
    c = cluster(1, slots=5, queue_max=0)
    runs = [stream(c, 4.0, 50_000, seed, sizes=sizes, options=options) for seed in SEEDS]
    assert_agrees([(d.state.requests["reason"][5000:] == reason).mean() for d in runs], erlang_b(5, 4.0))


def test_bounded_queue_loses_and_waits_as_its_birth_death_chain() -> None:
    c, per_s = cluster(1, slots=2, queue_max=4), 1.8
    options = Options(on_refusal=OnRefusal.REJECT)
    runs = [waits_s(stream(c, per_s, 100_000, seed, options=options)) for seed in SEEDS]
    lost_frac, waiting = mmck(2, 6, per_s)
    assert_agrees([np.isnan(w).mean() for w in runs], lost_frac)
    assert_agrees([np.nanmean(w) for w in runs], waiting / (per_s * (1.0 - lost_frac)))  # Little's law


def test_priorities_wait_as_cobham_says() -> None:
    shares = [0.2, 0.3, 0.2]  # per second, least urgent first
    runs = [
        stream(cluster(1), sum(shares), 100_000, seed, order=ByPriority(), priorities=shares)
        for seed in SEEDS
    ]
    for priority, expected_s in enumerate(reversed(cobham_waits_s(shares[::-1], 1.0, 1.0))):
        means = [waits_s(d)[d.state.work["priority"][-len(waits_s(d)) :] == priority].mean() for d in runs]
        assert_agrees(means, expected_s)


@pytest.mark.parametrize("sizes", ["constant", pytest.param("exponential", marks=pytest.mark.full), "hyper"])
def test_transfers_share_a_link_as_processor_sharing_whatever_the_sizes(sizes: str) -> None:
    c = cluster(1, nic_gib_per_s=1.0)
    n = 200_000 if sizes == "hyper" else 100_000
    means = [times_s(stream(c, LOAD, n, seed, sizes=sizes, payload=True)).mean() for seed in SEEDS]
    assert_agrees(means, 1.0 / (1.0 - LOAD))


def test_a_server_that_breaks_down_holds_as_many_as_its_markov_chain() -> None:
    per_s, mtbf_s, mttr_s = 0.5, 20.0, 4.0
    faults = fault_table((0, 0, 0, mtbf_s, mttr_s, 0, 0, 0, 0, 0.0, 0))
    options = Options(on_failure=OnFailure.RESUME, faults=faults)
    means = [times_s(stream(cluster(1), per_s, 200_000, seed, options=options)).mean() for seed in SEEDS]
    assert_agrees(means, breakdown_number(per_s, 1.0, mtbf_s, mttr_s) / per_s)


def test_littles_law_holds_exactly_from_empty_to_empty() -> None:
    c, rng = cluster(3, slots=2), np.random.default_rng(5)
    arrival_s, size = np.cumsum(rng.exponential(0.2, 300)), drawn("exponential", 300, rng)
    r = asked(c, arrival_s, size, key=rng.integers(0, 3, 300))
    driver = Driver(c, r, Options(), Decider.of(Scripted()), mode="interpreted")
    area, code, number, since_s = 0.0, -1, 0, 0.0
    while code != DONE:
        code = driver.advance(max_steps=1)
        area += number * (driver.now_s - since_s)
        number, since_s = int(driver.state.counts["in_system"][0]), driver.now_s
    total_s = (driver.state.requests["finish_s"] - r.work["arrival_s"]).sum()
    assert area == pytest.approx(total_s, rel=1e-12)
