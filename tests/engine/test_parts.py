"""Splitting and joining, worked out on paper: a second of service per unit, one slot per node."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from support.builders import cluster
from support.by_hand import asked, count, fault_table, finishes, once
from support.mini_policies import Emptiest
from support.same_state import differences
from trimtab.compiled.kernel import interpreted, kernel
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Cancel, OnFailure, Options
from trimtab.domain.policy import Decider, Policy
from trimtab.domain.requests import Prefixes, Reason, Requests, Status
from trimtab.domain.view import Memory, empty_plan
from trimtab.engine.bound_state import python_state
from trimtab.engine.driver import Driver
from trimtab.engine.layout import rows_with_runs
from trimtab.engine.simulator import run
from trimtab.engine.telemetry import dispatcher_of


@dataclass(frozen=True)
class InParts(Policy):
    """To the emptiest node, in `parts` parts, batches of `batch` after at most `window_s`."""

    plan_period_s: float = 1e9
    parts: int = 1
    batch: int = 1
    window_s: float = 0.0

    def plan(self, view: Any, history: Any, waiting: Any, rollout: Any) -> Any:
        classes = len(view.fixed_s)
        return empty_plan()._replace(
            split_max=np.full(classes, self.parts),
            batch_max=np.full(classes, self.batch),
            batch_window_s=np.full(classes, self.window_s),
        )

    dispatch = staticmethod(Emptiest.dispatch)


class SmallOnly(InParts):
    """Rejects what is larger than 1.5 units, with reason 7, else as InParts."""

    @staticmethod
    @kernel
    def dispatch(view: Any, plan: Any, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        if work.units > 1.5:
            return -7
        ranking[0] = work.serial % view.context.n_nodes
        return 1


def played(c: Cluster, r: Requests, parts: int, policy: Any = InParts, **options: Any) -> Driver:
    """The end of a run in which requests are split; joining takes .25 s."""
    switches = Options(join_s=np.full(len(c.class_names), 0.25), **options)
    return run(c, r, switches, Decider.of(policy(parts=parts)), mode="interpreted")


def status(driver: Driver) -> list[int]:
    return driver.state.requests["status"][: driver.n_requests].tolist()


def test_parts_run_side_by_side_and_are_joined() -> None:
    """4 units in 3 parts of at most 4: 2, 1 and 1 units, each with .5 s fixed; the longest, then .25 s."""
    c = cluster(3, fixed_s=0.5)
    d = played(c, asked(c, [0.1], [4.0], parts_max=4), parts=3)
    parts = d.state.work["units"][1:4].tolist()
    assert parts == [2.0, 1.0, 1.0]
    assert finishes(d)[:1] == pytest.approx([0.1 + 2.5 + 0.25])
    assert d.state.requests["start_s"][0] == pytest.approx(0.1)
    assert status(d) == [Status.FINISHED]
    assert count(d, "finished") == count(d, "arrived") == 1
    assert d.state.hidden["busy_slot_s"].tolist() == pytest.approx([2.5, 1.5, 1.5])


def test_no_more_parts_than_it_has_nor_than_the_plan_allows() -> None:
    c = cluster(8)
    r = asked(c, [0.1, 10.0, 20.0], 6.0, parts_max=[2, 0, 6])
    d = played(c, r, parts=3)
    runs, groups = d.state.runs, d.state.groups
    counts = np.where(runs["n_groups"] > 0, groups["count"][runs["group"]], 0)
    assert (counts * runs["started"]).tolist() == [2, 0, 3]
    assert finishes(d)[:3] == pytest.approx([0.1 + 3.25, 16.0, 22.25])


def test_a_part_that_waits_is_waited_for() -> None:
    """Two parts, one node with one slot: one after the other."""
    c = cluster(1)
    d = played(c, asked(c, [0.1], 4.0, parts_max=2), parts=2)
    assert finishes(d)[0] == pytest.approx(0.1 + 4.0 + 0.25)


def test_parts_ask_no_prefix_cache_and_their_request_leaves_its_result() -> None:
    c = replace(cluster(2), prompt_token_units=np.array([0.01]))
    r = asked(c, [0.0, 10.0, 20.0], 4.0, parts_max=2)
    blocks = Prefixes(np.array([0, 1] * 3, np.int32), np.arange(0, 7, 2), np.full(3, 200.0), 100.0)
    r = replace(r, prefixes=blocks, content_idx=np.array([0, 0, -1], np.int32))
    d = played(c, r, parts=2, prefix_blocks=5, results_max=5)
    assert finishes(d)[:3] == pytest.approx([2.25, 10.0, 22.25])
    assert (count(d, "prompt_tokens"), count(d, "result_hits")) == (0, 1)


def test_a_part_that_is_rejected_ends_its_request_and_the_other_parts() -> None:
    """3 units in 2 parts of at most 3: 2 units, which is too much, and 1."""
    c = cluster(2)
    d = played(c, asked(c, [0.1, 5.0], [3.0, 2.0], parts_max=[3, 2]), parts=2, policy=SmallOnly)
    assert status(d) == [Status.REJECTED, Status.FINISHED]
    assert d.state.requests["reason"][0] == 7
    assert count(d, "rejected") == count(d, "finished") == 1
    assert count(d, "cancelled") == count(d, "in_system") == count(d, "in_nodes") == 0


@pytest.mark.parametrize(
    ("cancel", "ends_s"), [(Cancel.NEVER, 8.25), (Cancel.WAITING, 8.25), (Cancel.ALWAYS, 3.0)]
)
def test_its_deadline_is_that_of_all_parts(cancel: Cancel, ends_s: float) -> None:
    """Two parts of 4 s, one of which waits at the deadline: with `waiting` a started request stays."""
    c = cluster(1)
    d = played(c, asked(c, [0.0], 8.0, parts_max=2, deadline_s=3.0), parts=2, cancel=cancel)
    row = d.state.requests[0]
    assert (row["finish_s"] if cancel is not Cancel.ALWAYS else row["ended_s"]) == pytest.approx(ends_s)
    assert count(d, "cancelled") == (cancel is Cancel.ALWAYS)
    assert row["reason"] == (Reason.DEADLINE if cancel is Cancel.ALWAYS else Reason.NONE)


def test_a_request_none_of_whose_parts_has_started_is_cancelled_while_waiting() -> None:
    c = cluster(1)
    r = asked(c, [0.0, 1.0], [6.0, 2.0], parts_max=[1, 2], deadline_s=[np.inf, 3.0])
    d = played(c, r, parts=2, cancel=Cancel.WAITING)
    assert status(d) == [Status.FINISHED, Status.CANCELLED]
    assert d.state.requests["ended_s"][1] == 3.0
    assert d.state.queues["length"].sum() == 0


@pytest.mark.parametrize(("retries", "end"), [(1, Status.FINISHED), (0, Status.LOST)])
def test_a_part_whose_node_fails_is_dispatched_again_or_ends_its_request(retries: int, end: Status) -> None:
    """Parts of 4 s at both nodes; the first node fails at 1 s, for good."""
    c = cluster(2)
    faults = fault_table(once(0, 1.0, np.inf))
    d = played(c, asked(c, [0.0], 8.0, parts_max=2), parts=2, faults=faults, max_retries=retries)
    assert status(d) == [end]
    if end is Status.FINISHED:
        assert finishes(d)[0] == pytest.approx(4.0 + 4.0 + 0.25)
        assert d.state.requests["retries"][0] == 1
    else:
        assert d.state.requests["ended_s"][0] == 1.0
        assert d.state.requests["reason"][0] == Reason.RETRIES
        assert count(d, "lost") == 1
        assert d.state.nodes["in_flight"].tolist() == [0, 0]


def test_resumed_parts_keep_what_they_have_done() -> None:
    c = cluster(2)
    faults = fault_table(once(0, 1.0, 3.0))
    d = played(c, asked(c, [0.0], 8.0, parts_max=2), parts=2, faults=faults, on_failure=OnFailure.RESUME)
    assert finishes(d)[0] == pytest.approx(6.0 + 0.25)


def test_parts_belong_to_the_dispatcher_of_their_request() -> None:
    c = cluster(2)
    r = asked(c, np.arange(7.0).tolist(), parts_max=[3, 1, 2, 4, 0, 2, 5])
    rows = rows_with_runs(r, 2, splits=True)
    parts = np.flatnonzero(rows.stages["run"] >= 0)
    assert parts.tolist() == list(range(7, 7 + 3 + 2 + 4 + 2 + 5))
    for i in range(7):
        mine = np.flatnonzero(rows.stages["run"] == i).tolist()
        most = int(r.work["parts_max"][i])
        first = int(rows.groups["row"][rows.runs["group"][i]])
        assert mine == (list(range(first, first + most)) if most > 1 else [])
    assert (rows.requests.work["serial"] == np.arange(len(rows.requests.work))).all()
    options = Options(join_s=np.zeros(1), dispatchers=3)
    state = run(c, r, options, Decider.of(InParts(parts=2)), mode="interpreted").state
    python = python_state(state)
    dispatcher = interpreted(dispatcher_of)
    assert [dispatcher(python, p) for p in parts.tolist()] == (rows.stages["run"][parts] % 3).tolist()


def test_more_dispatchers_than_one_serve_the_same_parts() -> None:
    c = cluster(3)
    r = asked(c, [0.0, 0.5, 1.0], 3.0, parts_max=3)
    options = Options(join_s=np.zeros(1), dispatchers=2)
    d = run(c, r, options, Decider.of(InParts(parts=3)), mode="interpreted")
    assert count(d, "finished") == 3
    assert d.state.hidden["busy_slot_s"].sum() == pytest.approx(9.0)


def test_compiled_and_interpreted_agree() -> None:
    c = cluster(3, fixed_s=0.1, slots=2)
    r = asked(
        c, (np.arange(60.0) / 4).tolist(), np.tile([4.0, 1.0, 2.0], 20), parts_max=np.tile([4, 1, 2], 20)
    )
    options = Options(join_s=np.full(1, 0.1), batch_marginal_frac=np.full(1, 0.4))
    policy = replace(InParts(), parts=3, batch=3, window_s=0.5)
    a, b = (run(c, r, options, Decider.of(policy), mode=mode) for mode in ("compiled", "interpreted"))
    assert differences(a.state, b.state) == []
