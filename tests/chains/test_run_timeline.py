"""What the journal says of a run: times by hand, the critical path, the advice."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from support.run_timelines import RECORD, attempt, result, two_pictures
from trimtab.chains.run_advice import (
    ENTERING,
    bottleneck_text,
    critical_path,
    found_bottleneck,
    path_rows,
)
from trimtab.chains.run_timeline import made_timeline
from trimtab.jobs.run_rows import ACTIVE, InputRecord


def test_waits_are_those_worked_out_by_hand() -> None:
    timeline = two_pictures()
    waits = {(timeline.stages[r.stage].name, r.instance): list(r.waits_s.values()) for r in timeline.runs}
    assert waits == {  # entering, queue, retries, transfer, loading, service
        ("load", 0): [0.25, 0.0, 0.0, 0.25, 0.5, 1.0],
        ("draw", 0): [0.0, 0.0, 0.0, 0.0, 0.0, 3.0],
        ("draw", 1): [0.0, 0.0, 3.5, 0.5, 0.0, 4.0],
        ("join", 0): [0.0, 0.25, 0.0, 0.25, 0.0, 0.5],
    }
    assert timeline.busy_frac() == pytest.approx((1.5 + 3.0 + 4.0 + 0.5) / (2 * 10.5))
    assert [a[:4] for a in timeline.open_attempts] == [(0, "draw", 1, 1)]
    assert not timeline.running


def test_the_critical_path_goes_through_stages_that_kept_results_answered() -> None:
    timeline = two_pictures()
    path = [(timeline.stages[r.stage].name, r.instance) for r in critical_path(timeline)]
    assert path == [("load", 0), ("draw", 1), ("join", 0)]


def test_the_shares_of_the_path_are_the_simulators() -> None:
    """Path of 11 s: 0.5 to enter, load 0.5 + 1, draw[1] 4 waiting + 4, join 0.5 + 0.5."""
    by_stage = {s.stage: s for s in two_pictures().summaries}
    draw = by_stage["draw"]
    assert (draw.path_queueing_frac, draw.path_service_frac) == pytest.approx((4 / 11, 4 / 11))
    assert by_stage["load"].path_loading_frac == pytest.approx(0.5 / 11)
    assert by_stage["check"].served == 0
    assert sum(s.path_frac for s in by_stage.values()) == pytest.approx(10.5 / 11)


def test_the_bottleneck_is_named_with_what_to_change() -> None:
    found = found_bottleneck(two_pictures())
    assert found is not None
    # draw[1]: 3.5 s lost, 0.5 s on its way, 4 s; the workers served for 9 s, 7 s of them draws: 7/9 of the
    # half second that load waited to enter and join waited for a worker.
    draw_s = 8 + 0.5 * 7 / 9
    assert (found.stage, found.path_frac) == ("draw", pytest.approx(draw_s / 11))
    assert found.entering_s == 0.25
    text = bottleneck_text(found)
    assert "draw is the bottleneck: 76 %" in text
    assert "48 % computing, 42 % attempts that failed or were lost" in text
    assert "A call of draw takes 3.5 s" in text


def test_what_all_inputs_wait_to_enter_for_is_the_stage_that_fills_the_workers() -> None:
    """Four inputs on one worker: split 0.1 s, then score 1 s; the last enters after 3.3 s."""
    stages = [
        {"name": "split", "after": {}, "concurrency": 0, "rate_per_s": 0.0},
        {"name": "score", "after": {"split": "all"}, "concurrency": 0, "rate_per_s": 0.0},
    ]
    record = replace(RECORD, options=json.dumps({"tags": {}, "stages": stages}))
    attempts, results = [], []
    for i in range(4):
        attempts += [attempt("split", 0, 1.1 * i, at=i), attempt("score", 0, 1.1 * i + 0.1, at=i)]
        results += [
            result("split", 0, 1.1 * i + 0.1, 0.1, number=i),
            result("score", 0, 1.1 * (i + 1), 1.0, number=i),
        ]
    inputs = [InputRecord(i, "done", b"", "") for i in range(4)]
    timeline = made_timeline(record, inputs, attempts, results)
    found = found_bottleneck(timeline)
    assert found is not None
    assert (found.stage, found.path_frac) == ("score", pytest.approx(1.0 / 1.1))
    assert found.entering_s == pytest.approx((0 + 1.1 + 2.2 + 3.3) / 4)
    assert "make score faster, which takes 91 % of their time" in found.advice
    told = [(row.name, round(sum(row.waits_s.values()), 6)) for row in path_rows(timeline)]
    assert told == [(ENTERING, 3.3), ("split[0]", 0.1), ("score[0]", 1.0)]


def waiting(concurrency: int, n_workers: int) -> str:
    """Four draws of 1 s, one after the other, all ready at 0."""
    stages = [{"name": "draw", "after": {}, "concurrency": concurrency, "rate_per_s": 0.0}]
    record = replace(RECORD, options=json.dumps({"tags": {}, "stages": stages}))
    results = [
        result("draw", 0, i + 1.0, 1.0, worker=f"w{i % n_workers}", number=i) for i in range(4)
    ]  # fmt: skip
    attempts = [attempt("draw", 0, float(i), at=i) for i in range(4)]
    inputs = [InputRecord(i, "done", b"", "") for i in range(4)]
    found = found_bottleneck(made_timeline(record, inputs, attempts, results))
    assert found is not None
    return found.advice


def test_waiting_is_laid_on_limits_on_few_workers_or_on_what_fits_too_few() -> None:
    assert "concurrency=1 holds it back" in waiting(1, 1)
    assert "1 worker, busy 100 % of the time: add workers" in waiting(0, 1)
    assert "2 workers, busy 50 % of the time, and yet it waited" in waiting(0, 2)


def test_a_run_that_goes_on_has_attempts_that_run() -> None:
    record = replace(RECORD, owner="chains-1", state=ACTIVE, ended_s=None)
    attempts = [attempt("load", 0, 0.0), attempt("load", 0, 1.0, 2)]
    timeline = made_timeline(record, [InputRecord(0, ACTIVE, b"", "")], attempts, [])
    assert [(a.attempt, a in timeline.running) for a in timeline.open_attempts] == [(1, False), (2, True)]
    assert timeline.end_s > 0.0
    assert found_bottleneck(timeline) is None


def test_a_stage_that_the_run_did_not_begin_with_has_no_place_in_its_timeline() -> None:
    """It was resumed after its chain was changed."""
    attempts = [attempt("load", 0, 0.0), attempt("added", 0, 1.0)]
    timeline = made_timeline(RECORD, [], attempts, [result("added", 0, 2.0, 1.0)])
    assert [(a.stage, a.instance) for a in timeline.open_attempts] == [("load", 0)]
    assert timeline.runs == ()


def test_workers_without_a_name_are_numbered_by_how_many_run_at_a_time() -> None:
    """Three overlap two by two: 0-2, 1-3, 2-4, so two workers suffice."""
    record = replace(RECORD, options=json.dumps({"tags": {}}))  # of a version that kept no shape
    results = [result("draw", i, i + 2.0, 2.0, worker="") for i in range(3)]
    attempts = [attempt("draw", i, float(i)) for i in range(3)]
    timeline = made_timeline(record, [InputRecord(0, "done", b"", "")], attempts, results)
    assert [run.worker for run in timeline.runs] == ["1", "2", "1"]
    assert all(run.waited_for == -1 for run in timeline.runs)
