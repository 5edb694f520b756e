"""What callers of a run are told: parts of outputs, the ends of its inputs, and its own end."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from trimtab.chains.host_state import HostState
from trimtab.chains.run_log import log_end
from trimtab.chains.run_progress import Instance, Output
from trimtab.chains.run_state import ChainRun, Ending, ItemRun, PartOutput, State
from trimtab.live.stage_backend import Ref

if TYPE_CHECKING:
    from trimtab.chains.recording import Recorder


class RunEndings:
    """Tells callers, and ends runs."""

    def __init__(self, host: HostState) -> None:
        self._host = host

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

    def tell_part(self, item: ItemRun, at: Instance, output: Output) -> None:
        """Tell the output of an instance to a run that wants parts of its output while it runs."""
        run, ref = item.run, output.whole
        if run.part is None or at.step not in run.plan.output_steps:
            return
        if ref.data is not None:
            run.part(PartOutput(item.number, at.step, at.idx, ref.data))
            return
        run.fetches += 1
        self._host.refs.hold([ref])
        self._host.spawn(self._fetched_part(run, item.number, at, ref))

    async def _fetched_part(self, run: ChainRun, number: int, at: Instance, ref: Ref) -> None:
        try:
            with contextlib.suppress(Exception):  # the end of its input tells what is lost
                data = await self._host.bytes_of(ref)
                if run.part is not None:
                    run.part(PartOutput(number, at.step, at.idx, data))
        finally:
            self._host.refs.let_go([ref])
            run.fetches -= 1
            self.finish_if_over(run)
