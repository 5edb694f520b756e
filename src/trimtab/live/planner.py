"""Planning beside the loop: `plan` runs in another process, and its results are checked.

A thread would share the interpreter with the loop and delay it; a process does not. After a failed plan the
last good plan stays in force. The run's PlanningLog counts the failure, and the log reports it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import multiprocessing
import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from trimtab.domain.planning import History, checked_plan
from trimtab.domain.policy import Policy, members, name_of
from trimtab.domain.view import Plan, View
from trimtab.engine.driver import PlanningLog
from trimtab.engine.policy_errors import line_of
from trimtab.engine.rollout import Rollouts
from trimtab.errors import PolicyError, UsageError

logger = logging.getLogger(__name__)

Deliver = Callable[[Plan], None]


class Snapshot(NamedTuple):
    """The inputs of a planner, as copies that no event changes."""

    view: View
    history: Any  # planning.History
    waiting: Any  # WORK [held requests]
    rollouts: Rollouts | None  # for a policy that uses rollouts


class PlanResult(Enum):
    """How an attempt to plan ended."""

    MADE = "made a plan"
    KEPT = "kept the plan in force"  # plan() returned None
    RAISED = "raised"
    INVALID = "returned no valid plan"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A plan, or the reason for having none."""

    result: PlanResult
    plan: Plan | None = None
    problem: str = ""


class Planned(Protocol):
    """A driver whose state a planner reads."""

    def view(self) -> View:
        """The policy's present view."""

    def history(self) -> History:
        """The recent past."""

    def waiting(self) -> np.ndarray:
        """The first held requests by queue key, as WORK rows."""

    @property
    def rollouts(self) -> Rollouts | None:
        """The rollouts, if the policy uses them."""


class Planner(Protocol):
    """Makes plans for a host."""

    async def open(self) -> None:
        """Get ready; called before time starts. Raises UsageError if the policy cannot plan here."""

    def begin(self, driver: Planned, deliver: Deliver) -> None:
        """Start to plan from the driver's present state. `deliver` gets a valid plan."""

    def close(self) -> None:
        """Stop at once, even during a plan."""


def snapshot(driver: Planned) -> Snapshot:
    """A copy of the present state, as far as the policy may see it."""
    view = View(*(field.copy() for field in driver.view()))
    return Snapshot(view, driver.history(), driver.waiting(), driver.rollouts)


def attempt(policy: Policy, given: Snapshot) -> Outcome:
    """Call the policy's `plan`; an exception becomes part of the outcome."""
    try:
        inputs = given.view, given.history, given.waiting
        plan = policy.plan(*inputs, given.rollouts and given.rollouts.from_state(*inputs))
    except Exception as error:
        return Outcome(PlanResult.RAISED, problem=f"{error!r} in plan() ({line_of(error)})")
    if plan is None:
        return Outcome(PlanResult.KEPT)
    try:
        return Outcome(PlanResult.MADE, checked_plan(plan, len(given.view.nodes), len(members(policy))))
    except (PolicyError, TypeError, ValueError) as error:  # NumPy raises the last two if a field is no array
        return Outcome(PlanResult.INVALID, problem=str(error))


class _PlanGate:
    """Delivers valid plans; counts and logs all other outcomes."""

    def __init__(self, policy: Policy, log: PlanningLog) -> None:
        self.name = name_of(policy)
        self._log = log

    def pass_on(self, outcome: Outcome, deliver: Deliver) -> None:
        if outcome.plan is not None:
            deliver(outcome.plan)
        elif outcome.result is PlanResult.RAISED:
            self._log.raised += 1
            self._warn(f"raised {outcome.problem}")
        elif outcome.result is PlanResult.INVALID:
            self._log.invalid += 1
            self._warn(outcome.problem)

    def note_late(self) -> None:
        self._log.late += 1
        self._warn("its plan took longer than its period and is dropped")

    def _warn(self, problem: str) -> None:
        logger.warning("policy %r: %s; the last good plan stays in force", self.name, problem)


