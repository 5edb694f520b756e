"""What the parts of a host of chains know of it: runs that are under way, values, and the way to the loop."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Coroutine, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trimtab.chains.decision_loop import DecisionLoop
from trimtab.chains.graph import Chain, StageCall
from trimtab.chains.run_progress import StageInstance
from trimtab.chains.run_state import ChainRun, ItemRun
from trimtab.chains.stage_codes import codes_of, constants_of, default_of
from trimtab.chains.stage_profiles import Profiling, profiled
from trimtab.chains.value_refs import ValueRefs
from trimtab.live.stage_backend import (
    Argument,
    Attempt,
    Cause,
    Outcome,
    Ref,
    StageBackend,
    StageDemand,
    StageError,
)

if TYPE_CHECKING:
    from trimtab.chains.recording import Recorder

GIB = float(1 << 30)


class HostState(ABC):
    """The state of a host. `loop` and the constants are there once it is open.

    Args:
        profile: what is profiled.
    """

    loop: DecisionLoop

    def __init__(self, chains: Sequence[Chain], backend: StageBackend, profile: Profiling) -> None:
        self.chains, self.backend = list(chains), backend
        self._given = {
            step.code_name: (constants_of(chain, step), default_of(chain, step))
            for chain in chains
            for step in chain.steps
        }
        self.codes = profiled([code for chain in chains for code in codes_of(chain)], profile)
        self.refs = ValueRefs(backend)
        self.recorder: Recorder | None = None
        self.runs: dict[str, ChainRun] = {}
        self.owners: dict[int, tuple[ItemRun, StageInstance]] = {}  # of rows of stages
        self.items: dict[int, ItemRun] = {}  # by the rows of their runs
        self.is_closing = False
        self.arrived: Counter[str] = Counter()  # instances that became ready, by the names of their codes
        self._class_of = {code.name: c for c, code in enumerate(self.codes)}
        self._tasks: set[asyncio.Future[Any]] = set()

    @abstractmethod
    def wake(self) -> None:
        """Take a turn soon."""

    async def put_constants(self) -> None:
        """Make what stages read besides outputs known to the backend."""
        put = self.backend.put
        self._constants = {
            name: [Argument(parameter, (await put(data),)) for parameter, data in constants.items()]
            for name, (constants, _) in self._given.items()
        }
        self.defaults = {name: await put(default) for name, (_, default) in self._given.items()}

    @property
    def steps(self) -> list[StageCall]:
        """The stages of all chains."""
        return [step for chain in self.chains for step in chain.steps]

    def class_of(self, step: StageCall) -> int:
        """The class of a stage in the loop."""
        return self._class_of[step.code_name]

    def error_frac(self, code_name: str) -> float:
        """Error of the expected service of a stage, by the name of its code."""
        return self.loop.costs.error_frac(self._class_of[code_name])

    def demand(self) -> dict[str, StageDemand]:
        """The demand of each stage on pools, by the name of its code."""
        mean_s, arrived, waiting = self.loop.costs.mean_s, self.arrived, self.loop.waiting()
        for step in self.steps:
            if step.stage.is_batched:  # those in a batch that runs wait for no slot
                c = self.class_of(step)
                held = map(self.owners.__getitem__, self.loop.runs.held(c))
                waiting[c] -= sum(at in item.attempts for item, at in held)
        return {
            code.name: StageDemand(waiting[c], arrived[code.name], mean_s(c))
            for c, code in enumerate(self.codes)
        }

    def now_s(self) -> float:
        """Seconds since the host began."""
        return self.loop.now_s()

    def is_in_flight(self, item: ItemRun) -> bool:
        """Whether the loop has not ended the run of an input."""
        return self.items.get(item.place.row) is item

    def is_waiting(self, item: ItemRun, at: StageInstance) -> bool:
        """Whether an instance that became ready still has to be served."""
        return self.is_in_flight(item) and at not in item.attempts

    def own(self, item: ItemRun, step: int, count: int) -> None:
        """The instances of a stage have rows."""
        for i in range(count):
            self.owners[item.first_rows[step] + i] = item, StageInstance(step, i)

    def arguments(self, item: ItemRun, at: StageInstance) -> list[Argument]:
        """The arguments of an instance whose inputs are all over."""
        read = item.progress.arguments(at)
        read += self._constants[item.run.chain.steps[at.step].code_name]
        return read

    def start(self, node: int, attempt: Attempt, inputs: list[Argument]) -> Awaitable[Outcome]:
        """Start an attempt. What is in the store only is made known to the backend first."""
        for argument in inputs:
            for ref in argument.refs:
                if is_stored(ref):
                    return self._restored_and_started(node, attempt, inputs)
        return self.backend.start(node, attempt, inputs)

    async def _restored_and_started(self, node: int, attempt: Attempt, inputs: list[Argument]) -> Outcome:
        made: list[Ref] = []
        try:
            restored = [
                replace(argument, refs=tuple([await self._restored(ref, made) for ref in argument.refs]))
                for argument in inputs
            ]
            return await self.backend.start(node, attempt, restored)
        except OSError as error:
            return Outcome(error=StageError(Cause.INPUT_LOST, type(error).__name__, str(error)))
        finally:
            self.refs.drop(made)

    async def _restored(self, ref: Ref | None, made: list[Ref]) -> Ref | None:
        """A value as workers can read it; `made` gets what this makes known to the backend."""
        if ref is None or not is_stored(ref):
            return ref
        assert self.recorder is not None
        found = await self.backend.put(await self.recorder.stored(ref))
        made.append(found)
        return found

    async def bytes_of(self, ref: Ref) -> bytes:
        """The bytes of a value, wherever it is."""
        if is_stored(ref) and self.recorder is not None:
            return await self.recorder.stored(ref)
        return await self.backend.get(ref)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something on the side; `settled` waits for it."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def settled(self) -> None:
        """Return when all that was spawned is over."""
        while self._tasks:
            await asyncio.wait(list(self._tasks), timeout=5.0)


def is_stored(ref: Ref | None) -> bool:
    """Whether a value is in the store only."""
    return ref is not None and ref.data is None and not ref.place


def outcome_of(sent: asyncio.Future[Outcome]) -> Outcome:
    """The outcome of a start that is over. A fault of the backend itself counts as a lost attempt."""
    error = sent.exception()
    if error is None:
        return sent.result()
    return Outcome(error=StageError(Cause.WORKER_LOST, type(error).__name__, str(error)))
