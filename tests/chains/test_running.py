"""Chains from their definition to their results, in threads."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from trimtab.chains import Session, StageContext, StageFailed, State, chain, run, stage
from trimtab.chains.graph import Chain
from trimtab.clusters.in_process import InProcess
from trimtab.clusters.simulated_workers import SimulatedWorkers, StandIn
from trimtab.errors import ChainError, UsageError
from trimtab.live.stage_backend import Cause, StageNode

TRIED: Counter[str] = Counter()
KEYS: list[str] = []


@stage
def words(text: str) -> list[str]:
    return text.split()


@stage
def upper(word: str, mark: str = "") -> str:
    return word.upper() + mark


@stage
def count(word: str) -> int:
    return len(word)


@stage
def pair(word: str, size: int) -> str:
    return f"{word}:{size}"


@stage
def joined(parts: list[str]) -> str:
    return " ".join(parts)


@stage(retries=2, backoff_s=0.01)
def flaky(name: str, failures: int) -> str:
    TRIED[name] += 1
    if TRIED[name] <= failures:
        raise RuntimeError(f"attempt {TRIED[name]}")
    return name


@stage
def is_long(text: str) -> bool:
    return len(text) > 3


SEEN: list[int] = []  # results that a test has got


@stage
def after(n: int) -> int:
    """Ends once the test has got so many results."""
    until_s = time.monotonic() + 60.0
    while len(SEEN) < n and time.monotonic() < until_s:
        time.sleep(0.002)
    return n


@stage
def same(value: object) -> object:
    return value


@stage
def whose(text: str, ctx: StageContext) -> str:
    return ctx.idempotency_key


@stage(backoff_s=0.0)
def effect(text: str, ctx: StageContext) -> int:
    KEYS.append(ctx.idempotency_key)
    if ctx.attempt < 3:
        raise OSError(text)
    return ctx.attempt


@chain
def shout(text: str) -> Any:
    """A fan-out whose count is known late, one map over another, and a join."""
    big = upper.map(words(text), mark="!")
    return joined(pair.map(big, count.map(big)))


@chain
def waiting(n: int) -> Any:
    return after(n)


@chain
def kept(value: object) -> Any:
    return same(value)


def outputs(made: Chain, inputs: Any, **options: Any) -> list[Any]:
    return run(made, inputs, on=InProcess([StageNode("one", slots=2)]), **options).values()


def test_fan_out_map_over_a_map_and_join() -> None:
    assert outputs(shout, ["a bc def", "x", "q q"]) == ["A!:2 BC!:3 DEF!:4", "X!:2", "Q!:2 Q!:2"]


def test_what_reads_a_map_over_no_items_is_called_with_the_empty_list() -> None:
    assert outputs(shout, [""]) == [""]


def test_what_reads_all_of_a_map_is_called_though_all_of_it_is_left_out_or_it_follows_such_a_map() -> None:
    @stage(retries=0)
    def fails(text: str) -> str:
        raise ValueError(text)

    @chain
    def left_out(items: list[str]) -> Any:
        failed = fails.options(on_failure="skip").map(items)
        long = upper.when(is_long.map(items)).map(items)
        listed = words.when(is_long(items[0]))(items[0])
        return {
            "failed": joined(failed),
            "behind": joined(upper.map(failed)),
            "filtered": joined(long),
            "taken": joined(upper.map(listed)),
        }

    some = {"failed": "", "behind": "", "filtered": "ABCD", "taken": "ABCD"}
    none = {"failed": "", "behind": "", "filtered": "", "taken": None}
    assert outputs(left_out, [["abcd", "x"], ["a"]]) == [some, none]


def test_the_output_of_a_map_over_no_items_is_an_empty_list() -> None:
    @chain
    def lined(text: str) -> Any:
        listed = words(text)
        some = words.when(is_long(text))(text)
        return {"all": upper.map(listed), "some": upper.map(some)}

    assert outputs(lined, ["", "abcd"]) == [{"all": [], "some": []}, {"all": ["ABCD"], "some": ["ABCD"]}]


def test_outputs_may_be_several_values_and_constants_by_name() -> None:
    @chain
    def several(text: str) -> Any:
        listed = words(text)
        return {"all": upper.map(listed), "first": upper(listed[0]), "kind": "words"}

    assert outputs(several, ["a b"]) == [{"all": ["A", "B"], "first": "A", "kind": "words"}]


def test_inputs_may_be_mapped_over_and_have_defaults() -> None:
    @chain
    def each(items: list[str], mark: str = "?") -> Any:
        return joined(upper.map(items, mark=mark))

    assert outputs(each, [{"items": ["a", "b"]}, {"items": ["c"], "mark": "."}]) == ["A? B?", "C."]
    assert outputs(each, [["d", "e"]]) == ["D? E?"]


def test_conditions_skip_stages_and_what_reads_only_them() -> None:
    @chain
    def some(text: str) -> Any:
        big = upper.when(is_long(text))(text)
        return {"big": big, "twice": upper(big, mark="!"), "size": count(text)}

    assert outputs(some, ["abc", "abcd"]) == [
        {"big": None, "twice": None, "size": 3},
        {"big": "ABCD", "twice": "ABCD!", "size": 4},
    ]


def test_errors_are_tried_again_and_then_end_their_input_only() -> None:
    @chain
    def line(name: str, failures: int) -> Any:
        return upper(flaky(name, failures))

    TRIED.clear()
    handle = run(
        line,
        [{"name": "ok", "failures": 2}, {"name": "bad", "failures": 3}],
        on=InProcess([StageNode("one")]),
    )
    ok, bad = handle.wait()
    assert ok.value == "OK"
    assert dict(TRIED) == {"ok": 3, "bad": 3}
    assert bad.failure is not None
    assert (bad.failure.stage, bad.failure.attempts) == ("flaky", 3)
    assert bad.failure.error.cause is Cause.RAISED
    with pytest.raises(
        StageFailed, match=r"input 1: flaky\[0\] after 3 attempts: RuntimeError: attempt 3"
    ) as told:
        _ = bad.value
    assert "in flaky" in told.value.__notes__[0]
    assert handle.state is State.FAILED
    assert handle.endings == {State.DONE: 1, State.FAILED: 1}
    assert handle.counts["flaky"].retries == 4


def test_a_failed_instance_may_be_left_out_or_replaced() -> None:
    @stage(retries=0)
    def odd(n: int) -> int:
        if n % 2 == 0:
            raise ValueError(n)
        return n

    @chain
    def skipping(items: list[int]) -> Any:
        return odd.options(on_failure="skip").map(items)

    @chain
    def replacing(items: list[int]) -> Any:
        return odd.options(on_failure="default", default=-1).map(items)

    @chain
    def bounded(items: list[int]) -> Any:
        return odd.options(on_failure="skip", failed_max_frac=0.5).map(items)

    assert outputs(skipping, [[1, 2, 3, 4]]) == [[1, None, 3, None]]
    assert outputs(replacing, [[1, 2, 3]]) == [[1, -1, 3]]
    few, many = run(bounded, [[1, 2, 3], [2, 4, 5]], on=InProcess([StageNode("one")])).wait()
    assert few.value == [1, None, 3]
    assert many.state is State.FAILED


def test_every_attempt_of_an_instance_has_the_same_idempotency_key() -> None:
    @chain
    def both(items: list[str]) -> Any:
        return effect.map(items)

    KEYS.clear()
    handle = run(both, [["a", "b"]], on=InProcess([StageNode("one")]))
    assert handle.wait()[0].value == [3, 3]
    assert Counter(KEYS) == {f"{handle.id}/0/effect/0": 3, f"{handle.id}/0/effect/1": 3}


def test_results_come_as_inputs_finish() -> None:
    SEEN.clear()
    for result in run(waiting, [1, 0], on=InProcess([StageNode("one", slots=2)])):
        SEEN.append(result.index)  # noqa: PERF401 - the stage sees each at once
    assert SEEN == [1, 0]


def test_parts_of_the_output_come_as_instances_finish() -> None:
    @chain
    def pictures(numbers: list[int]) -> Any:
        return {"made": after.map(numbers), "size": count("four")}

    with Session(pictures, on=InProcess([StageNode("one", slots=4)])) as session:
        SEEN.clear()
        handle, parts = session.run(pictures, [{"numbers": [2, 0, 1]}], parts=True), []
        for part in handle.parts:
            if part.stage == "after":
                parts.append((part.input, part.index, part.value))
                SEEN.append(part.index)
        assert parts == [(0, 1, 0), (0, 2, 1), (0, 0, 2)]
        assert handle.values() == [{"made": [2, 0, 1], "size": 4}]

        async def listen() -> None:
            async for part in session.run(pictures, [{"numbers": [1, 0]}], parts=True).parts:
                if part.stage == "after":
                    SEEN.append(part.index)  # noqa: PERF401

        SEEN.clear()
        asyncio.run(listen())
        assert SEEN == [1, 0]
        assert list(session.run(pictures, [{"numbers": [0]}]).parts) == []


def test_a_run_is_awaited() -> None:
    async def main() -> list[Any]:
        handle = run(shout, ["a b"], on=InProcess())
        return [result.value for result in await handle]

    assert asyncio.run(main()) == ["A!:2 B!:2"]


def test_a_cancelled_run_ends_at_once_and_keeps_what_has_finished() -> None:
    @chain
    def waiting(n: int) -> Any:
        return after(n)

    SEEN.clear()
    handle = run(waiting, [0, 1, 1], on=InProcess([StageNode("one")]))
    first = next(iter(handle))
    assert first.value == 0
    handle.cancel()
    results = handle.wait(timeout_s=30.0)
    SEEN.append(first.index)
    assert [r.state for r in results][:2] == [State.DONE, State.CANCELLED]
    assert handle.state is State.CANCELLED


def test_an_input_past_the_deadline_fails() -> None:
    """In virtual time: of 0 and of 1.5 s."""

    @chain
    def waiting(n: int) -> Any:
        return after(n)

    backend = SimulatedWorkers([StageNode("one")], {"waiting/after": StandIn(lambda n: 1.5 * n, lambda n: n)})
    quick, late = run(waiting, [0, 1], on=backend, deadline_s=0.7).wait()
    assert quick.value == 0
    assert late.failure is not None
    assert "deadline" in str(late.failure)


def test_more_inputs_than_are_in_the_loop_at_a_time() -> None:
    inputs = (f"w{i} v" for i in range(60))
    assert outputs(shout, inputs, in_flight=7)[59] == "W59!:4 V!:2"


def test_an_input_enters_when_an_output_that_had_to_be_fetched_is_there() -> None:
    """The outputs lie with the backend, so an input is over between two turns of the host."""
    handle = run(shout, ["a", "b c"], on=InProcess([StageNode("one")]), in_flight=1)
    assert [result.value for result in handle.wait(timeout_s=60.0)] == ["A!:2", "B!:2 C!:2"]


def test_inputs_that_cannot_be_read_end_their_run_alone() -> None:
    """Also if they come when others of the run are over, while another run is under way."""
    SEEN.clear()
    nodes = [StageNode("one", slots=2)]
    with Session([waiting, shout, kept], on=InProcess(nodes), in_flight=1) as session:
        other = session.run(waiting, [1])
        with pytest.raises(UsageError, match=r"inputs\[1\]: a value of another type \(got 3\); expected str"):
            session.run(shout, ["a", 3]).wait()
        with pytest.raises(UsageError, match=r"inputs\[1\].value: cannot be sent to workers: lock: "):
            session.run(kept, [1, threading.Lock()]).wait()
        SEEN.append(0)
        assert other.values() == [1]


def test_a_session_runs_several_chains_on_the_same_workers() -> None:
    @chain
    def big(text: str) -> Any:
        return upper(text)

    with Session([shout, big], on=InProcess()) as session:
        first, second = session.run(shout, ["a b"]), session.run("big", ["x", "y"])
        assert first.values() == ["A!:2 B!:2"]
        assert second.values() == ["X", "Y"]


def test_stages_are_plain_functions_outside_of_a_chain() -> None:
    assert upper("a", mark="!") == "A!"
    assert upper.map(["a", "b"], mark="?") == ["A?", "B?"]
    assert whose("x") == "here"


def test_a_session_without_a_journal_loads_no_database_packages() -> None:
    program = "import sys, trimtab.chains.session; print(*{'sqlalchemy', 'alembic'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_what_fits_no_node_is_said_before_anything_starts() -> None:
    @stage(gpu=1.0)
    def paint(text: str) -> str:
        return text

    @chain
    def gallery(text: str) -> Any:
        return paint(text)

    with pytest.raises(UsageError, match=r"gallery/paint: a stage fits no node.*one: has 0 gpu, wanted 1"):
        run(gallery, ["a"], on=InProcess([StageNode("one")]))


class Closing(InProcess):
    """Counts how often it is closed."""

    closed = 0

    async def close(self) -> None:
        await super().close()
        self.closed += 1


def test_a_backend_is_closed_if_the_host_does_not_open(tmp_path: Path) -> None:
    @chain
    def far(text: str) -> Any:
        return upper.options(labels={"zone": "moon"})(text)

    backend = Closing([StageNode("one")])
    with pytest.raises(UsageError, match="a stage fits no node"):
        Session(far, on=backend)
    assert backend.closed == 1
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(UsageError, match="the journal cannot be opened"):
        Session(shout, on=backend, journal=tmp_path / "file")
    assert backend.closed == 2


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda text: upper(count(text)),
            r"wrong.upper.word: a value of another type \(got 'int'\); expected str",
        ),
        (lambda text: upper.map(count(text)), r"wrong.upper.word: maps over what is no list"),
        (lambda text: upper(text, tone="x"), r"wrong.upper: cannot be called so: .*'tone'"),
        (lambda text: upper(), r"not all|cannot be called so|returns no output|missing"),
        (lambda text: text, r"wrong: has no stages"),
        (lambda text: joined(pair.map(words(text), 3)), r"wrong.pair.size: maps over a constant"),
    ],
)
def test_chains_that_cannot_run_are_refused_when_they_are_built(build: Any, message: str) -> None:
    def wrong(text: str) -> Any:
        return build(text)

    with pytest.raises((ChainError, TypeError), match=message):
        chain(wrong)


def test_unknown_options_and_ranges_are_refused() -> None:
    with pytest.raises(ChainError, match="retrys"):
        stage(retrys=2)(len)
    with pytest.raises(ChainError, match=r"gpu: out of range \(got 1.5\)"):
        stage(gpu=1.5)(len)
    with pytest.raises(ChainError, match="no such option"):
        upper.options(speed=2)
