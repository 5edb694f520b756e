"""Batching, worked out on paper, and against the theory of bulk service."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from test_composites import OrdersByTurns
from test_parts import InParts

from support.builders import cluster
from support.by_hand import asked, count, fault_table, finishes, once, starts
from support.chains import Stage, after, chained
from support.mini_policies import ByDeadline
from trimtab.domain.chains import OnStageFailure
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Cancel, OnFailure, Options
from trimtab.domain.policy import Decider
from trimtab.domain.requests import Requests, Status
from trimtab.domain.view import Plan
from trimtab.engine.driver import Driver
from trimtab.engine.simulator import run


def played(
    c: Cluster,
    r: Requests,
    batch: int,
    window_s: float = 0.0,
    marginal: float = 0.5,
    order: Any = None,
    **options: Any,
) -> Driver:
    """The end of a run in which requests are batched."""
    switches = Options(batch_marginal_frac=np.full(len(c.class_names), marginal), **options)
    return run(c, r, switches, Decider.of(InParts(batch=batch, window_s=window_s), order), mode="interpreted")


def test_what_waits_starts_together() -> None:
    """2 s alone; then 4, 2 and 2 s together: 4 + half of 4; the fifth, which arrived last, after them."""
    c = cluster(1)
    d = played(c, asked(c, [0.0, 0.1, 0.2, 0.3, 0.4], [2.0, 4.0, 2.0, 2.0, 1.0]), batch=3)
    assert starts(d) == [0.0, 2.0, 2.0, 2.0, 8.0]
    assert finishes(d) == [2.0, 8.0, 8.0, 8.0, 9.0]
    assert d.state.hidden["busy_slot_s"][0] == 9.0
    assert count(d, "finished") == 5


def test_a_batch_waits_for_its_window_or_until_it_is_full() -> None:
    """Two at .0 and .4, window .5: at .5 together. Three at 10 to 10.2 fill a batch of three."""
    c = cluster(1)
    d = played(c, asked(c, [0.0, 0.4, 10.0, 10.1, 10.2]), batch=3, window_s=0.5, marginal=0.0)
    assert starts(d) == [0.5, 0.5, 10.2, 10.2, 10.2]
    assert finishes(d) == [1.5, 1.5, 11.2, 11.2, 11.2]


def test_a_full_batch_of_another_class_does_not_wait_for_the_first_one() -> None:
    c = cluster(1, classes=2, speeds=[1.0])
    d = played(c, asked(c, [0.0, 0.1, 0.2], class_idx=[0, 1, 1]), batch=2, window_s=1.0, marginal=0.0)
    first_s = 0.2 + c.unit_s[1, 0]
    assert starts(d) == pytest.approx([first_s, 0.2, 0.2])


def test_only_requests_of_one_shape_are_batched_and_fixed_seconds_count_once() -> None:
    """After 1 s alone: 2 and 4 units of shape 0 take 0.5 + 6 s, then 3 units of shape 1 take 0.5 + 3 s."""
    c = cluster(1)
    c = replace(c, fixed_s=np.full_like(c.fixed_s, 0.5))
    r = replace(asked(c, [0.0, 0.1, 0.2, 0.3], [0.5, 2.0, 3.0, 4.0]), shape_idx=np.array([0, 0, 1, 0]))
    d = played(c, r, batch=4, marginal=1.0, batch_fixed_once=np.array([True]))
    assert finishes(d) == [1.0, 7.5, 11.0, 7.5]
    assert finishes(played(c, r, batch=4, marginal=1.0)) == [1.0, 8.0, 11.5, 8.0]


def test_only_requests_of_one_model_are_batched() -> None:
    c = cluster(1, models=2, load_s=0.0)
    d = played(c, asked(c, [0.0, 0.1, 0.2, 0.3], model_idx=[0, 1, 0, 1]), batch=4, marginal=0.0)
    assert starts(d) == [0.0, 1.0, 2.0, 1.0]


def test_an_adapter_that_does_not_fit_stays_behind() -> None:
    """6.9 GiB hold the model and one adapter of .5 GiB: the second adapter's request waits for the first."""
    c = cluster(1, models=1, adapters=2, load_s=0.0, memory_gib=6.9)
    r = asked(c, [0.0, 0.1, 0.2, 0.3], model_idx=0, adapter_idx=[1, 1, 1, 2])
    d = played(c, r, batch=4, marginal=0.0)
    assert starts(d) == [0.0, 1.0, 1.0, 2.0]


