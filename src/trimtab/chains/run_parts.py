"""Parts of a run's output while it runs: the output of each instance that it has values of."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from trimtab.chains.host_state import HostState
from trimtab.chains.run_progress import Instance, Output
from trimtab.chains.run_state import ChainRun, ItemRun, PartOutput
from trimtab.live.stage_backend import Ref


class RunParts:
    """Tells parts to those runs that want them.

    Args:
        finish_if_over: called with a run after each part that had to be fetched.
    """

    def __init__(self, host: HostState, finish_if_over: Callable[[ChainRun], None]) -> None:
        self._host, self._finish_if_over = host, finish_if_over

    def tell(self, item: ItemRun, at: Instance, output: Output) -> None:
        """An instance has its output."""
        run, ref = item.run, output.whole
        if run.part is None or at.step not in run.plan.output_steps:
            return
        if ref.data is not None:
            run.part(PartOutput(item.number, at.step, at.idx, ref.data))
            return
        run.fetches += 1
        self._host.refs.hold([ref])
        self._host.spawn(self._fetched(run, item.number, at, ref))

    async def _fetched(self, run: ChainRun, number: int, at: Instance, ref: Ref) -> None:
        try:
            with contextlib.suppress(Exception):  # the end of its input tells what is lost
                data = await self._host.bytes_of(ref)
                if run.part is not None:
                    run.part(PartOutput(number, at.step, at.idx, data))
        finally:
            self._host.refs.let_go([ref])
            run.fetches -= 1
            self._finish_if_over(run)
