"""Batches of stages: how full, when, of which runs; failures alone; on threads and on processes."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any

import pytest

from trimtab.chains import Session, StageContext, State, chain, run, stage
from trimtab.chains.run_reports import timeline
from trimtab.chains.stage_codes import codes_of
from trimtab.clusters.in_process import InProcess
from trimtab.clusters.processes import Processes
from trimtab.clusters.simulated_workers import SimulatedWorkers, StandIn
from trimtab.errors import ChainError
from trimtab.live.stage_backend import Argument, Attempt, Outcome, StageNode

CALLS: list[list[int]] = []
GATE: list[int] = []
ALONE = [0, 0]  # calls now, most at a time


@stage(batch=4)
def doubled(numbers: list[int], by: list[int]) -> list[int]:
    CALLS.append(list(numbers))
    return [n * k for n, k in zip(numbers, by, strict=True)]


@stage(batch=4, retries=1, backoff_s=0.0)
def checked(numbers: list[int]) -> list[int]:
    CALLS.append(list(numbers))
    if 3 in numbers:
        raise ValueError("3")
    return numbers


@stage(batch=3)
def short(numbers: list[int]) -> list[int]:
    CALLS.append(list(numbers))
    return numbers[:-1] if len(numbers) > 1 else numbers


@stage(batch=8, batch_wait_s=0.2)
def patient(numbers: list[int]) -> list[int]:
    CALLS.append(list(numbers))
    return numbers


@stage(batch=4, concurrency=1)
def alone(numbers: list[int]) -> list[int]:
    ALONE[0] += 1
    ALONE[1] = max(ALONE)
    CALLS.append(list(numbers))
    time.sleep(0.01)  # another call would begin meanwhile
    ALONE[0] -= 1
    return numbers


@stage(batch=2, batch_wait_s=30.0)
def held(numbers: list[int]) -> list[int]:
    while not GATE:
        time.sleep(0.002)
    CALLS.append(list(numbers))
    return numbers


@stage
def upto(n: int) -> list[int]:
    return list(range(n))


@stage
def total(numbers: list[int]) -> int:
    return sum(numbers)


@chain
def totals(n: int) -> Any:
    return total(doubled.map(upto(n), by=10))


@chain
def double(n: int) -> Any:
    return doubled(n, 2)


@chain
def check(n: int) -> Any:
    return checked(n)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    CALLS.clear()
    GATE.clear()


class Counting(SimulatedWorkers):
    """Notes how many instances each call of `doubled` serves."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.sizes: list[int] = []

    def start(self, node: int, attempt: Attempt, inputs: Sequence[Argument]) -> Awaitable[Outcome]:
        if attempt.stage.endswith("doubled"):
            self.sizes.append(len(inputs[0].refs))
        return super().start(node, attempt, inputs)


def one(slots: int = 1) -> InProcess:
    return InProcess([StageNode("one", slots=slots)])


def test_instances_of_several_inputs_are_served_together() -> None:
    """Ten inputs that are ready at once: two full batches and one of what is left."""
    handle = run(double, range(10), on=one())
    assert handle.values() == [2 * n for n in range(10)]
    assert Counter(map(len, CALLS)) == {4: 2, 2: 1}
    assert sorted(n for call in CALLS for n in call) == list(range(10))
    counts = handle.counts["doubled"]
    assert (counts.queued, counts.running, counts.done, counts.retries) == (0, 0, 10, 0)


def test_what_waits_while_workers_are_busy_fills_the_batches() -> None:
    """160 instances come one by one, and two workers have other stages to run, too: calls are nearly full."""

    @chain
    def scores(n: int) -> Any:
        return total(doubled.options(batch=16).map(upto(n), by=1))

    costs_s = {"upto": (0.02, upto), "doubled": (0.2, doubled), "total": (0.03, total)}
    stand_ins = {f"scores/{name}": StandIn(s, code.stage_code) for name, (s, code) in costs_s.items()}
    backend = Counting([StageNode("one", slots=2)], stand_ins)
    with Session(scores, on=backend) as session:
        assert session.run(scores, [1] * 160).values() == [0] * 160
    assert sum(backend.sizes) == 160
    assert 160 / len(backend.sizes) >= 12


def test_runs_of_two_handles_share_batches_and_maps_join_again() -> None:
    with Session(totals, on=one()) as session:
        first, second = session.run(totals, [3]), session.run(totals, [4, 0])
        assert first.values() == [30]
        assert second.values() == [60, 0]
    assert sum(map(len, CALLS)) == 7
    assert max(map(len, CALLS)) > 1


