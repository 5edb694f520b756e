"""Runs that enter a live driver one by one: a second of service a unit, on nodes of one slot."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from support.builders import cluster
from support.by_hand import asked
from support.chains import Stage, after, chained
from trimtab.domain.chains import Flow, OnStageFailure, StageSpec, Templates, templates_of
from trimtab.domain.options import Cancel, Options
from trimtab.domain.requests import Requests, Status
from trimtab.engine.live_driver import LiveDriver
from trimtab.engine.live_runs import EnteredRun, LiveRuns
from trimtab.engine.run_row_writer import RunSpec, StageNeeds
from trimtab.engine.simulator import run
from trimtab.engine.state import STAGES
from trimtab.policies import find

EACH, SKIP = Flow.EACH, OnStageFailure.SKIP
ARRIVALS_S = [0.0, 0.1, 0.25, 0.3, 1.0, 1.6]
LINE = {"a": StageSpec(), "b": StageSpec(after("a"))}
MAP = {
    "list": StageSpec(),
    "draw": StageSpec(after("list")),
    "name": StageSpec({"draw": EACH}),
    "film": StageSpec(after("draw", "name")),
}


@dataclass
class Player:
    """Serves what the loop starts, in virtual time. `fails` says after how many seconds to try again."""

    live: LiveDriver
    runs: LiveRuns
    now_s: float = 0.0
    started: list[tuple[float, int, int]] = field(default_factory=list)
    ended: dict[int, tuple[Status, float]] = field(default_factory=dict)
    due: list[tuple[float, int]] = field(default_factory=list)
    before_completion: Callable[[int], None] = lambda row: None
    fails: dict[int, float] = field(default_factory=dict)
    given_up: set[int] = field(default_factory=set)

    def play(self, until_s: float = np.inf) -> None:
        due = self.due
        self._step(due)
        while True:
            next_s = min(due[0][0] if due else np.inf, self.live.next_event_s())
            if next_s > until_s or next_s == np.inf:
                self.now_s = self.now_s if until_s == np.inf else until_s
                return
            self.now_s = max(self.now_s, next_s)
            while due and due[0][0] <= self.now_s:
                self._end(heapq.heappop(due)[1])
            self._step(due)

    def _end(self, row: int) -> None:
        if self.runs.status(row) is not Status.RUNNING:
            return
        if row in self.given_up:
            self.runs.give_up(row, self.now_s)
        elif row in self.fails:
            self.runs.lose(row, self.now_s, self.now_s + self.fails.pop(row))
        else:
            self.before_completion(row)
            self.runs.complete(row, self.now_s, 0.0)

    def _step(self, due: list[tuple[float, int]]) -> None:
        self.live.advance(self.now_s)
        self.runs.schedule_retries()
        for row, node in self.runs.take_started():
            self.started.append((self.now_s, row, node))
            work, state = self.live.state.work, self.live.state
            unit_s = state.unit_s[work["class_idx"][row], state.nodes["type_idx"][node]]
            heapq.heappush(due, (self.now_s + float(unit_s * work["units"][row]), row))
        for row, status, _ in self.runs.take_ended():
            self.ended[row] = Status(status), self.now_s

    def times(self, rows: range) -> list[float]:
        return [at_s for at_s, row, _ in self.started if row in rows]


def player(templates: Templates, nodes: int = 1, rows: int = 40, policy: str = "least-connections") -> Player:
    c = cluster(nodes, classes=3, queue_max=0)
    live = LiveDriver(
        c,
        Options(cancel=Cancel.ALWAYS),
        find(policy),
        rows=rows,
        mode="interpreted",
        keeps_history=False,
        host=STAGES,
        templates=templates,
    )
    return Player(live, LiveRuns(live, templates))


def entered(p: Player, units: Sequence[float], counts: Mapping[int, int] | None = None) -> EnteredRun:
    needs = [StageNeeds(0, (counts or {}).get(k, 1), u) for k, u in enumerate(units)]
    found = p.runs.enter(0, RunSpec(), needs, p.now_s)
    assert found is not None
    return found


def test_a_line_runs_one_after_the_other() -> None:
    p = player(templates_of({"line": LINE}))
    one = entered(p, [2.0, 3.0])
    p.play()
    assert [(at_s, row) for at_s, row, _ in p.started] == [(0.0, one.stages[0]), (2.0, one.stages[1])]
    assert p.ended == {one.row: (Status.FINISHED, 5.0)}


def test_all_rows_of_a_run_enter_or_none() -> None:
    p = player(templates_of({"map": MAP}), rows=9)
    first = p.runs.enter(0, RunSpec(), [StageNeeds(0)] * 4, 0.0)
    assert first is not None
    assert p.runs.enter(0, RunSpec(), [StageNeeds(0)] * 4, 0.0) is None
    p.play()
    p.runs.leave(first, 0)
    assert p.runs.enter(0, RunSpec(), [StageNeeds(0)] * 4, p.now_s) is not None


def test_rows_are_used_again() -> None:
    p = player(templates_of({"line": LINE}), rows=6)
    for turn in range(20):
        first, second = entered(p, [1.0, 1.0]), entered(p, [1.0, 1.0])
        p.play()
        assert p.now_s == 4.0 * (turn + 1)
        p.runs.leave(first, 0)
        p.runs.leave(second, 0)
        assert len(p.ended) <= 6
    assert all(status is Status.FINISHED for status, _ in p.ended.values())


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_count_known_late_moves_all_stages_of_the_map(count: int) -> None:
    p = player(templates_of({"map": MAP}), nodes=2)
    one = entered(p, [1.0, 2.0, 0.5, 4.0])

    def expand(row: int) -> None:
        if row == one.stages[0]:
            moved = p.runs.expand(one, 0, 1, count)
            assert moved is not None
            assert [stage for stage, _ in moved] == [1, 2]

    p.before_completion = expand
    p.play()
    # Two nodes: draws 1–3, 1–3, 3–5; names follow each draw; the film comes after all of them.
    # Over no items the film follows at once, with the empty list.
    ends_s = {0: 1.0 + 4.0, 1: 1.0 + 2.0 + 0.5 + 4.0, 3: 1.0 + 4.0 + 0.5 + 4.0}
    assert p.ended == {one.row: (Status.FINISHED, ends_s[count])}
    assert len(p.started) == 1 + 2 * count + 1


def test_a_lost_attempt_is_made_again_when_its_host_says_so_and_others_meanwhile() -> None:
    p = player(templates_of({"line": LINE}))
    one, two = entered(p, [1.0, 1.0]), entered(p, [1.0, 1.0])
    p.fails[one.stages[0]] = 10.0
    p.play()
    assert [(at_s, row) for at_s, row, _ in p.started] == [
        (0.0, one.stages[0]),
        (1.0, two.stages[0]),
        (2.0, two.stages[1]),
        (11.0, one.stages[0]),
        (12.0, one.stages[1]),
    ]
    assert p.ended == {two.row: (Status.FINISHED, 3.0), one.row: (Status.FINISHED, 13.0)}


def test_an_attempt_that_is_offered_again_before_its_loss_is_processed_starts() -> None:
    p = player(templates_of({"line": LINE}))
    run = entered(p, [1.0, 1.0])
    p.play(0.5)
    p.runs.lose(run.stages[0], 0.5, np.inf)
    p.runs.offer(run.stages[0], 0.5)
    p.play()
    assert p.times(range(run.stages[0], run.stages[0] + 1)) == [0.0, 0.5]


def test_a_stage_that_is_given_up_fails_its_run_or_is_left_out() -> None:
    p = player(templates_of({"line": LINE}))
    one = entered(p, [1.0, 1.0])
    p.given_up.add(one.stages[0])
    p.play()
    assert p.ended[one.row] == (Status.LOST, 1.0)
    skips = {"a": StageSpec(on_failure=SKIP), "b": StageSpec(), "c": StageSpec(after("a", "b"))}
    p = player(templates_of({"join": skips}), nodes=2)
    one = entered(p, [1.0, 2.0, 1.0])
    p.given_up.add(one.stages[0])
    p.play()
    assert p.ended[one.row] == (Status.FINISHED, 3.0)


def test_what_is_answered_or_skipped_takes_no_slot() -> None:
    fork = {
        "a": StageSpec(),
        "b": StageSpec(after("a")),
        "c": StageSpec(after("a")),
        "d": StageSpec(after("b", "c")),
    }
    p = player(templates_of({"fork": fork}))
    one = entered(p, [1.0, 1.0, 1.0, 1.0])
    p.runs.skip(one.stages[1])
    p.runs.answer(one.stages[2], 0.0)
    p.play()
    assert [row for _, row, _ in p.started] == [one.stages[0], one.stages[3]]
    assert p.ended[one.row] == (Status.FINISHED, 2.0)


def test_an_aborted_run_ends_with_all_of_its_stages() -> None:
    p = player(templates_of({"map": MAP}), nodes=2)
    one, two = entered(p, [1.0] * 4, {1: 3, 2: 3}), entered(p, [1.0] * 4)
    p.play(until_s=1.5)
    p.runs.abort(one, p.now_s)
    p.play()
    assert p.ended[one.row][0] is Status.CANCELLED
    assert p.ended[two.row][0] is Status.FINISHED
    p.runs.leave(one, 0)
    p.runs.leave(two, 0)
    assert p.live.state.nodes["in_flight"].tolist() == [0, 0]


def test_a_run_past_its_deadline_is_cancelled() -> None:
    p = player(templates_of({"line": LINE}))
    found = p.runs.enter(0, RunSpec(deadline_s=1.5), [StageNeeds(0), StageNeeds(0)], 0.0)
    assert found is not None
    p.play()
    assert p.ended[found.row] == (Status.CANCELLED, 1.5)


@pytest.mark.parametrize("policy", ["downstream-aware", "heft", "least-expected-completion"])
def test_decisions_equal_those_of_the_simulator(policy: str) -> None:
    """The same runs at the same times: the same starts on the same nodes."""
    draws = np.random.default_rng(7)
    units = draws.uniform(0.5, 3.0, (6, 4)).round(3)
    stages = {
        "list": Stage(1.0),
        "draw": Stage(1.0, after("list"), class_idx=1),
        "name": Stage(1.0, {"draw": EACH}, class_idx=2),
        "film": Stage(1.0, after("draw", "name")),
    }
    c = cluster(3, types=3, classes=3, queue_max=0)
    r = chained(c, asked(c, ARRIVALS_S), stages)
    assert r.chains is not None
    r.chains.work["units"] = r.chains.truth["units"] = units.reshape(-1)
    r.chains.work["estimate_s"] = c.best_estimate_s(r.chains.work["class_idx"], r.chains.work["units"])
    options = Options(cancel=Cancel.ALWAYS)
    with_ranks(r)
    simulated = run(c, r, options, find(policy), mode="interpreted").state
    live = LiveDriver(
        c, options, find(policy), rows=60, mode="interpreted", keeps_history=False, host=STAGES,
        templates=r.chains.templates,
    )  # fmt: skip
    runs = LiveRuns(live, r.chains.templates)
    p = Player(live, runs)
    rows = {}
    for i in range(6):
        needs = [StageNeeds(k, 1, u) for k, u in zip((0, 1, 2, 0), units[i].tolist(), strict=True)]
        p.play(until_s=ARRIVALS_S[i])
        found = runs.enter(0, RunSpec(), needs, p.now_s)
        assert found is not None
        rows |= {row: 6 + 4 * i + k for k, row in enumerate(found.stages)}
    p.play()
    mine = sorted((rows[row], node, at_s) for at_s, row, node in p.started)
    theirs = sorted(
        (row, int(simulated.requests["node_idx"][row]), float(simulated.requests["start_s"][row]))
        for row in range(6, 30)
    )
    assert [m[:2] for m in mine] == [t[:2] for t in theirs]
    assert [m[2] for m in mine] == pytest.approx([t[2] for t in theirs])


def with_ranks(r: Requests) -> None:
    """Ranks and next classes, as `StageNeeds` gives them: the longest path in best estimates."""
    assert r.chains is not None
    work = r.chains.work.reshape(6, 4)
    estimate_s = work["estimate_s"]
    rank_s = estimate_s[:, ::-1].cumsum(axis=1)[:, ::-1]  # every path through list, draw, name and film
    work["rank_s"] = rank_s
    work["next_class_idx"] = np.array([1, 2, 0, -1])
