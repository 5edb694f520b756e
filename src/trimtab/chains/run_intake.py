"""Inputs of runs enter the loop, as many as there is room for, and leave it with their outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trimtab.chains.graph import StageCall
from trimtab.chains.host_state import HostState
from trimtab.chains.inputs import given_inputs, sizes
from trimtab.chains.run_endings import RunEndings
from trimtab.chains.run_progress import FlowShape, Mismatch, Progress, flow_shape
from trimtab.chains.run_state import ChainRun, Ending, Failure, ItemRun, State
from trimtab.chains.stage_outcomes import StageOutcomes
from trimtab.domain.requests import Status
from trimtab.engine.run_row_writer import NO_MODEL, RunSpec, StageNeeds
from trimtab.live.stage_backend import Cause, Ref, StageError

_NEVER_S = float("inf")


class RunIntake:
    """Lets inputs enter and leave.

    Args:
        in_flight: inputs of a run that are in the loop at a time, at most.
    """

    def __init__(self, host: HostState, in_flight: int, outcomes: StageOutcomes, endings: RunEndings) -> None:
        self._host, self.in_flight, self._outcomes, self._endings = host, in_flight, outcomes, endings
        self._shapes: list[FlowShape] = [flow_shape(chain) for chain in host.chains]

    def feed(self, run: ChainRun) -> None:
        """Let inputs of a run enter; end it if there is none left, or if they cannot be made."""
        try:
            self._fill(run)
        except Exception as error:  # of the caller's code too
            run.fault = error
            self.cancel(run, State.FAILED)
        self._endings.finish_if_over(run)

    def cancel(self, run: ChainRun, state: State = State.CANCELLED) -> None:
        """End a run: its attempts are cancelled, inputs that have not begun are dropped."""
        if run.state is not State.RUNNING:
            return
        run.state, run.is_exhausted = state, True
        run.waiting.clear()
        for item in filter(self._host.is_in_flight, run.items.values()):  # others have left their rows
            self._host.loop.runs.abort(item.place, self._host.now_s())
        self._endings.finish_if_over(run)
        self._host.wake()

    def _fill(self, run: ChainRun) -> None:
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
            given = given_inputs(run.chain, number, inputs, host.refs.put_now)
            work = sizes(run.chain, inputs)
            progress = Progress(run.chain, self._shapes[run.template], given)
        except (Mismatch, ValueError, TypeError, LookupError, AttributeError) as error:
            failure = Failure("", 0, 0, StageError(Cause.RAISED, type(error).__name__, str(error)))
            self._endings.tell(run, Ending(number, State.FAILED, (), failure))
            return True
        deadline_s = _NEVER_S if number in run.done_before else run.begun_s + run.options.deadline_s
        asked = RunSpec(host.loop.tenant_idx(run.options.tenant), run.options.priority, deadline_s)
        needs = list(map(self._needs, run.chain.steps, progress.counts, work))
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
        self._outcomes.settle(item, progress.first_ready())
        host.wake()
        return True

    def _needs(self, step: StageCall, count: int, size: float) -> StageNeeds:
        c, costs = self._host.class_of(step), self._host.loop.costs
        return StageNeeds(c, max(1, count), size, costs.output_gib(c), NO_MODEL, costs.count(c))

    def end(self, item: ItemRun, status: Status) -> None:
        """The loop has ended the run of an input: it is not in flight, and its attempts are over."""
        self._host.loop.runs.leave(item.place, item.run.template)
        if status is Status.FINISHED:
            self._deliver(item)
        else:
            self._end_without_output(item, status)

    def _end_without_output(self, item: ItemRun, status: Status) -> None:
        state, failure, now_s = State.FAILED, item.failure, self._host.now_s()
        if failure is None and status is Status.CANCELLED:
            is_late = now_s >= item.run.begun_s + item.run.options.deadline_s
            state = State.FAILED if is_late else State.CANCELLED
            text = "past the run's deadline" if is_late else "the run was cancelled"
            failure = Failure("", 0, 0, StageError(Cause.TIMEOUT if is_late else Cause.CANCELLED, "", text))
        elif failure is None:
            failure = Failure("", 0, 0, StageError(Cause.RAISED, "", f"not served: {status.name.lower()}"))
        self._over(item, Ending(item.number, state, (), failure, now_s - item.entered_s))

    def _deliver(self, item: ItemRun) -> None:
        """Fetch the output of an input's run, and tell it."""
        wanted = _outputs_of(item)
        if all(ref is None or ref.data is not None for refs in wanted for ref in refs):
            self._done(item, [[None if r is None else r.data for r in refs] for refs in wanted])
        else:
            self._host.spawn(self._fetched(item, wanted))

    async def _fetched(self, item: ItemRun, wanted: list[list[Ref | None]]) -> None:
        bytes_of = self._host.bytes_of
        try:
            found = [[None if r is None else await bytes_of(r) for r in refs] for refs in wanted]
        except Exception as error:
            failure = Failure("", 0, 0, StageError(Cause.INPUT_LOST, type(error).__name__, str(error)))
            elapsed_s = self._host.now_s() - item.entered_s
            self._over(item, Ending(item.number, State.FAILED, (), failure, elapsed_s))
        else:
            self._done(item, found)
        self._host.wake()  # others may have entered

    def _done(self, item: ItemRun, found: list[list[bytes | None]]) -> None:
        elapsed_s = self._host.now_s() - item.entered_s
        self._over(item, Ending(item.number, State.DONE, tuple(found), None, elapsed_s))

    def _over(self, item: ItemRun, ending: Ending) -> None:
        host = self._host
        host.refs.let_go(item.refs)
        item.run.items.pop(item.number, None)
        if host.recorder is not None and not host.is_closing:
            host.recorder.note_input(item, ending)
        self._endings.tell(item.run, ending)
        self.feed(item.run)


def _outputs_of(item: ItemRun) -> list[list[Ref | None]]:
    """The values in the output: of each, those of all instances."""
    return [
        [None if output is None else output.whole for output in item.progress.outputs_of(k)]
        for k in item.run.chain.output_steps
    ]