class InlinePlanner:
    """Plans at once, while time stands still: for virtual clocks."""

    def __init__(self, policy: Policy, log: PlanningLog) -> None:
        self._policy, self._gate = policy, _PlanGate(policy, log)

    async def open(self) -> None:
        """Nothing to get ready."""

    def begin(self, driver: Planned, deliver: Deliver) -> None:
        """Plan now."""
        self._gate.pass_on(attempt(self._policy, snapshot(driver)), deliver)

    def close(self) -> None:
        """Nothing to stop."""


class ProcessPlanner:
    """Plans in one other process, one plan at a time.

    A plan is late if it is not finished when the next one is due. A late plan is dropped when it arrives, and
    no other plan begins before. A worker that dies is replaced.
    """

    def __init__(self, policy: Policy, log: PlanningLog) -> None:
        self._gate = _PlanGate(policy, log)
        self._payload = _pickled(policy)
        self._current: asyncio.Future[Outcome] | None = None
        self._is_late = False
        self._start_worker()

    def _start_worker(self) -> None:
        self._executor = ProcessPoolExecutor(
            1, multiprocessing.get_context("spawn"), initializer=_begin_worker, initargs=self._payload
        )
        with _interrupts_held_back():  # the host ends its worker itself
            self._worker_id = self._executor.submit(os.getpid)

    async def open(self) -> None:
        """Wait until the worker has imported what it needs."""
        try:
            await asyncio.wrap_future(self._worker_id)
        except BrokenExecutor as error:
            raise UsageError(
                "cannot be loaded in the process that plans",
                field="policy",
                value=self._gate.name,
                expected="a class that a new Python process can import",
            ) from error

    @property
    def is_busy(self) -> bool:
        """Whether a plan is being made."""
        return self._current is not None

    def begin(self, driver: Planned, deliver: Deliver) -> None:
        """Send the state to the worker, unless it still plans."""
        if self.is_busy:
            self._note_late()
            return
        self._current = self._submit(snapshot(driver))
        self._current.add_done_callback(partial(self._on_done, deliver))

    def _submit(self, given: Snapshot) -> asyncio.Future[Outcome]:
        loop = asyncio.get_running_loop()
        try:
            return loop.run_in_executor(self._executor, _plan_in_worker, given)
        except BrokenExecutor:  # the worker died between two plans
            self._start_worker()
            return loop.run_in_executor(self._executor, _plan_in_worker, given)

    def _note_late(self) -> None:
        if not self._is_late:
            self._gate.note_late()
        self._is_late = True

    def _on_done(self, deliver: Deliver, future: asyncio.Future[Outcome]) -> None:
        was_late, self._is_late, self._current = self._is_late, False, None
        if future.cancelled():
            return
        if isinstance(error := future.exception(), BrokenExecutor):
            self._start_worker()
        outcome = (
            future.result() if error is None else Outcome(PlanResult.RAISED, problem=f"{error!r} in plan()")
        )
        if not was_late:
            self._gate.pass_on(outcome, deliver)

    def close(self) -> None:
        """End the worker, even during a plan."""
        if self._current is not None:
            self._current.cancel()
            self._kill_worker()
        self._executor.shutdown(cancel_futures=True)

    def _kill_worker(self) -> None:
        with contextlib.suppress(BrokenExecutor, ProcessLookupError):
            os.kill(self._worker_id.result(), signal.SIGTERM)


def _pickled(policy: Policy) -> tuple[str, str | None, bytes]:
    """The policy for its worker: module, the module's file, and the pickled object."""
    module = type(policy).__module__
    try:
        return module, getattr(sys.modules[module], "__file__", None), pickle.dumps(policy)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UsageError(
            f"cannot be sent to the process that plans: {error}",
            field="policy",
            value=type(policy).__name__,
            expected="a class at the top of a module, with parameters that pickle",
        ) from error


@contextlib.contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Delay Ctrl-C until after this block. A process started in it inherits the mask and ignores Ctrl-C."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_worker_policy: Policy  # in the worker process only


def _begin_worker(module: str, file: str | None, payload: bytes) -> None:
    global _worker_policy
    if file is not None and module not in sys.modules and importlib.util.find_spec(module) is None:
        _import_file(module, file)
    _worker_policy = pickle.loads(payload)


def _import_file(name: str, file: str) -> None:
    """Import a policy's file under its module name in the host."""
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(name)
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])


def _plan_in_worker(given: Snapshot) -> Outcome:
    return attempt(_worker_policy, given)
