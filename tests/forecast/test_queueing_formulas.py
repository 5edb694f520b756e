"""Queueing formulas: published values, other formulas for the same, and chains solved by brute force."""

from __future__ import annotations

from fractions import Fraction
from math import exp, inf, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from trimtab.compiled.kernel import interpreted
from trimtab.errors import UsageError
from trimtab.forecast import queueing as q
from trimtab.forecast.queueing.erlang import servers_for_loss

LOADS = st.floats(0.01, 0.99)


@pytest.mark.parametrize(
    ("servers", "offered", "expected"),
    [(2, 1, 1 / 3), (10, 8, 0.409180150796), (50, 45, 0.363864467207), (100, 90, 0.216940480906)],
)
def test_erlang_c_is_as_published(servers: int, offered: float, expected: float) -> None:
    assert q.erlang_c(servers, offered) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("servers", "offered"), [(5, 1.361), (10, 4.461), (20, 12.03), (50, 37.90), (100, 84.06)]
)
def test_the_load_that_loses_one_in_a_hundred_is_as_in_the_tables(servers: int, offered: float) -> None:
    found = q.erlang_b_offered(servers, 0.01)
    assert found == pytest.approx(offered, rel=2e-4)
    assert q.erlang_b(servers, found) == pytest.approx(0.01, rel=1e-9)
    assert q.erlang_b_servers(found * (1 - 1e-9), 0.01) == servers
    assert q.erlang_b_servers(found * (1 + 1e-6), 0.01) == servers + 1


def erlang_b_exactly(servers: int, offered: Fraction) -> Fraction:
    """In rational numbers, from the sum that defines it."""
    term = total = Fraction(1)
    for k in range(1, servers + 1):
        term = term * offered / k
        total += term
    return term / total


@pytest.mark.parametrize("servers", [1, 7, 60])
@pytest.mark.parametrize("load", [Fraction(1, 10), Fraction(9, 10), Fraction(3, 2)])
def test_erlang_b_is_exact_to_the_last_digits(servers: int, load: Fraction) -> None:
    exact = float(erlang_b_exactly(servers, servers * load))
    assert q.erlang_b(servers, float(servers * load)) == pytest.approx(exact, rel=1e-13)


@pytest.mark.parametrize("load", [0.9, 0.99, 0.9999, 1.0, 1.2])
def test_ten_thousand_servers_are_stable(load: float) -> None:
    servers, offered = 10_000, 10_000 * load
    by_poisson = exp(stats.poisson.logpmf(servers, offered) - stats.poisson.logcdf(servers, offered))
    assert q.erlang_b(servers, offered) == pytest.approx(by_poisson, rel=1e-6)
    assert q.erlang_b_offered(servers, q.erlang_b(servers, offered)) == pytest.approx(offered, rel=1e-6)
    assert q.mmck(servers, servers, load, 10_000.0).loss_frac == pytest.approx(by_poisson, rel=1e-6)
    if load < 1.0:  # the square-root staffing of Halfin and Whitt, 1981, is the limit
        spare = (1.0 - load) * 100.0
        limit = 1.0 / (1.0 + spare * stats.norm.cdf(spare) / stats.norm.pdf(spare))
        assert q.erlang_c(servers, offered) == pytest.approx(limit, abs=0.005)
        assert q.ggc(servers, load, 10_000.0, 0.5, 0.5).wait_s < q.mmc(servers, load, 10_000.0).wait_s


def test_next_to_nothing_offered_to_very_many() -> None:
    assert q.erlang_b(10_000, 1e-3) == 0.0
    assert q.erlang_c(10_000, 0.0) == 0.0
    station = q.mmck(10_000, 20_000, 1e-3, 1.0)
    assert (station.loss_frac, station.wait_s, station.waiting) == (0.0, 0.0, 0.0)


def test_three_servers_hold_eight_ninths_waiting() -> None:
    assert q.mmc(3, 2.0, 1.0).waiting == pytest.approx(8 / 9, rel=1e-14)


@pytest.mark.parametrize(("servers", "offered"), [(1, 0.5), (6, 5.9), (40, 31.0)])
def test_kernels_give_the_same_bits_as_python(servers: int, offered: float) -> None:
    for kernel in (q.erlang_b_unchecked, q.erlang_c_unchecked):
        assert kernel(servers, offered) == interpreted(kernel)(servers, offered)
    assert servers_for_loss(offered, 0.02, 999) == interpreted(servers_for_loss)(offered, 0.02, 999)


