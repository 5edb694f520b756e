"""One actor, as its host sees it."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import ray
from ray import exceptions

from trimtab.clusters.heartbeats import CUT_BEATS, ActorPulse
from trimtab.clusters.messages import read_outcome_fields
from trimtab.clusters.ray.object_values import Message
from trimtab.clusters.worker_queue import WorkerQueue
from trimtab.live.stage_backend import Attempt, Cause, Outcome, StageError


class RayWorker:
    """Sends attempts to an actor, pings it, and notices its end.

    Args:
        lost: called when the actor has died.
        reached: called when it is out of reach for Ray, or again within it.
    """

    def __init__(
        self,
        actor: Any,
        timeouts_s: Mapping[str, float],
        lost: Callable[[RayWorker], None],
        reached: Callable[[RayWorker], None],
    ) -> None:
        self._actor, self._lost, self._reached = actor, lost, reached
        self.queue = WorkerQueue(timeouts_s, self._interrupt, self.kill)
        self.reads: dict[Attempt, tuple[int, ...]] = {}  # bundles of the attempts that it has
        self.pid = 0
        self._cause = StageError(Cause.WORKER_LOST)
        self.pulse = ActorPulse(self._ask, lambda _: self._reach(True), self._unanswered)
        self._tasks: set[asyncio.Task[None]] = set()
        self._ticks, self._still_beats = -1, 0
        self.is_alive = self.is_reachable = True

    @property
    def load(self) -> int:
        """Attempts that it has and has not ended."""
        return len(self.queue)

    @property
    def loaded(self) -> set[str]:
        """Stages that it has run."""
        return self.queue.loaded

    async def ready(self) -> None:
        """Wait until it can work. Raises RayError."""
        self.pid = await self._actor.ready.remote()

    def send(self, attempt: Attempt, message: Message) -> tuple[asyncio.Future[Outcome], Any]:
        """Run an attempt after those that it has: its outcome, and the object of its large outputs."""
        number, outcome = self.queue.add(attempt)
        self.reads[attempt] = message.bundles
        told, large = self._actor.run.remote(number, message.data, *message.objects)
        task = asyncio.get_running_loop().create_task(self._await(number, attempt, told))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return outcome, large

    async def _await(self, number: int, attempt: Attempt, told: Any) -> None:
        try:
            ended = read_outcome_fields(pickle.loads(await told))
        except Exception as error:
            if is_death(error):
                self.die(error)
                return
            self._note_reach(error)
            ended = Outcome(error=_error_of(error))
        self.reads.pop(attempt, None)
        self.queue.ended(number, ended)

    def _ask(self) -> Awaitable[Any]:
        asked: Awaitable[Any] = self._actor.ping.remote()
        return asked

    def _unanswered(self, error: Exception) -> None:
        """A ping failed: a dead actor is lost, one that is out of reach may come back."""
        if is_death(error):
            self.die(error)
        self._note_reach(error)

    def _note_reach(self, error: Exception) -> None:
        if isinstance(error, exceptions.ActorUnavailableError):
            self._reach(False)

    def _reach(self, is_reachable: bool) -> None:
        if self.is_alive and self.is_reachable is not is_reachable:
            self.is_reachable = is_reachable
            self._reached(self)

    def note_ticks(self, ticks: int) -> None:
        """Its process has used so much processor time. A silent one that uses none is out of reach.

        Silence alone is no sign: a stage may hold the interpreter in C code. It uses the processor then.
        """
        is_still = self.pulse.missed > 0 and 0 <= ticks == self._ticks
        self._ticks, self._still_beats = ticks, self._still_beats + 1 if is_still else 0
        if self._still_beats >= CUT_BEATS and self.is_reachable:
            self._reach(False)
            self.abandon(StageError(Cause.WORKER_LOST, "", f"worker {self.pid} is out of reach"))

    def _interrupt(self, number: int, _: bool) -> None:
        self._actor.cancel.remote(number)

    def kill(self, error: StageError) -> None:
        """Kill the actor; the attempt that it runs ends with this error."""
        self._cause = error
        ray.kill(self._actor, no_restart=True)
        self.die(None)

    def die(self, error: BaseException | None) -> None:
        """The actor has died, and its attempts with it. None = it was killed, or its process has ended."""
        if not self.is_alive:
            return
        self.is_alive = False
        self.pulse.stop()
        self.give_up(_death_of(error, self._cause, self.pid))
        self._lost(self)

    def abandon(self, error: StageError) -> None:
        """Wait no longer for attempts of an unreachable worker. It ends them when it can be reached again."""
        for number in self.queue.numbers:
            self._interrupt(number, True)
        self.give_up(error)

    def give_up(self, error: StageError) -> None:
        """Wait no longer for the attempts that it has."""
        self.reads.clear()
        self.queue.lost(error, f"worker {self.pid}")

    async def stop(self) -> None:
        """End the actor, unless it has ended with its cluster, and wait for nothing."""
        self.pulse.stop()
        for task in list(self._tasks):
            task.cancel()
        if self.is_alive:
            ray.kill(self._actor, no_restart=True)
        self.is_alive = False
        self.give_up(StageError(Cause.CANCELLED))


def is_death(error: BaseException) -> bool:
    """Whether an error of Ray's says that the actor is dead, not only out of reach."""
    return isinstance(error, exceptions.RayActorError) and not isinstance(
        error, exceptions.ActorUnavailableError
    )


def _death_of(error: BaseException | None, cause: StageError, pid: int) -> StageError:
    if cause.cause is not Cause.WORKER_LOST or cause.message:
        return cause
    told = "its process has ended" if error is None else str(error).strip()
    first = told.partition("\n")[0]
    is_memory = "memory" in told.lower() and "monitor" in told.lower()
    return StageError(Cause.OUT_OF_MEMORY if is_memory else Cause.WORKER_LOST, "", f"worker {pid}: {first}")


def _error_of(error: BaseException) -> StageError:
    """Of an attempt that has no outcome, though its actor lives."""
    found = getattr(error, "cause", None) or error
    causes = {
        exceptions.ObjectLostError: Cause.INPUT_LOST,
        exceptions.OutOfDiskError: Cause.DISK_FULL,
        exceptions.ObjectStoreFullError: Cause.OUT_OF_MEMORY,
    }
    for each in (error, found):
        for kind, cause in causes.items():
            if isinstance(each, kind):
                return StageError(cause, type(each).__name__, str(each).partition("\n")[0])
    return StageError(Cause.WORKER_LOST, type(found).__name__, str(found).partition("\n")[0])
