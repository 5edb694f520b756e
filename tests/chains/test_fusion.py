"""Short stages in one attempt: which, with what results, and what a failure in the middle costs."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any

import pytest

from trimtab.chains import Session, StageContext, State, chain, stage
from trimtab.chains.graph import Chain
from trimtab.chains.run_reports import timeline
from trimtab.clusters.in_process import InProcess
from trimtab.clusters.processes import Processes
from trimtab.errors import UsageError
from trimtab.live.stage_backend import Argument, Attempt, Cause, Outcome, StageNode

CALLS: Counter[str] = Counter()
BEGUN, OVER = threading.Event(), threading.Event()
SHORT_S = 0.001


@pytest.fixture(autouse=True)
def _fresh() -> None:
    CALLS.clear()
    BEGUN.clear()
    OVER.clear()


class Watched(InProcess):
    """Notes the stages of each attempt that it is given."""

    def __init__(self) -> None:
        super().__init__([StageNode("one", slots=2)])
        self.sent: list[tuple[str, ...]] = []

    def start(self, node: int, attempt: Attempt, inputs: Sequence[Argument]) -> Awaitable[Outcome]:
        self.sent.append(tuple(each.stage.partition("/")[2] for each in attempt.in_turn))
        return super().start(node, attempt, inputs)


@stage(cost_s=SHORT_S)
def plus(n: int, by: int = 1) -> int:
    CALLS["plus"] += 1
    return n + by


@stage(cost_s=SHORT_S)
def times(n: int, by: int) -> int:
    CALLS["times"] += 1
    return n * by


@stage(cost_s=SHORT_S)
def whose(n: int, ctx: StageContext) -> tuple[int, str, int]:
    return n, ctx.idempotency_key, ctx.attempt


@stage(cost_s=SHORT_S, retries=1, backoff_s=0.0)
def brittle(n: int) -> int:
    CALLS["brittle"] += 1
    if CALLS["brittle"] <= n:
        raise ValueError(f"call {CALLS['brittle']}")
    return n


@stage(cost_s=SHORT_S)
def listed(n: int) -> list[int]:
    return list(range(n))


@stage(cost_s=SHORT_S)
def total(numbers: list[int]) -> int:
    return sum(numbers)


@stage(cost_s=SHORT_S)
def squares(numbers: list[int]) -> list[int]:
    return [n * n for n in numbers]


@stage(cost_s=SHORT_S)
def shared(n: int, numbers: list[int]) -> int:
    return n + sum(numbers)


@stage(cost_s=SHORT_S, retries=0, timeout_s=0.1)
def stuck(n: int) -> int:
    OVER.wait(30.0)
    return n


@stage(cost_s=SHORT_S)
def waiting(n: int, ctx: StageContext) -> int:
    BEGUN.set()
    while not ctx.is_cancelled():
        OVER.wait(0.005)
    return n


@chain
def line(n: int, by: int = 3) -> Any:
    """(n + 1) · by, who made it, and the number in between."""
    one = plus(n)
    return {"one": one, "end": whose(times(one, by))}


@chain
def fragile(n: int) -> Any:
    return times(brittle(plus(n, by=0)), by=10)


def test_a_line_of_short_stages_is_one_attempt_and_each_has_its_results(tmp_path: Path) -> None:
    backend = Watched()
    with Session(line, on=backend, journal=tmp_path) as session:
        handle = session.run(line, [1, {"n": 2, "by": 5}], parts=True)
        parts = {(part.input, part.stage): part.value for part in handle.parts}
        values = handle.values()
        assert backend.sent == [("plus", "times", "whose")] * 2
        keys = [f"{handle.id}/{k}/whose/0" for k in (0, 1)]
        assert values == [{"one": 2, "end": (6, keys[0], 1)}, {"one": 3, "end": (15, keys[1], 1)}]
        for counts in handle.counts.values():
            assert (counts.queued, counts.running, counts.done, counts.retries) == (0, 0, 2, 0)
        assert parts == {
            (0, "plus"): 2, (1, "plus"): 3,
            (0, "whose"): values[0]["end"], (1, "whose"): values[1]["end"],
        }  # fmt: skip
        table = session.metrics.tables()["trimtab_stage_service_seconds"]
        assert [sum(table["line", name][:-1]) for name in ("plus", "times", "whose")] == [2.0, 2.0, 2.0]
        assert len(backend._values) == 3  # what would take the place of a failed output: nothing else is held
    told = timeline(tmp_path, handle.id)
    assert sorted((run.number, told.stages[run.stage].name, run.attempts) for run in told.runs) == [
        (k, name, 1) for k in (0, 1) for name in ("plus", "times", "whose")
    ]
    for k in (0, 1):
        first, second, third = (run for run in told.runs if run.number == k)
        assert first.finish_s <= second.start_s + 1e-6
        assert second.finish_s <= third.start_s + 1e-6
        assert second.waits_s["queue"] == pytest.approx(0.0, abs=1e-6)
    assert told.open_attempts == ()


@pytest.mark.parametrize("fuse_s", [0.0, SHORT_S])
def test_stages_that_are_not_shorter_than_asked_have_attempts_of_their_own(fuse_s: float) -> None:
    backend = Watched()
    with Session(line, on=backend, fuse_s=fuse_s) as session:
        assert session.run(line, [1]).values()[0]["end"][0] == 6
    assert backend.sent == [("plus",), ("times",), ("whose",)]


def test_what_is_measured_takes_the_place_of_what_was_declared() -> None:
    """Too long as declared, so the first input goes stage by stage."""
    backend = Watched()

    @chain
    def cautious(n: int) -> Any:
        return times.options(cost_s=2.0)(plus.options(cost_s=2.0)(n), by=2)

    with Session(cautious, on=backend, fuse_s=1.0, in_flight=1) as session:
        assert session.run(cautious, [1, 2]).values() == [4, 6]
    assert backend.sent == [("plus",), ("times",), ("plus", "times")]


def test_instances_of_maps_go_on_by_themselves() -> None:
    @chain
    def each(n: int) -> Any:
        return total(times.map(plus.map(listed(n)), by=2))

    backend = Watched()
    with Session(each, on=backend) as session:
        assert session.run(each, [3, 0]).values() == [12, 0]  # 2 · (1 + 2 + 3)
    assert Counter(backend.sent) == {("listed",): 2, ("plus", "times"): 3, ("total",): 2}


def of(build: Any) -> dict[str, str]:
    """Which stage may follow which."""
    made: Chain = chain(build)
    names = [step.name for step in made.steps]
    return {names[k]: names[m] for k, m in enumerate(made.following) if m >= 0}


def test_only_what_reads_one_stage_alone_on_the_same_terms_may_follow() -> None:
    assert of(lambda n: times(plus(n), n)) == {"plus": "times"}
    assert of(lambda n: [times(one := plus(n), 2), brittle(one)]) == {}
    assert of(lambda n: times(plus(n), brittle(n))) == {}
    assert of(lambda n: times.when(n)(plus(n), 2)) == {}
    assert of(lambda n: times.when(brittle(n))(plus(n), 2)) == {}
    assert of(lambda n: plus.map(listed(n))) == {}
    assert of(lambda n: total(plus.map(listed(n)))) == {}
    assert of(lambda n: shared.map(n, numbers=plus.map(n))) == {}
    assert of(lambda n: times.map(plus.map(listed(n)), by=2)) == {"plus": "times"}
    for options in (
        {"cpu": 2.0}, {"labels": {"zone": "a"}}, {"concurrency": 1}, {"rate_per_s": 9.0},
        {"speculate": 2.0}, {"deterministic": True}, {"cost_s": 0.0},
    ):  # fmt: skip
        other = brittle.options(**options)
        assert of(lambda n: other(plus(n))) == {}, options  # noqa: B023 - called at once
    assert of(lambda n: squares.options(batch=2)(plus(n))) == {}
    kept = plus.options(deterministic=True)
    assert of(lambda n: brittle(kept(n))) == {"plus": "brittle"}


def test_an_error_in_the_middle_repeats_nothing_that_was_finished(tmp_path: Path) -> None:
    backend = Watched()
    with Session(fragile, on=backend, journal=tmp_path) as session:
        handle = session.run(fragile, [1])
        assert handle.values() == [10]
        assert backend.sent == [("plus", "brittle", "times"), ("brittle",), ("times",)]
        assert CALLS == {"plus": 1, "brittle": 2, "times": 1}
        assert handle.counts["brittle"].retries == 1
    told = timeline(tmp_path, handle.id)
    tried = {told.stages[run.stage].name: run.attempts for run in told.runs}
    assert tried == {"plus": 1, "brittle": 2, "times": 2}  # the first at `times` came to nothing


def test_a_last_error_ends_its_input_and_later_only_what_was_not_finished_runs(tmp_path: Path) -> None:
    with Session(fragile, on=Watched(), journal=tmp_path) as session:
        handle = session.run(fragile, [2])
        (result,) = handle.wait()
        assert result.state is State.FAILED
        assert result.failure is not None
        assert (result.failure.stage, result.failure.attempts) == ("brittle", 2)
        assert "call 2" in str(result.failure)
        assert CALLS == {"plus": 1, "brittle": 2}
    with Session(fragile, on=Watched(), journal=tmp_path) as session:
        assert session.resume(handle.id, retry_failed=True).values() == [20]
    assert CALLS == {"plus": 1, "brittle": 3, "times": 1}


def test_each_stage_is_kept_and_found_by_itself(tmp_path: Path) -> None:
    kept = {"deterministic": True}

    def built(last: int) -> Chain:
        def line(n: int) -> Any:
            return times.options(**kept)(plus.options(**kept)(n), by=last)

        made: Chain = chain(line)
        return made

    for last, sent in ((2, [("plus", "times")]), (2, []), (5, [("times",)])):
        backend, made = Watched(), built(last)
        with Session(made, on=backend, journal=tmp_path) as session:
            assert session.run(made, [3]).values() == [4 * last]
        assert backend.sent == sent


def test_a_stage_that_takes_too_long_is_found_out_though_it_ran_behind_another() -> None:
    @chain
    def waits(n: int) -> Any:
        return times(stuck(plus.options(retries=0)(n)), by=2)

    backend = Watched()
    with Session(waits, on=backend) as session:
        (result,) = session.run(waits, [1]).wait()
        OVER.set()
    assert backend.sent == [("plus", "stuck", "times"), ("plus",), ("stuck",)]
    assert result.failure is not None
    assert (result.failure.stage, result.failure.error.cause) == ("stuck", Cause.TIMEOUT)


def test_a_cancelled_run_ends_what_runs_together_and_holds_no_values() -> None:
    @chain
    def waits(n: int) -> Any:
        return waiting(plus(n))

    backend = Watched()
    with Session(waits, on=backend) as session:
        handle = session.run(waits, [1])
        assert BEGUN.wait(30.0)
        handle.cancel()
        assert handle.wait()[0].state is State.CANCELLED
        assert {name: (c.queued, c.running, c.done) for name, c in handle.counts.items()} == {
            "plus": (0, 0, 0),
            "waiting": (0, 0, 0),
        }


def test_a_killed_worker_loses_nothing_but_time(tmp_path: Path) -> None:
    """It is killed in the middle: all of its stages are tried again, one by one, and recorded once."""
    mark = tmp_path / "killed"

    @stage(cost_s=SHORT_S, retries=0)
    def first(n: int) -> int:
        return n + 1

    @stage(cost_s=SHORT_S, retries=0)
    def deadly(n: int) -> int:
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return n

    @stage(cost_s=SHORT_S, retries=0)
    def last(n: int) -> int:
        return 2 * n

    @chain
    def survives(n: int) -> Any:
        return last(deadly(first(n)))

    with Session(survives, on=Processes([StageNode("one")]), journal=tmp_path) as session:
        handle = session.run(survives, [1, 2, 3])
        assert handle.values() == [4, 6, 8]
    told = timeline(tmp_path, handle.id)
    tried = Counter((told.stages[run.stage].name, run.attempts) for run in told.runs)
    assert tried == {(name, n): k for name in ("first", "deadly", "last") for n, k in ((1, 2), (2, 1))}
    assert len({(run.number, run.stage) for run in told.runs}) == len(told.runs) == 9


def test_a_threshold_below_zero_is_refused() -> None:
    with pytest.raises(UsageError, match=r"fuse_s: out of range \(got -1"):
        Session(line, on=Watched(), fuse_s=-1.0)