def test_outside_a_chain_a_map_is_one_call() -> None:
    assert doubled.map([1, 2], by=3) == [3, 6]
    assert CALLS == [[1, 2]]


def test_a_batch_waits_for_others_no_longer_than_declared() -> None:
    for wait_s in (0.2, 2.0, 20.0):  # longer where this process was held up between the two runs

        @chain
        def waits(n: int) -> Any:
            return patient.options(batch_wait_s=wait_s)(n)  # noqa: B023 - called in this turn

        CALLS.clear()
        with Session(waits, on=one()) as session:
            first = session.run(waits, [1, 2])
            time.sleep(0.05)
            second = session.run(waits, [3])
            assert first.values() + second.values() == [1, 2, 3]
        if len(CALLS) == 1:
            break
    assert CALLS == [[1, 2, 3]]


def test_a_full_batch_does_not_wait() -> None:
    @chain
    def impatient(n: int) -> Any:
        return patient.options(batch=2, batch_wait_s=3600.0)(n)

    assert run(impatient, [1, 2, 3, 4], on=one()).values() == [1, 2, 3, 4]
    assert Counter(map(len, CALLS)) == {2: 2}


def test_what_cannot_be_served_fails_alone() -> None:
    """The batch with 3 in it is tried again one by one; 3 then fails twice, as declared."""
    handle = run(check, range(4), on=one())
    results = handle.wait()
    assert [r.state for r in results] == [State.DONE] * 3 + [State.FAILED]
    assert "ValueError: 3" in str(results[3].failure)
    assert sorted(CALLS[0]) == [0, 1, 2, 3]
    assert Counter(tuple(call) for call in CALLS[1:]) == {(0,): 1, (1,): 1, (2,): 1, (3,): 2}
    counts = handle.counts["checked"]
    assert (counts.queued, counts.running, counts.done, counts.failed) == (0, 0, 3, 1)


def test_a_batch_that_gives_too_few_outputs_is_tried_one_by_one() -> None:
    @chain
    def few(n: int) -> Any:
        return short(n)

    assert run(few, [5, 6, 7], on=one()).values() == [5, 6, 7]
    assert Counter(map(len, CALLS)) == {3: 1, 1: 3}


def test_a_cancelled_run_leaves_the_rest_of_its_batch() -> None:
    @chain
    def hold(n: int) -> Any:
        return held(n)

    with Session(hold, on=one()) as session:
        first, second = session.run(hold, [1]), session.run(hold, [2])
        while session.metrics.tables()["trimtab_stage_running"]["hold", "held"] != [2.0]:
            time.sleep(0.002)
        first.cancel()
        assert first.wait()[0].state is State.CANCELLED
        GATE.append(1)
        assert second.values() == [2]
        assert session.run(hold, [3, 4]).values() == [3, 4]  # the slot is free again
    assert [sorted(call) for call in CALLS] == [[1, 2], [3, 4]]


def test_batches_on_processes_with_a_journal(tmp_path: Any) -> None:
    called = tmp_path / "called"

    @stage
    def listed(n: int) -> list[int]:
        return list(range(n))

    @stage(batch=4)
    def tenfold(numbers: list[int]) -> list[int]:
        with called.open("a") as file:
            file.write("x" * len(numbers))
        return [10 * n for n in numbers]

    @stage
    def summed(numbers: list[int]) -> int:
        return sum(numbers)

    @chain
    def sums(n: int) -> Any:
        return summed(tenfold.map(listed(n)))

    handle = run(sums, [5, 6], on=Processes([StageNode("one", slots=2)]), journal=tmp_path)
    assert handle.values() == [100, 150]
    with Session(sums, on=one(), journal=tmp_path) as session:  # all of it is known
        assert session.resume(handle.id).values() == [100, 150]
    assert called.read_text() == "x" * 11


def test_a_killed_worker_loses_no_instance_of_its_batch(tmp_path: Path) -> None:
    """Killed while it serves a batch: each of its instances is tried again, and recorded once."""
    pids, gate = tmp_path / "pids", tmp_path / "gate"

    @stage(batch=4, batch_wait_s=30.0)
    def served(numbers: list[int]) -> list[int]:
        if len(numbers) > 1:
            pids.write_text(str(os.getpid()))
            while not gate.exists():
                time.sleep(0.01)
        return numbers

    @chain
    def serve(n: int) -> Any:
        return served(n)

    with Session(serve, on=Processes([StageNode("one")]), journal=tmp_path / "journal") as session:
        handle = session.run(serve, range(4))
        while not pids.exists() or not pids.read_text():
            time.sleep(0.01)
        os.kill(int(pids.read_text()), signal.SIGKILL)
        assert handle.values() == [0, 1, 2, 3]
        counts = handle.counts["served"]
        assert (counts.done, counts.retries) == (4, 4)
    found = timeline(tmp_path / "journal", handle.id)
    assert sorted(run.number for run in found.runs) == [0, 1, 2, 3]
    assert sorted(a.number for a in found.open_attempts) == [0, 1, 2, 3]  # those of the batch


