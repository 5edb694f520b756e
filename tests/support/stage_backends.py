"""Stages, and a backend on an event loop, for tests of backends."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle

from trimtab.clusters.simulated_workers import SimulatedWorkers, StandIn
from trimtab.live.stage_backend import (
    Argument,
    Attempt,
    NodeChange,
    Outcome,
    Ref,
    StageBackend,
    StageCode,
    StageDemand,
    StageNode,
)
from trimtab.live.stage_execution import StageContext
from trimtab.live.value_codec import decode, encode

Make = Callable[[Sequence[StageNode]], StageBackend]


def add(a: int, b: int = 0) -> int:
    return a + b


def total(items: list[int]) -> int:
    return sum(items)


def told(ctx: StageContext) -> tuple[str, int, str]:
    return ctx.run, ctx.attempt, ctx.idempotency_key


def told_each(items: list[int], ctx: list[StageContext]) -> list[tuple[int, str, int]]:
    return [(item, each.idempotency_key, each.attempt) for item, each in zip(items, ctx, strict=True)]


def fail(text: str) -> None:
    raise LookupError(text)


def unserialisable() -> Any:
    return (i for i in range(3))


def scenes() -> dict[str, Any]:
    return {"scenes": ["sea", "hill", "town"], "is_long": True, "title": ""}


def sleep(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def hold_interpreter(seconds: float) -> int:
    """Busy in one call of C code, during which no other Python code runs; about so long."""
    begun_s, count, n = time.perf_counter(), 0, 1_000_000
    sum(range(n))
    count = int(n * seconds / (time.perf_counter() - begun_s))
    return sum(range(count))


def held(file: str) -> str:
    """Ends once the file is there. Another file, FILE.begun, tells that it has begun."""
    Path(f"{file}.begun").touch()
    until_s = time.monotonic() + 60.0
    while not Path(file).exists() and time.monotonic() < until_s:
        time.sleep(0.01)
    return file


def blob(size: int) -> bytes:
    return b"x" * size


def counted_blob(size: int, file: str) -> bytes:
    """One more character in the file for each call."""
    with open(file, "a") as calls:
        calls.write("x")
    return b"y" * size


def length(data: bytes) -> int:
    return len(data)


class Counter:
    """How often this instance was called, and in which process."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> tuple[int, int]:
        self.calls += 1
        return self.calls, os.getpid()


class Broken:
    def __init__(self) -> None:
        raise OSError("no weights")

    def __call__(self) -> None: ...


FUNCTIONS = (
    add,
    total,
    told,
    told_each,
    fail,
    unserialisable,
    scenes,
    sleep,
    hold_interpreter,
    held,
    blob,
    counted_blob,
    length,
)
STAGES = (*FUNCTIONS, Counter, Broken)


def codes(timeout_s: float = 30.0) -> list[StageCode]:
    """The stages of this file, by value: workers can't import tests."""
    by_value = [StageCode(f.__name__, cloudpickle.dumps(f), timeout_s=timeout_s) for f in FUNCTIONS]
    made = {code.name: code for code in by_value}
    made["told"] = StageCode("told", made["told"].code, context_name="ctx")
    made["told_each"] = StageCode(
        "told_each", made["told_each"].code, context_name="ctx", splits=((),), is_batch=True
    )
    made["scenes"] = StageCode(
        "scenes", made["scenes"].code, splits=(("scenes",),), tests=(("is_long",), ("title",))
    )
    for kind in (Counter, Broken):
        made[kind.__name__] = StageCode(kind.__name__, cloudpickle.dumps(kind), is_class=True)
    return list(made.values())


def demand(waiting: Mapping[str, int]) -> dict[str, StageDemand]:
    """Of all stages of this file, by those that wait."""
    return {stage.__name__: StageDemand(waiting.get(stage.__name__, 0)) for stage in STAGES}


@dataclass
class Bench:
    """An open backend, and short forms of what a host does with it."""

    backend: StageBackend
    changes: list[NodeChange] = field(default_factory=list)
    number: int = 0

    def attempt(self, stage: str) -> Attempt:
        self.number += 1
        return Attempt("run", stage, 0, self.number, f"run/{stage}/0")

    async def value(self, given: Any) -> Ref:
        return await self.backend.put(encode(given))

    async def start(self, stage: str, node: int = 0, **given: Any) -> Outcome:
        inputs = [Argument(name, (await self.value(value),)) for name, value in given.items()]
        return await self.backend.start(node, self.attempt(stage), inputs)

    async def output(self, outcome: Outcome, number: int = 0) -> Any:
        assert outcome.error is None, outcome.error
        return decode(await self.backend.get(outcome.outputs[number]))

    async def call(self, stage: str, **given: Any) -> Any:
        return await self.output(await self.start(stage, **given))


@asynccontextmanager
async def on(make: Make, *nodes: StageNode, timeout_s: float = 30.0) -> AsyncIterator[Bench]:
    """An open backend of these nodes; default: one node with one slot."""
    bench = Bench(make(nodes or (StageNode("one"),)))
    await bench.backend.open(codes(timeout_s), bench.changes.append)
    try:
        async with asyncio.timeout(60.0):
            yield bench
    finally:
        await bench.backend.close()


def simulated(nodes: Sequence[StageNode]) -> StageBackend:
    """Workers in virtual time. The stages of this file stand in for themselves; `sleep` does not sleep."""
    of_themselves: dict[str, StandIn] = {f.__name__: StandIn(0.01, f) for f in (*FUNCTIONS, Counter, Broken)}
    of_themselves["sleep"] = StandIn(lambda seconds: seconds, lambda seconds: seconds)
    return SimulatedWorkers(nodes, of_themselves)
