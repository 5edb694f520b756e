"""Ends of inputs and of runs: outputs are fetched, told and recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from trimtab.chains.host_state import HostState
from trimtab.chains.run_log import log_end
from trimtab.chains.run_state import ChainRun, Ending, Failure, ItemRun, State
from trimtab.domain.decision import Status
from trimtab.live.stage_backend import Cause, Ref, StageError

if TYPE_CHECKING:
    from trimtab.chains.recording import Recorder


class RunEndings:
    """Ends inputs and runs.

    Args:
        feed: called with the run of each input that is over, so that others enter.
    """

    def __init__(self, host: HostState, feed: Callable[[ChainRun], None]) -> None:
        self._host, self._feed = host, feed

    def end(self, item: ItemRun, status: Status) -> None:
        """The loop has ended the run of an input: it is not in flight, and its attempts are over."""
        self._host.loop.runs.leave(item.place, item.run.template)
        if status is Status.FINISHED:
            self._deliver(item)
        else:
            self._end_without_output(item, status)

    def tell(self, run: ChainRun, ending: Ending) -> None:
        """Wake the callers that wait for the results of a run."""
        run.endings[ending.state] += 1
        run.last_s = self._host.now_s()
        run.told(ending)

    def finish_if_over(self, run: ChainRun) -> None:
        """End a run of which nothing is left to do."""
        host = self._host
        if run.is_over and host.runs.pop(run.id, None) is not None:
            if run.state is State.RUNNING:
                run.state = State.FAILED if run.endings[State.FAILED] else State.DONE
            log_end(run)
            if host.recorder is None:
                run.ended(run.state)
            else:
                host.spawn(self._note_end(run, host.recorder))

    async def _note_end(self, run: ChainRun, recorder: Recorder) -> None:
        try:
            await recorder.end(run, "stopped" if self._host.is_closing else run.state.value)
        except Exception as error:
            run.fault = run.fault or error
        run.ended(run.state)

    async def end_by_loss(self, run: ChainRun, error: Exception) -> None:
        """Note that a backend is gone. Values that are not in the store yet are lost with it."""
        try:
            if self._host.recorder is not None:
                await self._host.recorder.journal.end(run.id, "stopped")
        finally:
            run.fail(error)

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
        self.tell(item.run, ending)
        self._feed(item.run)


def _outputs_of(item: ItemRun) -> list[list[Ref | None]]:
    """The values in the output: of each, those of all instances."""
    return [
        [None if output is None else output.whole for output in item.progress.outputs_of(k)]
        for k in item.run.plan.output_steps
    ]
