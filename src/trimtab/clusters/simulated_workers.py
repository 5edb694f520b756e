"""Simulated workers: stages take their declared time on a virtual clock, and stand-ins give their outputs.

The host of chains, its policy and its limits are those of live runs. No code of a stage runs. The clock is
that of the event loop, and jumps to the next timer when nothing can run.
"""

from __future__ import annotations

import asyncio
import selectors
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from trimtab.clusters.worker_queue import WorkerQueue
from trimtab.errors import UsageError
from trimtab.live.stage_backend import (
    Argument,
    Attempt,
    Cause,
    NodeChange,
    Outcome,
    Ref,
    StageCode,
    StageError,
    StageNode,
    ValueLost,
    digest_of,
)
from trimtab.live.stage_execution import LoadedStages, bound, execute, in_order
from trimtab.live.value_codec import pickled

RESOLUTION_S: Final = 1e-7  # timers that lie closer fire together; floats keep it for years


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time stands still while any callback can run. Without a timer it waits for other threads."""

    def __init__(self) -> None:
        self._virtual_s = 0.0
        super().__init__(_LeapingSelector(self._leap))
        self._clock_resolution = RESOLUTION_S  # asyncio's own name

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._virtual_s

    def _leap(self, by_s: float) -> None:
        self._virtual_s += by_s


class _LeapingSelector(selectors.DefaultSelector):
    """Calls `leap` in place of waiting for so long."""

    def __init__(self, leap: Callable[[float], None]) -> None:
        super().__init__()
        self._leap = leap

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select(None)
        ready = super().select(0.0)
        if not ready and timeout > 0.0:
            self._leap(timeout)
        return ready


def _nothing() -> None:
    """The output of a stand-in that declares none."""


@dataclass(frozen=True, slots=True)
class StandIn:
    """The stand-in for a stage on a simulated worker. Functions get the stage's arguments by name.

    `run` gives the output and takes no virtual time. It is a function, or a class whose instances are called;
    each worker has a copy. Without it the output is None.
    """

    service_s: float | Callable[..., float]  # of an attempt, at speed 1
    run: Callable[..., Any] | None = None
    size_bytes: int = 0  # of the whole output; 0 = of what `run` gave
    load_s: float = 0.0  # before a worker's first attempt


class SimulatedWorkers:
    """Workers in virtual time: their host has to run on a loop of `new_loop`.

    A cancelled attempt ends at once. A worker whose attempt is late is replaced at once.

    Args:
        stand_ins: for each stage, by the name that its code is opened under: CHAIN/STAGE.
        speeds: of nodes, by name: an attempt takes `service_s` / speed. Default: 1.
    """

    def __init__(
        self,
        nodes: Sequence[StageNode],
        stand_ins: Mapping[str, StandIn],
        speeds: Mapping[str, float] | None = None,
    ) -> None:
        self._nodes, self._stand_ins, self._speeds = tuple(nodes), stand_ins, dict(speeds or {})
        self._workers: list[list[_Worker]] = []
        self._at: dict[Attempt, _Worker] = {}

    def new_loop(self) -> asyncio.AbstractEventLoop:
        """A loop in virtual time."""
        return VirtualLoop()

    @property
    def nodes(self) -> Sequence[StageNode]:
        """The nodes."""
        return self._nodes

    async def open(self, stages: Sequence[StageCode], on_change: Callable[[NodeChange], None]) -> None:
        """Start the workers. Raises UsageError for what they cannot do."""
        if not isinstance(asyncio.get_running_loop(), VirtualLoop):
            raise UsageError("simulated workers need virtual time", expected="a loop of their new_loop()")
        self._check_nodes()
        stands = [_standing_in(stage, self._stand_ins.get(stage.name)) for stage in stages]
        self._workers = [
            [
                _Worker(stands, self._stand_ins, self._speeds.get(node.name, 1.0), f"{node.name}-{k}")
                for k in range(node.slots)
            ]
            for node in self._nodes
        ]

    def _check_nodes(self) -> None:
        for node in self._nodes:
            if node.least < node.slots:
                raise UsageError(
                    "simulated pools do not grow", field=f"{node.name}.slots_min", value=node.slots_min,
                    expected="0",
                )  # fmt: skip
        names = [node.name for node in self._nodes]
        for name, speed in self._speeds.items():
            if name not in names:
                raise UsageError("no such node", field="speeds", value=name, expected=", ".join(names))
            if not 0.0 < speed < float("inf"):
                raise UsageError(
                    "not a speed", field=f"speeds.{name}", value=speed, expected="a number above 0"
                )

    def start(self, node: int, attempt: Attempt, inputs: Sequence[Argument]) -> Awaitable[Outcome]:
        """Run an attempt on the worker that has least to do; of idle ones, on one that has its stage."""
        worker = min(self._workers[node], key=lambda w: w.burden(attempt.stage))
        self._at[attempt] = worker
        outcome = worker.send(attempt, inputs)
        outcome.add_done_callback(lambda _: self._at.pop(attempt, None))
        return outcome

    def cancel(self, attempt: Attempt) -> None:
        """Stop an attempt."""
        if (worker := self._at.get(attempt)) is not None:
            worker.cancel(attempt)

    async def put(self, data: bytes) -> Ref:
        """A reference that carries its value."""
        return _write(data)

    async def get(self, ref: Ref) -> bytes:
        """The bytes of a value; of an output, what its stand-in gave."""
        return _read(ref)

    def release(self, refs: Sequence[Ref]) -> None:
        """References carry their values: nothing to free."""

    async def close(self) -> None:
        """Cancel all attempts."""
        for attempt in list(self._at):
            self.cancel(attempt)


class _Worker:
    """Runs one attempt at a time; the others wait."""

    def __init__(
        self, stages: Sequence[StageCode], stand_ins: Mapping[str, StandIn], speed: float, name: str
    ) -> None:
        self._codes, self._stand_ins, self._speed, self._name = stages, stand_ins, speed, name
        timeouts_s = {stage.name: stage.timeout_s for stage in stages}
        self._queue = WorkerQueue(timeouts_s, self._interrupt, self._kill)
        self._sent: deque[tuple[int, Attempt, Sequence[Argument]]] = deque()
        self._dropped: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None  # the end of the attempt that runs
        self._stages = LoadedStages(stages)

    def burden(self, stage: str) -> tuple[int, bool]:
        """How many attempts it has, and whether it would load the stage."""
        return len(self._queue), stage not in self._queue.loaded

    def send(self, attempt: Attempt, inputs: Sequence[Argument]) -> asyncio.Future[Outcome]:
        """Run an attempt after those that it has."""
        number, outcome = self._queue.add(attempt)
        self._sent.append((number, attempt, inputs))
        self._begin_next()
        return outcome

    def cancel(self, attempt: Attempt) -> None:
        """Stop an attempt."""
        self._queue.cancel(attempt)

    def _begin_next(self) -> None:
        while self._timer is None and self._sent:
            number, attempt, inputs = self._sent.popleft()
            if number in self._dropped:
                self._dropped.remove(number)
                self._queue.ended(number, Outcome(error=StageError(Cause.CANCELLED)))
                continue
            outcome = in_order(attempt, inputs, self._outcome)
            takes_s = outcome.load_s + outcome.service_s + outcome.followed_s
            self._timer = asyncio.get_running_loop().call_later(takes_s, self._end, number, outcome)

    def _outcome(self, attempt: Attempt, inputs: Sequence[Argument]) -> Outcome:
        stand_in = self._stand_ins[attempt.stage]
        read = inputs if stand_in.run is not None else ()
        given = execute(self._stages, replace(attempt, then=None), read, _read, _write)
        if given.error is not None and given.error.cause in (Cause.INPUT_LOST, Cause.LOAD_FAILED):
            return replace(given, load_s=0.0, worker=self._name)
        service_s = stand_in.service_s
        if callable(service_s):
            service_s = service_s(**bound(inputs, _read))
        return replace(
            given,
            outputs=_sized(given.outputs, stand_in.size_bytes),
            service_s=service_s / self._speed,
            load_s=0.0 if attempt.stage in self._queue.loaded else stand_in.load_s / self._speed,
            worker=self._name,
        )

    def _end(self, number: int, outcome: Outcome) -> None:
        self._timer = None
        self._queue.ended(number, outcome)
        self._begin_next()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _interrupt(self, number: int, runs: bool) -> None:
        if runs:
            self._stop()
            self._end(number, Outcome(error=StageError(Cause.CANCELLED)))
        else:
            self._dropped.add(number)

    def _kill(self, error: StageError) -> None:
        """Lose all attempts; what takes the worker's place has loaded nothing."""
        self._stop()
        self._timer = None
        self._sent.clear()
        self._dropped.clear()
        self._stages = LoadedStages(self._codes)
        self._queue.loaded.clear()
        self._queue.lost(error, self._name)


def _standing_in(stage: StageCode, stand_in: StandIn | None) -> StageCode:
    """The code that runs in place of a stage's. Raises UsageError."""
    if stand_in is None:
        raise UsageError("has no stand-in", field=stage.name, expected="one for each stage of the chain")
    if stage.profile:
        raise UsageError("is simulated: there is no code to profile", field=stage.name)
    if stand_in.run is None and (stage.splits or stage.tests):
        raise UsageError(
            "its output is mapped over, batched or a condition", field=f"{stage.name}.run",
            expected="a function that gives an output",
        )  # fmt: skip
    run = _nothing if stand_in.run is None else stand_in.run
    code = pickled(run)
    context = stage.context_name if stand_in.run is not None else ""
    return replace(stage, code=code, is_class=isinstance(run, type), context_name=context)


def _sized(outputs: tuple[Ref, ...], size_bytes: int) -> tuple[Ref, ...]:
    if not (outputs and size_bytes):
        return outputs
    return (replace(outputs[0], size_bytes=size_bytes), *outputs[1:])


def _write(data: bytes) -> Ref:
    return Ref(digest_of(data), len(data), data)


def _read(ref: Ref) -> bytes:
    if ref.data is None:
        raise ValueLost(ref.digest)
    return ref.data