def test_a_cancelled_request_leaves_its_batch_and_the_batch_goes_on() -> None:
    """Three together from 1 to 4 s; the first, which holds the slot, goes at 2 s, the third at 3 s."""
    c = cluster(1)
    r = asked(c, [0.0, 0.1, 0.2, 0.3], [1.0, 2.0, 2.0, 2.0], deadline_s=[9.0, 2.0, 9.0, 3.0])
    d = played(c, r, batch=3, marginal=0.25, cancel=Cancel.ALWAYS)
    assert d.state.requests["status"].tolist() == [6, Status.CANCELLED, 6, Status.CANCELLED]
    assert finishes(d)[2] == pytest.approx(4.0)
    assert d.state.hidden["busy_slot_s"][0] == pytest.approx(4.0)
    assert d.state.nodes["outstanding_s"][0] == 0.0


@pytest.mark.parametrize(("on_failure", "end_s"), [(OnFailure.RESTART, 8.0), (OnFailure.RESUME, 6.0)])
def test_a_failure_strikes_the_whole_batch(on_failure: OnFailure, end_s: float) -> None:
    """Two from 1 to 4 s; down from 2 to 4 s: on with the 2 s that were left, or again from the start, when
    the first finds an idle slot and nothing to wait for.
    """
    c = cluster(1)
    r = asked(c, [0.0, 0.1, 0.2], [1.0, 2.0, 2.0])
    d = played(c, r, batch=2, faults=fault_table(once(0, 2.0, 4.0)), on_failure=on_failure)
    assert finishes(d) == [1.0, 6.0, end_s]
    assert count(d, "retries") == (2 if on_failure is OnFailure.RESTART else 0)


def test_a_slow_node_slows_the_whole_batch() -> None:
    c = cluster(1)
    r = asked(c, [0.0, 0.1, 0.2], [1.0, 2.0, 2.0])
    d = played(c, r, batch=2, faults=fault_table(once(0, 2.0, 100.0, 0.5)))
    assert finishes(d) == [1.0, 6.0, 6.0]


def test_the_most_urgent_go_first() -> None:
    c = cluster(1)
    r = asked(c, [0.0, 0.1, 0.2, 0.3], deadline_s=[90.0, 9.0, 8.0, 7.0])
    d = played(c, r, batch=2, marginal=0.0, order=ByDeadline())
    assert starts(d) == [0.0, 2.0, 1.0, 1.0]


@dataclass(frozen=True)
class ShortestTwoLater(OrdersByTurns):
    """From 2 s on shortest first, in batches of two."""

    def plan(self, view: Any, history: Any, waiting: Any, rollout: Any) -> Plan | None:
        plan = super().plan(view, history, waiting, rollout)
        return plan if plan is None else plan._replace(batch_max=np.array([2]))


def test_a_new_order_in_charge_orders_the_groups_anew() -> None:
    """Waiting at 2 s: 4, 1 and 2 s. The shortest two start together at 3 s, and take 2 s."""
    r = asked(cluster(1), [0.0, 0.1, 0.2, 0.3], [3.0, 4.0, 1.0, 2.0])
    options = Options(batch_marginal_frac=np.zeros(1), horizon_s=3.9)
    d = run(cluster(1), r, options, Decider.of(ShortestTwoLater()), mode="interpreted")
    assert starts(d)[2:] == [3.0, 3.0]
    assert np.isnan(starts(d)[1])


def test_backlog_counts_a_batch_as_what_it_takes() -> None:
    """Between 1 and 4 s two requests of 2 s run as one of 3 s; another waits: 2.5 s left and 1 s queued."""
    c = cluster(1)
    r = asked(c, [0.0, 0.1, 0.2, 1.5], [1.0, 2.0, 2.0, 1.0])
    switches = Options(batch_marginal_frac=np.array([0.5]))
    d = Driver(c, r, switches, Decider.of(InParts(batch=2)), mode="interpreted")
    d.adopt(InParts(batch=2).plan(d.view(), None, None, None), 0.0)
    while d.n_arrived < 4:
        d.advance(max_steps=1)
    assert d.state.nodes["backlog_s"][0] == pytest.approx(3.5)
    assert d.state.nodes["in_flight"][0] == 3


