"""What every backend of stages must do. A new one joins by a line in BACKENDS."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from support.far_host import FarHost
from support.stage_backends import Bench, Make, on, simulated
from trimtab.clusters.in_process import InProcess
from trimtab.clusters.processes import Processes
from trimtab.clusters.simulated_workers import VirtualLoop
from trimtab.live.stage_backend import (
    BEFORE,
    Argument,
    Attempt,
    Cause,
    Following,
    Outcome,
    StageNode,
    digest_of,
)
from trimtab.live.value_codec import encode


def far(nodes: Sequence[StageNode]) -> Processes:
    """Workers that only connect back, as on pods."""
    host = FarHost(slots={"local": 1})
    host.env = {"PYTHONPATH": os.pathsep.join(sys.path)}  # the stages are imported
    return Processes(nodes, host=host)


BACKENDS: dict[str, Make] = {
    "in-process": InProcess,
    "processes": Processes,
    "far": far,
    "simulated": simulated,
}
MARKS = {
    "simulated": pytest.mark.event_loop(factory=VirtualLoop),
    "ray": pytest.mark.xdist_group("ray"),
}


def params(*names: str) -> list[Any]:
    return [pytest.param(name, marks=MARKS.get(name, ())) for name in names]


@pytest.fixture(params=params(*BACKENDS, "ray"))
def make(request: pytest.FixtureRequest) -> Make:
    if request.param == "ray":
        request.getfixturevalue("shared_ray")
        from trimtab.clusters.ray.ray_backend import Ray

        return Ray
    return BACKENDS[request.param]


async def test_values_go_in_and_come_out_under_their_digest(make: Make) -> None:
    async with on(make) as bench:
        outcome = await bench.start("add", a=40, b=2)
        assert await bench.output(outcome) == 42
        assert outcome.outputs[0].digest == digest_of(encode(42))
        assert outcome.outputs[0].size_bytes == len(encode(42))


async def test_arguments_are_parts_and_lists_of_values_and_missing_ones_are_left_out(make: Make) -> None:
    async with on(make) as bench:
        parts = await bench.value({"a": [1, 20]})
        inputs = [Argument("a", (parts,), path=("a", 1)), Argument("b", (parts,), path=("a", 0))]
        assert await bench.output(await bench.backend.start(0, bench.attempt("add"), inputs)) == 21
        items = (await bench.value(3), None, await bench.value(4))
        listed = [Argument("items", items, is_list=True)]
        assert await bench.output(await bench.backend.start(0, bench.attempt("total"), listed)) == 7
        absent = await bench.backend.start(0, bench.attempt("add"), [Argument("a", (None,))])
        assert absent.error is not None
        assert absent.error.cause is Cause.RAISED  # None + 0
        assert absent.error.kind == "TypeError"


async def test_lists_of_an_output_are_split_and_conditions_tested(make: Make) -> None:
    async with on(make) as bench:
        outcome = await bench.start("scenes")
        assert outcome.fan_out == (3,)
        assert outcome.tests == (True, False)
        assert [await bench.output(outcome, k) for k in (1, 2, 3)] == ["sea", "hill", "town"]
        assert (await bench.output(outcome))["scenes"] == ["sea", "hill", "town"]


async def test_large_values_pass_from_stage_to_stage(make: Make) -> None:
    async with on(make) as bench:
        made = await bench.start("blob", size=3_000_000)
        ref = made.outputs[0]
        assert ref.size_bytes > 3_000_000
        read = await bench.backend.start(0, bench.attempt("length"), [Argument("data", (ref,))])
        assert await bench.output(read) == 3_000_000
        assert await bench.call("length", data=b"y" * 200_000) == 200_000
        bench.backend.release([ref])


async def test_an_error_of_a_stage_keeps_its_traceback_and_the_worker_goes_on(make: Make) -> None:
    async with on(make) as bench:
        outcome = await bench.start("fail", text="no such picture")
        assert outcome.error is not None
        assert (outcome.error.cause, outcome.error.kind) == (Cause.RAISED, "LookupError")
        assert outcome.error.message == "no such picture"
        assert "stage_backends.py" in outcome.error.trace
        assert await bench.call("add", a=1) == 1


async def test_an_output_that_cannot_be_serialised_is_an_error_that_says_so(make: Make) -> None:
    async with on(make) as bench:
        outcome = await bench.start("unserialisable")
        assert outcome.error is not None
        assert outcome.error.cause is Cause.UNSERIALISABLE
        assert "generator" in outcome.error.message


async def test_a_class_is_constructed_once_per_worker(make: Make) -> None:
    async with on(make) as bench:
        (one, here), (two, there) = await bench.call("Counter"), await bench.call("Counter")
        assert (one, two) == (1, 2)
        assert here == there


async def test_a_class_that_cannot_be_constructed_is_an_error(make: Make) -> None:
    async with on(make) as bench:
        outcome = await bench.start("Broken")
        assert outcome.error is not None
        assert outcome.error.cause is Cause.LOAD_FAILED
        assert outcome.error.message == "no weights"


async def test_a_stage_knows_its_attempt(make: Make) -> None:
    async with on(make) as bench:
        assert await bench.call("told") == ("run", 1, "run/told/0")
        assert await bench.call("told") == ("run", 2, "run/told/0")


async def test_slots_run_side_by_side_and_their_time_is_measured(make: Make) -> None:
    async with on(make, StageNode("two", slots=2)) as bench:
        first, second = await asyncio.gather(*(bench.start("sleep", node, seconds=0.2) for node in (0, 0)))
        for outcome in (first, second):
            assert outcome.error is None
            assert outcome.service_s >= 0.2
            assert outcome.load_s >= 0.0
        assert first.outputs[0].digest == second.outputs[0].digest


async def test_an_attempt_that_takes_too_long_ends_and_its_node_goes_on(make: Make) -> None:
    async with on(make, timeout_s=2.0) as bench:
        outcome = await bench.start("sleep", seconds=6.0)
        assert outcome.error is not None
        assert outcome.error.cause is Cause.TIMEOUT
        assert "2 s" in outcome.error.message
        while (again := await bench.start("add", 0, a=5)).error is not None:
            assert again.error.cause is Cause.WORKER_LOST  # the worker is being replaced
            await asyncio.sleep(0.05)
        assert await bench.output(again) == 5


async def test_a_cancelled_attempt_says_so(make: Make) -> None:
    async with on(make) as bench:
        attempt = bench.attempt("sleep")
        inputs = [Argument("seconds", (await bench.value(8.0),))]
        started = asyncio.ensure_future(bench.backend.start(0, attempt, inputs))
        await asyncio.sleep(0.3)
        bench.backend.cancel(attempt)
        outcome = await started
        assert outcome.error is not None
        assert outcome.error.cause is Cause.CANCELLED


async def in_turn(bench: Bench, *stages: tuple[str, dict[str, Any]]) -> Outcome:
    """The end of stages in one attempt, each with its arguments; `...` is the output of the one before."""
    then: Following | None = None
    for name, given in reversed(stages):
        inputs = [Argument(k, (BEFORE if v is ... else await bench.value(v),)) for k, v in given.items()]
        then = Following(replace(bench.attempt(name), then=then), inputs)
    assert then is not None
    return await bench.backend.start(0, then.attempt, then.inputs)


async def test_an_attempt_may_carry_several_stages(make: Make) -> None:
    """Each has its own outcome; values of any size pass from one to the next, and out."""
    async with on(make) as bench:
        made = await in_turn(
            bench, ("add", {"a": 300_000}), ("blob", {"size": ...}), ("length", {"data": ...})
        )
        assert made.then is not None
        assert made.then.then is not None
        assert [await bench.output(outcome) for outcome in (made, made.then.then)] == [300_000] * 2
        assert await bench.output(made.then) == b"x" * 300_000
        assert made.then.then.then is None
        assert len({outcome.worker for outcome in made.in_turn}) == 1
        again = await bench.backend.start(
            0, bench.attempt("length"), [Argument("data", made.then.outputs[:1])]
        )
        assert await bench.output(again) == 300_000
        constant = await in_turn(bench, ("told", {}), ("length", {"data": b"z" * 200_000}))
        assert constant.then is not None
        assert await bench.output(constant.then) == 200_000
        assert (await bench.output(constant))[2] == "run/told/0"
        bench.backend.release([*made.values, *constant.values])


async def test_stages_of_an_attempt_that_follow_a_failed_one_do_not_run(make: Make) -> None:
    async with on(make) as bench:
        made = await in_turn(bench, ("blob", {"size": 2}), ("fail", {"text": ...}), ("add", {"a": ...}))
        assert await bench.output(made) == b"xx"
        assert made.then is not None
        assert made.then.error is not None
        assert (made.then.error.cause, made.then.error.kind) == (Cause.RAISED, "LookupError")
        assert made.then.then is None
        first = await in_turn(bench, ("fail", {"text": "no"}), ("add", {"a": ...}))
        assert first.error is not None
        assert first.then is None


async def test_a_batch_knows_each_of_its_attempts(make: Make) -> None:
    async with on(make) as bench:
        members = tuple(Attempt("run", "told_each", 0, n, f"key {n}") for n in (1, 2))
        batch = Attempt("batch", "told_each", 0, 1, "", members=members)
        items = Argument("items", (await bench.value(7), await bench.value(8)), is_list=True)
        made = await bench.backend.start(0, batch, [items])
        assert [await bench.output(made, k) for k in (1, 2)] == [(7, "key 1", 1), (8, "key 2", 2)]


async def test_nodes_are_told_apart(make: Make) -> None:
    async with on(make, StageNode("a"), StageNode("b")) as bench:
        assert [node.name for node in bench.backend.nodes] == ["a", "b"]
        counts = [await bench.output(await bench.start("Counter", node)) for node in (0, 1, 1)]
        assert [count for count, _ in counts] == [1, 1, 2]  # each node has workers of its own


async def test_closing_is_harmless_before_it_is_open_and_a_second_time(make: Make) -> None:
    backend = make([StageNode("one")])
    await make([StageNode("unused")]).close()
    await backend.open([], lambda change: None)
    await backend.close()
    await backend.close()


async def test_worker_processes_are_not_the_hosts() -> None:
    async with on(Processes) as bench:
        assert (await bench.call("Counter"))[1] != os.getpid()


@pytest.mark.parametrize("make", params("processes", "ray"), indirect=True)
async def test_a_killed_worker_is_noticed_and_replaced(make: Make) -> None:
    async with on(make, StageNode("one", depth=2)) as bench:
        backend: Any = bench.backend
        inputs = [Argument("seconds", (await bench.value(30.0),))]
        started = asyncio.ensure_future(backend.start(0, bench.attempt("sleep"), inputs))
        await asyncio.sleep(0.1)
        (before,) = backend.pids
        os.kill(before, signal.SIGKILL)
        outcome = await started
        assert outcome.error is not None
        assert outcome.error.cause is Cause.WORKER_LOST
        assert ("SIGKILL" if make is Processes else str(before)) in outcome.error.message
        while not backend.pids:
            await asyncio.sleep(0.02)
        assert backend.pids != [before]
        assert [change.places for change in bench.changes if change.places] == [-2, 2]
        assert await bench.call("add", a=2) == 2
