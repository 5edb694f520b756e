"""What callers of a run are told: parts of outputs, the ends of its inputs, and its own end."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from trimtab.chains.host_state import HostState
from trimtab.chains.run_progress import Output, StageInstance
from trimtab.chains.run_state import ChainRun, Ending, ItemRun, PartOutput, State
from trimtab.live.stage_backend import Ref

if TYPE_CHECKING:
    from trimtab.chains.recording import Recorder


import logging

from trimtab.live.stage_backend import Attempt, StageError


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

    def tell_part(self, item: ItemRun, at: StageInstance, output: Output) -> None:
        """Tell the output of an instance to a run that wants parts of its output while it runs."""
        run, ref = item.run, output.whole
        if run.part is None or at.step not in run.chain.output_steps:
            return
        if ref.data is not None:
            run.part(PartOutput(item.number, at.step, at.idx, ref.data))
            return
        run.fetches += 1
        self._host.refs.hold([ref])
        self._host.spawn(self._fetched_part(run, item.number, at, ref))

    async def _fetched_part(self, run: ChainRun, number: int, at: StageInstance, ref: Ref) -> None:
        try:
            with contextlib.suppress(Exception):  # the end of its input tells what is lost
                data = await self._host.bytes_of(ref)
                if run.part is not None:
                    run.part(PartOutput(number, at.step, at.idx, data))
        finally:
            self._host.refs.let_go([ref])
            run.fetches -= 1
            self.finish_if_over(run)


logger = logging.getLogger("trimtab.chains")


def log_begin(run: ChainRun) -> None:
    """A run begins."""
    logger.info("run %s of %s begins", run.id, run.chain.name, extra=_of(run))


def log_end(run: ChainRun) -> None:
    """A run is over."""
    counts = ", ".join(f"{count} {state.value}" for state, count in run.endings.items())
    logger.info("run %s of %s is %s: %s", run.id, run.chain.name, run.state.value, counts, extra=_of(run))


def log_failure(item: ItemRun, at: StageInstance, attempt: Attempt, node: str, error: StageError) -> None:
    """An attempt has no result. Whether that matters is told at the end of its input."""
    stage = item.run.chain.steps[at.step].name
    told = {
        "input": item.number,
        "stage": stage,
        "instance": at.idx,
        "attempt": attempt.attempt,
        "node": node,
    }
    logger.info(
        "run %s input %d %s[%d] attempt %d on %s failed: %s",
        item.run.id, item.number, stage, at.idx, attempt.attempt, node, error,
        extra={**_of(item.run), **told, "cause": error.cause.value, "trace": error.trace},
    )  # fmt: skip


def _of(run: ChainRun) -> dict[str, str]:
    return {"run": run.id, "chain": run.chain.name, "tenant": run.options.tenant}