def test_a_class_that_is_not_batched_is_not() -> None:
    c = cluster(1)
    d = played(c, asked(c, [0.0, 0.1, 0.2]), batch=3, window_s=5.0, marginal=-1.0)
    assert starts(d) == [0.0, 1.0, 2.0]


def bulk_queue_mean(rate: float, service_s: float, most: int) -> float:
    """Mean number waiting when a batch starts, M/D^b/1 without window: the embedded chain, solved.

    A batch takes min(n, most) of the n that wait; with none it waits for the first. State: waiting at the
    end of a service, so the next is max(n - most, 0) (n = 0: as if 1 had come) plus Poisson arrivals.
    """
    size = 100
    steps = np.zeros((size, size))
    arrivals = np.exp(-rate * service_s) * np.cumprod(np.r_[1.0, rate * service_s / np.arange(1, size)])
    for n in range(size):
        stay = max(n - most, 0)
        steps[n, stay:] = arrivals[: size - stay]
        steps[n] /= steps[n].sum()
    values, vectors = np.linalg.eig(steps.T)
    stable = np.real(vectors[:, np.argmax(np.real(values))])
    return float((stable / stable.sum()) @ np.maximum(np.arange(size), 1))


def test_batch_sizes_are_those_of_the_bulk_queue() -> None:
    """Poisson arrivals, batches of up to 4 in 1 s whatever their size, load .8; six runs."""
    c, means = cluster(1), []
    for seed in range(6):
        arrival_s = np.cumsum(np.random.default_rng(seed).exponential(1 / 3.2, 1000))
        d = played(c, asked(c, arrival_s.tolist()), batch=4, marginal=0.0)
        begun, size = np.unique(d.state.requests["start_s"], return_counts=True)
        waited = [int((arrival_s[: len(arrival_s)] <= t).sum()) for t in begun]
        means.append(float(np.mean(np.array(waited) - np.r_[0, np.cumsum(size)[:-1]])))
    expected = bulk_queue_mean(3.2, 1.0, 4)
    spread = np.std(means, ddof=1) / np.sqrt(len(means))
    assert abs(np.mean(means) - expected) < 4 * spread
    assert spread < 0.2 * expected


@pytest.mark.parametrize("leads", [True, False])
def test_stages_of_several_runs_in_a_batch_fail_each_for_itself(leads: bool) -> None:
    """Two runs of two stages fill a batch of four, 0 to 3 s. `bad` always fails: again from 3.5 to 4.5 s."""
    bad = Stage(1.0, error_frac=1.0, max_retries=1, on_failure=OnStageFailure.SKIP)
    stages = {"bad": bad, "good": Stage(3.0)} if leads else {"good": Stage(3.0), "bad": bad}
    c = cluster(1)
    d = played(c, chained(c, asked(c, [0.0, 0.0]), stages), batch=4, window_s=0.5, marginal=0.0)
    of_stages = d.state.requests[2:]
    goods, bads = (of_stages[k::2] for k in ((1, 0) if leads else (0, 1)))
    assert goods["finish_s"].tolist() == [3.0, 3.0]
    assert goods["retries"].tolist() == [0, 0]
    assert bads["status"].tolist() == [Status.LOST, Status.LOST]
    assert bads["ended_s"].tolist() == [4.5, 4.5]
    assert bads["retries"].tolist() == [1, 1]
    assert finishes(d)[:2] == [4.5, 4.5]
    assert count(d, "finished") == 2
    assert d.state.nodes["in_flight"][0] == d.state.nodes["running"][0] == 0


def test_a_batch_may_release_more_stages_than_the_event_heap_has_room_for() -> None:
    """40 runs whose first stages end in one batch, each followed by 60 instances: 2400 are ready at 1 s."""
    c = cluster(1, slots=40)
    stages = {"first": Stage(1.0), "items": Stage([1.0] * 60, after("first"))}
    r = chained(c, asked(c, [0.0] * 40), stages)
    d = played(c, r, batch=40, window_s=0.5, marginal=0.0)
    assert count(d, "finished") == 40
    first = d.state.groups["spec"][d.state.stages["group"]] == 1
    assert d.state.work["arrival_s"][40:][~first[40:]].tolist() == [1.0] * 2400