@settings(deadline=None, max_examples=50)
@given(st.floats(0.01, 300.0), st.floats(1e-6, 0.99))
def test_the_inverse_finds_the_fewest_servers_that_do(offered: float, wanted: float) -> None:
    waiting, losing = q.erlang_c_servers(offered, wanted), q.erlang_b_servers(offered, wanted)
    assert q.erlang_c(waiting, offered) <= wanted
    assert waiting == 1 or q.erlang_c(waiting - 1, offered) > wanted
    assert losing == 0 or q.erlang_b(losing, offered) <= wanted * (1 + 1e-12)
    assert losing <= 1 or q.erlang_b(losing - 1, offered) > wanted * (1 - 1e-12)


def chain(servers: int, places: int, offered: float) -> np.ndarray:
    """Steady state of M/M/c/K, from its generator."""
    rates = np.zeros((places + 1, places + 1))
    for n in range(places):
        rates[n, n + 1], rates[n + 1, n] = offered, min(n + 1, servers)
    rates -= np.diag(rates.sum(axis=1))
    system = np.vstack([rates.T[:-1], np.ones(places + 1)])
    return np.linalg.solve(system, np.eye(places + 1)[-1])


@pytest.mark.parametrize(("servers", "places"), [(1, 1), (1, 7), (3, 3), (4, 11)])
@pytest.mark.parametrize("load", [0.3, 1.0, 1.7])
def test_bounded_queues_are_as_their_chain(servers: int, places: int, load: float) -> None:
    p, at = chain(servers, places, load * servers), np.arange(places + 1)
    station = q.mmck(servers, places, load * servers, 1.0)
    assert station.loss_frac == pytest.approx(p[-1])
    assert station.waiting == pytest.approx(p @ np.maximum(0, at - servers))
    assert station.in_system == pytest.approx(p @ at)
    assert station.busy_frac == pytest.approx(p @ np.minimum(at, servers) / servers)
    assert station.wait_frac == pytest.approx(p[servers:-1].sum() / (1 - p[-1]))


def test_a_long_queue_is_as_one_without_bound() -> None:
    bounded, free = q.mmck(5, 2000, 4.5, 1.0), q.mmc(5, 4.5, 1.0)
    assert bounded.wait_s == pytest.approx(free.wait_s)
    assert bounded.wait_frac == pytest.approx(free.wait_frac)
    crowded = q.mmck(5, 5000, 10.0, 1.0)
    assert crowded.loss_frac == pytest.approx(0.5)  # what goes through is what 5 servers can do


@settings(deadline=None, max_examples=50)
@given(LOADS, st.floats(0.0, 30.0), st.floats(0.1, 10.0))
def test_one_server_waits_as_the_residual_work_says(load: float, scv: float, mean_s: float) -> None:
    station = q.mg1(load / mean_s, mean_s, scv)
    second_moment = mean_s**2 * (1 + scv)
    assert station.wait_s == pytest.approx(load / mean_s * second_moment / 2 / (1 - load))
    assert q.mgc(1, load / mean_s, mean_s, scv) == station
    assert q.mg1(load / mean_s, mean_s, 1.0).wait_s == pytest.approx(q.mmc(1, load / mean_s, mean_s).wait_s)


@pytest.mark.parametrize("method", ["whitt", "allen-cunneen"])
@settings(deadline=None, max_examples=50)
@given(servers=st.integers(1, 300), load=LOADS)
def test_approximations_are_exact_where_all_is_exponential(
    method: q.Method, servers: int, load: float
) -> None:
    found, exact = q.ggc(servers, load * servers, 1.0, 1.0, 1.0, method), q.mmc(servers, load * servers, 1.0)
    assert found.wait_s == pytest.approx(exact.wait_s)
    assert found.wait_frac == pytest.approx(exact.wait_frac)


@settings(deadline=None, max_examples=50)
@given(servers=st.integers(1, 500), load=LOADS, service=st.floats(0.0, 20.0), arrival=st.floats(0.0, 20.0))
def test_approximations_stay_in_bounds(servers: int, load: float, service: float, arrival: float) -> None:
    station = q.ggc(servers, load * servers, 1.0, service, arrival)
    assert 0.0 <= station.wait_frac <= 1.0
    assert 0.0 <= station.wait_s < inf
    assert 0.0 <= q.late_frac(station, 1.0) <= 1.0


def test_constant_gaps_and_services_never_wait() -> None:
    station = q.ggc(8, 7.9, 1.0, 0.0, 0.0)
    assert (station.wait_s, station.wait_frac) == (0.0, 0.0)
    assert [q.late_frac(station, s) for s in (0.9, 1.0, 1.1)] == [1.0, 0.0, 0.0]


def test_processor_sharing_stretches_by_the_spare_capacity() -> None:
    assert q.stretch(q.processor_sharing(1, 0.7, 1.0)) == pytest.approx(1 / 0.3)
    # M/M/2 with a = 1 has states of weight 1, 1, 1/2, 1/4 …, in all 3, so that E[N] = 4/3
    assert q.processor_sharing(2, 1.0, 1.0).in_system == pytest.approx(4 / 3)


