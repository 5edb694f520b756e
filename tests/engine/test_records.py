"""What a run leaves behind: window, curves and node table, where requests end otherwise than by finishing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import trimtab as tt
from support.builders import cluster
from support.by_hand import asked, fault_table, once, played, starts
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Cancel, Options
from trimtab.domain.requests import Requests
from trimtab.engine.records import records_of
from trimtab.experiments.serving.run import node_table
from trimtab.experiments.serving.run_curves import curves_of
from trimtab.metrics import Records, compute

ONE, TWO = cluster(1), cluster(2)
ANY = np.array([np.inf])
EDGES_S = np.arange(11.0)


def records(c: Cluster, r: Requests, options: Options) -> Records:
    return records_of(played(c, r, options), c, r, ANY)


def test_the_window_lasts_until_the_last_request_has_left() -> None:
    """Node 0 serves for 1 s, node 1 for the 10 s until its request is cancelled."""
    r = asked(TWO, [0.0, 0.0], [1.0, 99.0], key=[0, 1], deadline_s=[np.inf, 10.0])
    found = records(TWO, r, Options(cancel=Cancel.ALWAYS))
    assert (found.start_s, found.end_s) == (0.0, 10.0)
    metrics = compute(found)
    assert metrics["utilisation_allocated_mean_frac"] == pytest.approx((0.1 + 1.0) / 2)
    assert metrics["makespan_s"] == 1.0


def test_the_window_is_the_horizon_where_requests_are_still_to_come() -> None:
    found = records(ONE, asked(ONE, [0.0, 50.0], 1.0), Options(horizon_s=20.0))
    assert found.end_s == 20.0


def test_a_horizon_after_the_last_request_does_not_count() -> None:
    assert records(ONE, asked(ONE, [0.0], 1.0), Options(horizon_s=20.0)).end_s == 1.0


def test_what_is_rejected_does_not_wait() -> None:
    options = Options(held_max=0)
    c = replace(ONE, queue_max=np.array([0]))
    found = records(c, asked(c, [0.0, 1.0, 2.0, 3.0], 10.0), options)
    assert curves_of(found, c, EDGES_S).queue_length.tolist() == [0.0] * 10


def test_what_is_cancelled_waits_and_holds_its_slot_until_then() -> None:
    """Request 0 runs until it is cancelled at 4 s, request 1 waits until it is cancelled at 3 s."""
    r = asked(ONE, [0.0, 1.0], 99.0, deadline_s=[4.0, 3.0])
    found = records(ONE, r, Options(cancel=Cancel.ALWAYS))
    curves = curves_of(found, ONE, EDGES_S)
    assert curves.queue_length.tolist() == [0, 1, 1, 0, 0, 0, 0, 0, 0, 0]
    assert curves.utilisation_frac.tolist() == [[1, 1, 1, 1, 0, 0, 0, 0, 0, 0]]


def test_what_runs_on_or_waits_on_does_so_until_the_horizon() -> None:
    found = records(ONE, asked(ONE, [0.0, 2.0], 99.0), Options(horizon_s=10.0))
    curves = curves_of(found, ONE, EDGES_S)
    assert curves.queue_length.tolist() == [0, 0, 1, 1, 1, 1, 1, 1, 1, 1]
    assert curves.utilisation_frac.tolist() == [[1.0] * 10]


def test_a_lost_attempt_leaves_no_start_behind() -> None:
    """Its node fails for good, and it waits until it is cancelled: it is none of those that took a slot."""
    faults = fault_table(once(0, 3.0, np.inf))
    r = asked(ONE, [0.0], 4.0, deadline_s=[8.0])
    assert np.isnan(starts(played(ONE, r, Options(faults=faults, cancel=Cancel.WAITING)))).all()


def test_nodes_are_used_by_share_of_the_time_that_they_were_up() -> None:
    run = tt.simulate("tiny", "random")
    half = replace(run.records.nodes, up_s=run.records.nodes.up_s / 2)
    whole = node_table(run.records, run.inputs)["busy_frac"].to_numpy()
    halved = node_table(replace(run.records, nodes=half), run.inputs)["busy_frac"].to_numpy()
    np.testing.assert_allclose(halved, 2 * whole)
    assert run.metrics["utilisation_mean_frac"] == pytest.approx(whole.mean())


@pytest.mark.parametrize(
    ("outages", "up_s"),
    [
        (((0.0, 50.0),), 10.0),  # over before the first request comes
        (((95.0, 103.0),), 7.0),  # reaches into the window
        (((102.0, 105.0),), 7.0),
        (((20.0, 40.0), (60.0, 80.0)), 10.0),
        (((102.0, 103.0), (105.0, 107.0)), 7.0),
        (((90.0, np.inf),), 0.0),
        (((104.0, np.inf),), 4.0),
        (
            ((20.0, 40.0), (104.0, np.inf)),
            0.0,
        ),  # the sum of outages does not tell which came before: too much
    ],
)
def test_a_node_is_down_within_the_window_only(outages: tuple[tuple[float, float], ...], up_s: float) -> None:
    """The window is 100 to 110 s: node 0 serves for these 10 s, node 1 fails."""
    r = asked(TWO, [100.0], [10.0], key=[0])
    faults = fault_table(*(once(1, *outage) for outage in outages))
    assert records(TWO, r, Options(faults=faults)).nodes.up_s.tolist() == [10.0, up_s]
