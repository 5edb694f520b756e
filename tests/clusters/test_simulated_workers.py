"""Simulated workers: times worked out by hand, and what they refuse."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import pytest

from support.stage_backends import Bench, on, simulated
from trimtab.chains import Session, StageNode, chain, stage
from trimtab.clusters.simulated_workers import SimulatedWorkers, StandIn, VirtualLoop
from trimtab.errors import UsageError
from trimtab.live.stage_backend import Argument, Attempt, Cause, Outcome, StageCode
from trimtab.policies.resource_aware.hungarian import Hungarian

IN_VIRTUAL_TIME = pytest.mark.event_loop(factory=VirtualLoop)


@stage
def write(prompt: str) -> list[str]:
    raise AssertionError("the code of a simulated stage runs")


@stage(retries=1, backoff_s=0.0)
def draw(scene: str) -> bytes:
    raise AssertionError("the code of a simulated stage runs")


@stage
def film(pictures: list[bytes]) -> bytes:
    raise AssertionError("the code of a simulated stage runs")


@chain
def story(prompt: str) -> Any:
    return film(draw.map(write(prompt)))


@chain
def written(prompt: str) -> Any:
    return write(prompt)


STAND_INS = {
    "story/write": StandIn(3600.0, lambda prompt: prompt.split(), load_s=60.0),
    "story/draw": StandIn(lambda scene: 60.0 * len(scene), lambda scene: scene.upper()),
    "story/film": StandIn(10.0, lambda pictures: "+".join(pictures), size_bytes=1 << 30),
}


def test_a_run_takes_its_declared_times_in_no_time() -> None:
    """The hour of `write` and a minute for each letter, on two workers of half the speed."""
    backend = SimulatedWorkers([StageNode("slow", slots=2)], STAND_INS, {"slow": 0.5})
    with Session(story, on=backend, policy="least-connections") as session:
        (result,) = session.run(story, ["a bc def"]).wait()
    assert result.value == "A+BC+DEF"
    letters = max(1 + 3, 2)  # the third scene follows the first, on the worker that is free first
    assert result.elapsed_s == pytest.approx(2 * (60.0 + 3600.0 + 60.0 * letters + 10.0), rel=1e-9)


def test_an_error_of_a_stand_in_is_tried_again_and_told() -> None:
    def broken(scene: str) -> str:
        raise LookupError(scene)

    stand_ins = {**STAND_INS, "story/draw": StandIn(5.0, broken)}
    with Session(story, on=SimulatedWorkers([StageNode("one")], stand_ins)) as session:
        (result,) = session.run(story, ["a"]).wait()
    assert str(result.failure).startswith("draw[0] after 2 attempts: LookupError: a (")
    assert str(result.failure).endswith(" in broken)")
    assert result.elapsed_s == pytest.approx(3660.0 + 2 * 5.0)


def test_a_policy_plans_in_this_process_once_a_period_of_virtual_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plans: list[Any] = []
    make = Hungarian.plan
    monkeypatch.setattr(Hungarian, "plan", lambda *given: plans.append(given) or make(*given))
    backend = SimulatedWorkers([StageNode("a"), StageNode("b")], STAND_INS)
    with Session(story, on=backend, policy="hungarian(plan_period_s=60)") as session:
        (result,) = session.run(story, ["a bc"]).wait()
    assert len(plans) >= result.elapsed_s // 60.0  # more: idle time passes until the session is closed


async def in_turn(*work: Callable[[Bench], Coroutine[Any, Any, Outcome]]) -> list[Outcome]:
    """The outcomes of what is sent to one worker, in this order."""
    async with on(simulated, StageNode("one", depth=3), timeout_s=2.0) as bench:
        return await asyncio.gather(*(one(bench) for one in work))


def sleep(seconds: float) -> Callable[[Bench], Coroutine[Any, Any, Outcome]]:
    return lambda bench: bench.start("sleep", seconds=seconds)


@IN_VIRTUAL_TIME
async def test_a_late_attempt_takes_what_waits_behind_it_along() -> None:
    first, late, behind = await in_turn(sleep(1.5), sleep(2.5), sleep(0.1))
    assert first.error is None  # the time of the second begins with its turn
    assert late.error is not None
    assert behind.error is not None
    assert (late.error.cause, behind.error.cause) == (Cause.TIMEOUT, Cause.WORKER_LOST)


@IN_VIRTUAL_TIME
async def test_an_attempt_that_is_cancelled_before_its_turn_takes_no_time() -> None:
    async def cancelled(bench: Bench) -> Outcome:
        attempt = Attempt("run", "sleep", 0, 99, "")
        given = [Argument("seconds", (await bench.value(1.9),))]
        started = bench.backend.start(0, attempt, given)
        bench.backend.cancel(attempt)
        return await started

    async def told_when(bench: Bench) -> Outcome:
        outcome = await bench.start("sleep", seconds=0.25)
        assert asyncio.get_running_loop().time() == pytest.approx(0.25 + 0.25)
        return outcome

    first, dropped, last = await in_turn(sleep(0.25), cancelled, told_when)
    assert dropped.error is not None
    assert dropped.error.cause is Cause.CANCELLED
    assert (first.error, last.error) == (None, None)


@pytest.mark.parametrize(
    ("stand_ins", "says"),
    [
        ({"written/write": StandIn(1.0)}, "has no stand-in"),
        (
            {"story/write": StandIn(1.0), "story/draw": StandIn(1.0), "story/film": StandIn(1.0)},
            "mapped over",
        ),
    ],
)
def test_stages_that_it_cannot_stand_in_for_are_named(stand_ins: Mapping[str, StandIn], says: str) -> None:
    with pytest.raises(UsageError, match=says) as refused:
        Session(story, on=SimulatedWorkers([StageNode("one")], stand_ins))
    assert "story/write" in str(refused.value)


def one(node: StageNode | None = None, **speeds: float) -> SimulatedWorkers:
    return SimulatedWorkers([node or StageNode("one")], {"written/write": StandIn(1.0)}, speeds)


@pytest.mark.parametrize(
    ("backend", "options", "says"),
    [
        (one(), {"journal": Path("runs")}, "journal: simulated work is not recorded"),
        (one(), {"profile": ["write"]}, "written/write: is simulated: there is no code to profile"),
        (one(StageNode("one", slots=2, slots_min=1)), {}, "one.slots_min: simulated pools do not grow"),
        (one(two=2.0), {}, "speeds: no such node"),
        (one(one=0.0), {}, "speeds.one: not a speed"),
    ],
)
def test_what_simulated_workers_cannot_do_is_refused(
    backend: SimulatedWorkers, options: Mapping[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        Session(written, on=backend, **options)


async def test_a_loop_in_real_time_is_refused() -> None:
    with pytest.raises(UsageError, match="need virtual time"):
        await one().open([StageCode("written/write", b"")], lambda change: None)


@IN_VIRTUAL_TIME
async def test_an_output_has_its_declared_size() -> None:
    backend = SimulatedWorkers([StageNode("one")], {"film": StandIn(0.0, size_bytes=1 << 30)})
    await backend.open([StageCode("film", b"")], lambda change: None)
    made = await backend.start(0, Attempt("run", "film", 0, 1, ""), [])
    assert [ref.size_bytes for ref in made.outputs] == [1 << 30]
