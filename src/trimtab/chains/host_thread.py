"""An event loop in a thread of its own, so that runs go on while their user does something else."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

UNWIND_S: Final = 10.0  # for what still runs to end when the thread stops


def let_ctrl_c_end_waits() -> None:
    """Let Ctrl-C end a wait for another thread. Polars, once imported, has the system go on with the wait."""
    if threading.current_thread() is threading.main_thread():
        signal.siginterrupt(signal.SIGINT, True)


class HostThread:
    """Runs coroutines on its loop, from any other thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._thread = threading.Thread(target=self._run, name="trimtab-chains", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine, once it is there. An interrupt of the caller cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        let_ctrl_c_end_waits()
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """Cancel what still runs, and end the thread."""
        if not self.loop.is_closed():
            self.call(_unwound())
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self.loop.close()


async def _unwound() -> None:
    """Cancel all other tasks, and wait for what they do then."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=UNWIND_S)
