"""The formulas of `forecast.queueing` against the simulator: the exact agree, the others are about right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.agreement import assert_agrees
from support.builders import cluster
from support.by_hand import asked
from support.mini_policies import Scripted
from support.stations import drawn, stream, times_s, waits_s
from trimtab.domain.options import OnRefusal, Options
from trimtab.domain.policy import Decider
from trimtab.domain.requests import Reason
from trimtab.engine.simulator import run
from trimtab.forecast import queueing as q

SERVERS, LOAD, SEEDS = 16, 0.9, range(6)


def test_as_many_are_late_in_mmc() -> None:
    station = q.mmc(4, 2.8, 1.0)
    runs = [times_s(stream(cluster(1, slots=4), 2.8, 150_000, seed)) for seed in range(12)]
    for deadline_s in (0.5, 2.0):
        late = [(times > deadline_s).mean() for times in runs]
        assert_agrees(late, q.late_frac(station, deadline_s))


def test_a_bounded_queue_loses_as_mmck() -> None:
    c, options = cluster(1, slots=3, queue_max=5), Options(on_refusal=OnRefusal.REJECT)
    runs = [stream(c, 2.8, 150_000, seed, options=options) for seed in range(12)]
    station = q.mmck(3, 8, 2.8, 1.0)
    assert_agrees(
        [(d.state.requests["reason"][15_000:] == Reason.REFUSED).mean() for d in runs], station.loss_frac
    )
    assert_agrees([np.nanmean(times_s(d)) for d in runs], station.time_s)


def lognormal(n: int, rng: np.random.Generator, scv: float = 2.0) -> np.ndarray:
    sigma = np.sqrt(np.log1p(scv))
    return rng.lognormal(-(sigma**2) / 2, sigma, n)


def gaps_or_services(kind: str, n: int, rng: np.random.Generator) -> np.ndarray:
    return lognormal(n, rng) if kind == "lognormal" else drawn(kind, n, rng)


SCV = {"constant": 0.0, "erlang-2": 0.5, "exponential": 1.0, "lognormal": 2.0, "hyper": 3.0}


def simulated(gaps: str, services: str) -> tuple[float, float]:
    """Mean wait and fraction that waits, of 16 servers at load 0.9 and services of mean 1."""
    wait_s, waits = [], []
    for seed in SEEDS:
        rng, n, c = np.random.default_rng(seed), 150_000, cluster(1, slots=SERVERS)
        arrival_s = np.cumsum(gaps_or_services(gaps, n, rng)) / (SERVERS * LOAD)
        r: Any = asked(c, arrival_s, gaps_or_services(services, n, rng))
        waited = waits_s(run(c, r, Options(), Decider.of(Scripted(), None), seed=seed, mode="compiled"))
        wait_s.append(waited.mean())
        waits.append((waited > 1e-9).mean())
    return float(np.mean(wait_s)), float(np.mean(waits))


CASES = [
    ("exponential", "constant"),
    ("exponential", "lognormal"),
    ("exponential", "hyper"),
    ("hyper", "lognormal"),
    ("constant", "exponential"),
    ("erlang-2", "erlang-2"),
]


@pytest.mark.parametrize(("gaps", "services"), CASES)
def test_two_moments_tell_the_wait_of_many_servers(gaps: str, services: str) -> None:
    wait_s, waits = simulated(gaps, services)
    demand = (SERVERS, SERVERS * LOAD, 1.0, SCV[services], SCV[gaps])
    whitt, crude = q.ggc(*demand), q.ggc(*demand, method="allen-cunneen")
    assert whitt.wait_s == pytest.approx(wait_s, rel=0.12)
    assert whitt.wait_frac == pytest.approx(waits, rel=0.2)
    assert crude.wait_s == pytest.approx(wait_s, rel=0.35)
    assert crude.wait_frac == pytest.approx(waits, rel=0.4)