@stage(batch=4, batch_wait_s=3600.0, retries=1, backoff_s=0.0)
def whose(numbers: list[int], ctx: list[StageContext]) -> list[tuple[int, str, int]]:
    if len(numbers) > 1 and 3 in numbers:
        raise ValueError("3")
    return [(n, c.idempotency_key, c.attempt) for n, c in zip(numbers, ctx, strict=True)]


def test_each_instance_of_a_batch_has_its_own_context() -> None:
    @chain
    def asked(n: int) -> Any:
        return whose(n)

    handle = run(asked, [4, 5, 6, 7, 0, 1, 2, 3], on=one())  # the second batch is tried one by one
    keys = [f"{handle.id}/{k}/whose/0" for k in range(8)]
    tried = [1, 1, 1, 1, 2, 2, 2, 2]
    assert handle.values() == list(zip([4, 5, 6, 7, 0, 1, 2, 3], keys, tried, strict=True))
    assert whose([1, 2]) == [(1, "here", 1), (2, "here", 1)]
    assert whose.map([2]) == [(2, "here", 1)]


def test_a_batch_counts_once_against_the_limits_of_its_stage() -> None:
    """Ten inputs, four a call, a call at a time: in turn, though there are slots for six."""

    @chain
    def limited(n: int) -> Any:
        return alone(n)

    ALONE[:] = [0, 0]
    handle = run(limited, range(10), on=one(slots=6))
    assert handle.values() == list(range(10))
    assert ALONE == [0, 1]
    assert Counter(map(len, CALLS)) == {4: 2, 2: 1}
    counts = handle.counts["alone"]
    assert (counts.queued, counts.running, counts.done, counts.retries) == (0, 0, 10, 0)


def test_a_batch_that_a_limit_holds_back_goes_on_when_a_run_of_it_is_cancelled() -> None:
    @chain
    def limited(n: int) -> Any:
        return held.options(batch_wait_s=0.0, concurrency=1)(n)

    with Session(limited, on=one(slots=4)) as session:
        first, second, third = (session.run(limited, [k, k]) for k in range(3))
        while session.metrics.tables()["trimtab_stage_running"]["limited", "held"] != [2.0]:
            time.sleep(0.002)
        second.cancel()
        assert [r.state for r in second.wait()] == [State.CANCELLED] * 2
        GATE.append(1)
        assert first.values() + third.values() == [0, 0, 2, 2]


def test_calls_of_a_batched_stage_begin_at_its_rate() -> None:
    """Eight inputs, four a call, a call each 2 s, 1 s a call: the last ends at 3 s of virtual time."""

    @chain
    def paced(n: int) -> Any:
        return doubled.options(rate_per_s=0.5)(n, 1)

    backend = SimulatedWorkers(
        [StageNode("one", slots=4)], {"paced/doubled": StandIn(1.0, doubled.stage_code)}
    )
    with Session(paced, on=backend) as session:
        results = session.run(paced, range(8)).wait()
    assert [r.value for r in results] == list(range(8))
    assert sorted(round(r.elapsed_s, 6) for r in results) == [1.0] * 4 + [3.0] * 4


def test_what_a_batched_stage_cannot_be_is_refused() -> None:
    @stage(batch=2)
    def lists(items: list[int]) -> list[list[int]]:
        return [[n] for n in items]

    @stage(batch=2)
    def anything(items):  # type: ignore[no-untyped-def]
        return items

    @chain
    def mapped(n: int) -> Any:
        return upto.map(lists(n))

    @chain
    def gathered(n: int) -> Any:
        return anything(upto.map(upto(n)))

    with Session(check, on=one()):
        pass
    for made, told in (
        (mapped, "its output is mapped over"),
        (gathered, "reads all outputs of a map"),
    ):
        with pytest.raises(ChainError, match=told):
            codes_of(made)
    with pytest.raises(ChainError, match=r"batch: out of range \(got 2\); expected 1 with speculate"):
        stage(batch=2, speculate=2.0)(len)
    with pytest.raises(ChainError, match="batch"):
        stage(batch=0)(len)
    with pytest.raises(ChainError, match="a value of another type"):

        @chain
        def wrong(text: str) -> Any:
            return checked(text)