@pytest.mark.parametrize("load", [1.0, 1.5])
def test_overload_is_a_value(load: float) -> None:
    for station in (q.mmc(4, 4 * load, 1.0), q.mg1(load, 1.0, 2.0), q.ggc(4, 4 * load, 1.0, 2.0, 0.5)):
        assert (station.wait_s, station.wait_frac, station.busy_frac) == (inf, 1.0, 1.0)
        assert (station.time_s, station.in_system, q.late_frac(station, 1e9)) == (inf, inf, 1.0)


def mmc_late(servers: int, arrivals_per_s: float, deadline_s: float) -> float:
    """P(T > t) in M/M/c with services of mean 1, from the density of the wait, by adaptive quadrature."""
    wait, rate = q.erlang_c(servers, arrivals_per_s), servers - arrivals_per_s
    density = lambda s: rate * exp(-rate * s) * exp(s - deadline_s)  # noqa: E731
    in_time, _ = integrate.quad(density, 0, deadline_s, epsabs=1e-12, limit=400)
    return (1 - wait) * exp(-deadline_s) + wait * (in_time + exp(-rate * deadline_s))


@pytest.mark.parametrize("servers", [1, 4, 30])
@pytest.mark.parametrize("deadline_s", [0.0, 0.5, 3.0, 12.0])
def test_late_in_mmc_is_exact(servers: int, deadline_s: float) -> None:
    station = q.mmc(servers, 0.85 * servers, 1.0)
    expected = mmc_late(servers, 0.85 * servers, deadline_s)
    assert q.late_frac(station, deadline_s) == pytest.approx(expected, abs=1e-10)
    if servers == 1:
        assert expected == pytest.approx(exp(-0.15 * deadline_s))


@pytest.mark.parametrize("family", ["gamma", "lognormal"])
@pytest.mark.parametrize("scv", [0.0, 0.3, 2.5])
def test_late_is_the_convolution_of_wait_and_service(family: q.Family, scv: float) -> None:
    station, rng = q.mgc(6, 5.0, 1.0, scv), np.random.default_rng(3)
    n = 1_000_000
    wait_s = np.where(
        rng.random(n) < station.wait_frac, rng.exponential(station.wait_s / station.wait_frac, n), 0
    )
    sigma = np.sqrt(np.log1p(scv))
    lognormal = rng.lognormal(-(sigma**2) / 2, sigma, n)
    service_s = np.ones(n) if not scv else rng.gamma(1 / scv, scv, n) if family == "gamma" else lognormal
    for deadline_s in (0.5, 1.5, 4.0):
        drawn = float((wait_s + service_s > deadline_s).mean())
        assert q.late_frac(station, deadline_s, family) == pytest.approx(drawn, abs=0.002)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: q.erlang_b(0, 1.0), "servers"),
        (lambda: q.erlang_c(1.5, 1.0), "servers"),  # type: ignore[arg-type]
        (lambda: q.erlang_c(nan, 1.0), "servers"),  # type: ignore[arg-type]
        (lambda: q.mmc(inf, 1.0, 1.0), "servers"),  # type: ignore[arg-type]
        (lambda: q.erlang_b(3, nan), "offered"),
        (lambda: q.erlang_b_offered(3, 0.0), "loss_frac"),
        (lambda: q.erlang_c_servers(3.0, 1.1), "wait_frac"),
        (lambda: q.mmc(3, -1.0, 1.0), "arrivals_per_s"),
        (lambda: q.mg1(0.5, 0.0, 1.0), "mean_service_s"),
        (lambda: q.ggc(3, 1.0, 1.0, -0.1, 1.0), "service_scv"),
        (lambda: q.ggc(3, 1.0, 1.0, 1.0, inf), "arrival_scv"),
        (lambda: q.mgc(3, 1.0, 1.0, 1.0, "best"), "method"),  # type: ignore[arg-type]
        (lambda: q.mmck(3, 2, 1.0, 1.0), "places"),
        (lambda: q.mmck(3, nan, 1.0, 1.0), "places"),  # type: ignore[arg-type]
        (lambda: q.late_frac(q.mmc(1, 0.5, 1.0), -1.0), "deadline_s"),
        (lambda: q.late_frac(q.mmc(1, 0.5, 1.0), 1.0, "beta"), "family"),  # type: ignore[arg-type]
        (lambda: q.erlang_b_servers(1e9, 0.5), "offered"),
        (lambda: q.erlang_c_servers(1e9, 0.5), "offered"),
    ],
)
def test_refusals_name_the_field(call: object, field: str) -> None:
    with pytest.raises(UsageError) as error:
        call()  # type: ignore[operator]
    assert error.value.field == field
