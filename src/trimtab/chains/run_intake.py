"""Inputs of runs enter the loop, as many as there is room for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trimtab.chains.host_state import HostState
from trimtab.chains.inputs import given_inputs, sizes
from trimtab.chains.plan import PlannedStep
from trimtab.chains.run_progress import FlowShape, Instance, Mismatch, Progress, flow_shape
from trimtab.chains.run_state import ChainRun, Ending, Failure, ItemRun, State
from trimtab.engine.run_row_writer import NO_MODEL, RunSpec, StageNeeds
from trimtab.live.stage_backend import Cause, StageError

_NEVER_S = float("inf")


class RunIntake:
    """Lets inputs enter.

    Args:
        in_flight: inputs of a run that are in the loop at a time, at most.
        settle: called with the instances that are ready at the start.
        refuse: called with the ending of an input that cannot begin.
    """

    def __init__(
        self,
        host: HostState,
        in_flight: int,
        settle: Callable[[ItemRun, list[Instance]], None],
        refuse: Callable[[ChainRun, Ending], None],
    ) -> None:
        self._host, self.in_flight, self._settle, self._refuse = host, in_flight, settle, refuse
        self._shapes: list[FlowShape] = [flow_shape(plan) for plan in host.plans]

    def feed(self, run: ChainRun) -> None:
        """Let inputs of a run enter."""
        while len(run.items) < self.in_flight and run.state is State.RUNNING:
            if not run.waiting:
                try:
                    run.waiting.append(next(run.inputs))
                except StopIteration:
                    run.is_exhausted = True
                    break
            number, inputs = run.waiting[0]
            if not self._enter(run, number, inputs):
                break
            run.waiting.popleft()

    def _enter(self, run: ChainRun, number: int, inputs: Mapping[str, Any]) -> bool:
        """Let one input enter. False if there is no room."""
        host = self._host
        try:
            given = given_inputs(run.plan, number, inputs, host.refs.put_now)
            work = sizes(run.plan, inputs)
            progress = Progress(run.plan, self._shapes[run.template], given)
        except (Mismatch, ValueError, TypeError, LookupError, AttributeError) as error:
            failure = Failure("", 0, 0, StageError(Cause.RAISED, type(error).__name__, str(error)))
            self._refuse(run, Ending(number, State.FAILED, (), failure))
            return True
        deadline_s = _NEVER_S if number in run.done_before else run.begun_s + run.options.deadline_s
        asked = RunSpec(host.loop.tenant_idx(run.options.tenant), run.options.priority, deadline_s)
        needs = list(map(self._needs, run.plan.steps, progress.counts, work))
        place = host.loop.runs.enter(run.template, asked, needs, host.now_s())
        if place is None:
            return False
        item = ItemRun(run, number, progress, place, host.now_s(), list(place.stages), work)
        item.refs += given.refs.values()
        for refs in given.splits:
            item.refs += refs
        item.tried |= run.tried.get(number, {})
        host.refs.hold(item.refs)
        run.items[number] = item
        host.items[place.row] = item
        for k, count in enumerate(progress.counts):
            host.own(item, k, max(1, count))
        self._settle(item, progress.first_ready())
        host.wake()
        return True

    def _needs(self, step: PlannedStep, count: int, size: float) -> StageNeeds:
        c, costs = self._host.class_of(step), self._host.loop.costs
        return StageNeeds(c, max(1, count), size, costs.output_gib(c), NO_MODEL, costs.count(c))
