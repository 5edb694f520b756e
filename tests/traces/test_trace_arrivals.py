"""Arrival processes against their formulas. Seeds are fixed: a failure is a wrong process, not bad luck."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError
from scipy import stats

from trimtab.traces import ArrivalSpec
from trimtab.traces.generators import arrivals_diurnal, arrivals_gamma, arrivals_mmpp, arrivals_poisson
from trimtab.traces.summary import count_arrivals

N = 200_000
ADAPTER: TypeAdapter[ArrivalSpec] = TypeAdapter(ArrivalSpec)

SPECS = [
    {"process": "poisson", "rate_per_s": 4.0},
    {"process": "gamma", "rate_per_s": 4.0, "cv": 2.5},
    {"process": "mmpp", "rates_per_s": [1.0, 20.0], "sojourns_s": [30.0, 10.0]},
    {"process": "mmpp", "rates_per_s": [0.0, 4.0, 11.0], "sojourns_s": [5.0, 10.0, 5.0]},
    {"process": "diurnal", "rate_per_s": 4.0, "peak_to_trough": 6.0, "period_s": 500.0},
]


def rng() -> np.random.Generator:
    return np.random.default_rng(20_261_121)


def mmpp_dispersion(rates: tuple[float, float], sojourns: tuple[float, float], window_s: float) -> float:
    """Index of dispersion of counts of a stationary 2-state MMPP (Fischer and Meier-Hellstern 1993, §2.3)."""
    (l1, l2), (r1, r2) = rates, (1 / sojourns[0], 1 / sojourns[1])
    scale = 2 * (l1 - l2) ** 2 * r1 * r2 / ((r1 + r2) ** 2 * (l1 * r2 + l2 * r1))
    decay = (1 - np.exp(-(r1 + r2) * window_s)) / ((r1 + r2) * window_s)
    return float(1 + scale * (1 - decay))


@pytest.mark.parametrize("spec", SPECS)
def test_times_increase_from_zero_on_at_the_stated_rate(spec: dict[str, object]) -> None:
    process = ADAPTER.validate_python(spec)
    arrival_s = process.draw(rng(), N)
    assert arrival_s.shape == (N,)
    assert arrival_s[0] >= 0
    assert (np.diff(arrival_s) >= 0).all()
    assert N / arrival_s[-1] == pytest.approx(process.mean_rate_per_s, rel=0.05)


@pytest.mark.parametrize("spec", SPECS)
def test_the_same_seed_gives_the_same_times(spec: dict[str, object]) -> None:
    process = ADAPTER.validate_python(spec)
    assert np.array_equal(process.draw(rng(), 1000), process.draw(rng(), 1000))


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("n", [0, 1])
def test_few_requests(spec: dict[str, object], n: int) -> None:
    assert ADAPTER.validate_python(spec).draw(rng(), n).shape == (n,)


def test_poisson_gaps_are_exponential() -> None:
    gaps_s = np.diff(arrivals_poisson(rng(), 3.0, 20_000), prepend=0.0)
    assert stats.kstest(gaps_s, stats.expon(scale=1 / 3.0).cdf).pvalue > 0.01
    assert count_arrivals(np.cumsum(gaps_s), 10.0).dispersion == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize("cv", [0.5, 1.0, 2.0])
def test_gamma_gaps_have_the_mean_and_variation(cv: float) -> None:
    gaps_s = np.diff(arrivals_gamma(rng(), 2.0, cv, N), prepend=0.0)
    assert gaps_s.mean() == pytest.approx(0.5, rel=0.02)
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(cv, rel=0.02)
    assert stats.kstest(gaps_s[:20_000], stats.gamma(cv**-2, scale=0.5 * cv**2).cdf).pvalue > 0.01


@pytest.mark.parametrize("window_s", [1.0, 10.0, 60.0])
def test_mmpp_dispersion_is_the_closed_form(window_s: float) -> None:
    rates, sojourns = (1.0, 20.0), (30.0, 10.0)
    arrival_s = arrivals_mmpp(rng(), rates, sojourns, 2_000_000)
    expected = mmpp_dispersion(rates, sojourns, window_s)
    assert count_arrivals(arrival_s, window_s).dispersion == pytest.approx(expected, rel=0.05)


def test_mmpp_is_stationary_from_the_start() -> None:
    # The first second of many runs has the long-run rate 1 · 3/4 + 20 · 1/4.
    streams = np.random.default_rng(1).spawn(4000)
    counts = [int((arrivals_mmpp(s, (1.0, 20.0), (30.0, 10.0), 60) < 1.0).sum()) for s in streams]
    assert np.mean(counts) == pytest.approx(5.75, abs=4 * np.std(counts) / np.sqrt(4000))


def test_mmpp_with_equal_rates_is_poisson() -> None:
    gaps_s = np.diff(arrivals_mmpp(rng(), (3.0, 3.0, 3.0), (1.0, 2.0, 5.0), 20_000), prepend=0.0)
    assert stats.kstest(gaps_s, stats.expon(scale=1 / 3.0).cdf).pvalue > 0.01


def test_diurnal_time_changed_by_its_rate_is_poisson() -> None:
    # With a = (6 − 1) / (6 + 1), ∫ rate = 4 · (t + a · period / 2π · sin(2π (t − peak) / period) + const).
    period_s, peak_s, swing = 500.0, 100.0, 5.0 / 7.0
    t = arrivals_diurnal(rng(), 4.0, 6.0, period_s, peak_s, 20_000)
    waves = np.sin(2 * np.pi * (t - peak_s) / period_s) + np.sin(2 * np.pi * peak_s / period_s)
    unit_gaps = np.diff(4.0 * (t + swing * period_s / (2 * np.pi) * waves), prepend=0.0)
    assert stats.kstest(unit_gaps, stats.expon().cdf).pvalue > 0.01


def test_diurnal_peak_over_trough() -> None:
    phase_frac = (arrivals_diurnal(rng(), 4.0, 6.0, 500.0, 250.0, N) / 500.0) % 1.0
    peak, trough = (np.abs(phase_frac - 0.5) < 0.02).sum(), (np.abs(phase_frac - 0.5) > 0.48).sum()
    assert peak / trough == pytest.approx(6.0, rel=0.1)


@pytest.mark.parametrize(
    "bad",
    [
        {"process": "weibull", "rate_per_s": 1.0},
        {"process": "poisson", "rate_per_s": -1.0},
        {"process": "poisson", "rate_per_s": float("nan")},
        {"process": "poisson", "rate_per_s": 1.0, "cv": 2.0},
        {"process": "gamma", "rate_per_s": 1.0, "cv": 0.0},
        {"process": "mmpp", "rates_per_s": [1.0, 2.0], "sojourns_s": [1.0]},
        {"process": "mmpp", "rates_per_s": [0.0, 0.0], "sojourns_s": [1.0, 1.0]},
        {"process": "mmpp", "rates_per_s": [1.0], "sojourns_s": [1.0]},
        {"process": "mmpp", "rates_per_s": [1.0, -2.0], "sojourns_s": [1.0, 1.0]},
        {"process": "diurnal", "rate_per_s": 1.0, "peak_to_trough": 0.5},
    ],
)
def test_bad_processes(bad: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ADAPTER.validate_python(bad)
