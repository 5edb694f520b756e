"""Work that others send to nodes: it takes resources and speed. Times are worked out by hand.

One second of service per unit; a node has two slots, four cores and eight GiB (see `test_resources`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from support.builders import cluster, everything_on, run, with_resources
from support.by_hand import asked, background, fault_table, finishes, played, starts
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Options
from trimtab.domain.policy import Decider, Policy
from trimtab.domain.view import report_age_s
from trimtab.engine.draws import stream, uniform
from trimtab.engine.simulator import run as simulate
from trimtab.policies import find

BIG, SMALL = range(2)  # classes: 3 cores and 2 GiB, 1 core and 5 GiB


def machine(nodes: int = 1) -> Cluster:
    c = cluster(nodes, slots=2, classes=2)
    return replace(
        c,
        unit_s=np.ones_like(c.unit_s),
        resource_names=("cpu_cores", "ram_gib"),
        capacity=np.tile([4.0, 8.0], (nodes, 1)),
        demand=np.array([[3.0, 2.0], [1.0, 5.0]]),
    )


def during(*rows: tuple[Any, ...]) -> Options:
    return Options(faults=fault_table(*rows))


ONE = machine()


def test_what_does_not_fit_beside_it_waits_for_its_end() -> None:
    r = asked(ONE, [2.0], 1.0, class_idx=[BIG])
    assert starts(played(ONE, r, during(background(0, 1.0, 5.0, 2.0)))) == [5.0]
    assert starts(played(ONE, r, during(background(0, 1.0, 5.0, 1.0)))) == [2.0]  # 3 + 1 cores fit
    assert starts(played(ONE, r, during(background(0, 1.0, 5.0, 7.0, resource=1)))) == [5.0]  # memory binds


def test_what_fits_beside_it_starts() -> None:
    r = asked(ONE, [2.0], 1.0, class_idx=[SMALL])
    assert starts(played(ONE, r, during(background(0, 1.0, 5.0, 2.0)))) == [2.0]


def test_running_work_keeps_what_it_has_and_the_next_waits() -> None:
    r = asked(ONE, [0.0, 2.0], [4.0, 1.0], class_idx=[BIG, SMALL])
    d = played(ONE, r, during(background(0, 1.0, 6.0, 1.0)))
    assert finishes(d)[0] == 4.0
    assert starts(d)[1] == 4.0  # 3 + 1 of 4 cores until then


def test_it_slows_service_while_it_is_there() -> None:
    r = asked(ONE, [0.0], 4.0, class_idx=[SMALL])
    d = played(ONE, r, during(background(0, 1.0, 3.0, 1.0, factor=0.5)))
    assert finishes(d) == [1.0 + 2.0 + 2.0]  # units: 1, then 1 in two seconds, then 2


def test_of_two_slow_downs_the_larger_counts() -> None:
    r = asked(ONE, [0.0], 4.0, class_idx=[SMALL])
    both = during(background(0, 0.0, 2.0, 1.0, factor=0.5), background(0, 0.0, 4.0, 1.0, factor=0.75))
    assert finishes(played(ONE, r, both)) == [pytest.approx(2.0 + 2.0 + 1.5)]  # units: 1, 1.5, 1.5


class Watching(Policy):
    """First node that can take the request; notes what it sees of node 0."""

    def __init__(self) -> None:
        self.notes: list[tuple[float, ...]] = []

    def dispatch(self, view: Any, plan: Any, work: Any, memory: Any, draws: Any, ranking: Any) -> int:
        changed = [int(j) for j in view.changed[: view.context.n_changed]]
        self.notes.append((*view.used[0], report_age_s(view, 0), float(0 in changed)))
        ranking[0] = 0
        return 1


def seen(c: Cluster, arrival_s: list[float], options: Options, seed: int = 0) -> list[tuple[float, ...]]:
    """Use of both resources, age of the report, and whether node 0 changed, at each arrival."""
    policy = Watching()
    r = asked(c, arrival_s, 0.001, class_idx=[SMALL] * len(arrival_s))
    simulate(c, r, options, Decider.of(policy), seed=seed, mode="interpreted")
    return policy.notes


def test_policies_see_it_at_once_where_views_are_fresh() -> None:
    notes = seen(ONE, [0.5, 2.0, 6.0], during(background(0, 1.0, 5.0, 0.75)))
    assert [note[:3] for note in notes] == [(0.0, 0.0, 0.0), (0.75, 0.0, 0.0), (0.0, 0.0, 0.0)]
    assert notes[1][3] == notes[2][3] == 1.0


def test_policies_see_it_as_old_as_reports_are() -> None:
    """Samples at 0, 2, 4, … are visible a second later; the work is there from 1 s to 5 s."""
    options = replace(during(background(0, 1.0, 5.0, 0.75)), telemetry_period_s=2.0, telemetry_delay_s=1.0)
    notes = seen(ONE, [1.5, 2.5, 3.5, 6.5, 7.5], options)
    assert [note[0] for note in notes] == [0.0, 0.0, 0.75, 0.75, 0.0]
    assert [note[2] for note in notes] == [1.5, 2.5, 1.5, 2.5, 1.5]


def test_errors_of_reports_are_uniform_within_their_bounds_and_drawn_by_seed() -> None:
    noise = np.array([0.25, 0.0])
    rows = background(0, 0.0, np.inf, 2.0), background(0, 0.0, np.inf, 2.0, resource=1)
    options = replace(during(*rows), telemetry_period_s=1.0, report_noise_frac=noise)
    notes = np.array(seen(ONE, (np.arange(1, 400) + 0.5).tolist(), options, seed=6))
    ratio = notes[:, 0] / 2.0
    assert ratio.min() < 0.77
    assert ratio.max() > 1.23
    assert ((ratio >= 0.75) & (ratio <= 1.25)).all()
    assert ratio.mean() == pytest.approx(1.0, abs=3 * 0.25 / np.sqrt(3 * 399))
    assert ratio.var() == pytest.approx(0.25**2 / 3, rel=0.2)
    assert (notes[:, 1] == 2.0).all()
    with np.errstate(over="ignore"):
        u = uniform.py_func(stream.py_func(6, (1 << 41) + 5, 0), 0)
    assert ratio[4] == pytest.approx(1.0 + 0.25 * (2 * u - 1), abs=1e-12)


def test_work_from_time_to_time_is_there_for_its_share_of_time() -> None:
    """On for a second, off for three, on average: arrivals find it there a quarter of the time."""
    rows = np.array(
        [(0.0, 0.0, 1.0, 3.0, 1.0, 0, 0, 0, 1, 2.0, 0)], fault_table(background(0, 0, 0, 0)).dtype
    )
    notes = seen(ONE, np.arange(0.05, 4000.0, 1.0).tolist(), Options(faults=rows))
    there = np.array([note[0] for note in notes])
    assert set(there) <= {0.0, 2.0}
    assert (there > 0).mean() == pytest.approx(0.25, abs=0.04)


@pytest.mark.parametrize("spec", ["load-aware", "best-fit", "dominant-resource", "most-free", "late-binding"])
def test_policies_of_load_and_resources_shun_the_busy_node(spec: str) -> None:
    c = machine(2)
    r = asked(c, np.arange(0.1, 8.0, 0.2).tolist(), 0.05, class_idx=[BIG] * 40)
    busy = played(c, r, during(background(0, 0.0, np.inf, 3.5)), find(spec).dispatch)
    assert set(busy.state.requests["node_idx"].tolist()) == {1}


@pytest.mark.parametrize("spec", ["load-aware", "late-binding", "least-expected-completion"])
def test_compiled_equals_interpreted(spec: str) -> None:
    c, r, options = everything_on()
    c = with_resources(c)
    rows = background(0, 2.0, 30.0, 1.5, factor=0.6), background(1, 0.0, np.inf, 1.0)
    options = replace(options, faults=fault_table(*rows), report_noise_frac=np.array([0.3, 0.1]))
    a, b = (run(c, r, options, *find(spec), seed=5, compiled=compiled) for compiled in (True, False))
    for name in ("requests", "nodes", "hidden", "counts"):
        for field in getattr(a, name).dtype.names:
            np.testing.assert_array_equal(getattr(a, name)[field], getattr(b, name)[field], err_msg=field)
    np.testing.assert_array_equal(a.used, b.used)
    np.testing.assert_array_equal(a.seen_used, b.seen_used)


def test_a_run_ends_although_what_waits_at_a_node_never_fits() -> None:
    options = replace(during(background(0, 1.0, np.inf, 3.0)), telemetry_period_s=1.0)
    d = played(ONE, asked(ONE, [0.5, 2.0], 1.0, class_idx=[SMALL, BIG]), options)
    assert finishes(d)[0] == 1.5
    assert np.isnan(starts(d)[1])


def test_resources_that_are_only_reported_hold_up_no_request() -> None:
    r = asked(ONE, [2.0], 1.0, class_idx=[BIG])
    options = replace(during(background(0, 1.0, 5.0, 2.0)), are_resources_bounds=False)
    d = played(ONE, r, options)
    assert starts(d) == [2.0]
    assert d.state.used[0].tolist() == [2.0, 0.0]  # the request gave back its own
