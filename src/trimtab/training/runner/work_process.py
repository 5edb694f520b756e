"""A process beside the run, for work that may take long: decisions, simulations, compiling.

A thread would share the interpreter with the run, and code that never lets go of it would hold up the run's
supervision of its jobs. Processes are forks of a server that has imported what they need.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import pickle
import pkgutil
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from multiprocessing import forkserver
from multiprocessing.context import BaseContext, ForkServerContext
from typing import Any, Final

from trimtab.training import allocators

IMPORTED: Final = ("trimtab.training.runner.deciding", "trimtab.training.runner.forecasts")  # by the server


class WorkProcess:
    """Does one call after the other."""

    def __init__(self) -> None:
        context = _context()
        self._executor = ProcessPoolExecutor(1, context, initializer=_begin, initargs=(os.getcwd(), sys.path))
        self._id = self._executor.submit(os.getpid)

    async def call(self, function: Callable[..., Any], *given: Any) -> Any:
        """What the function returns there. Raises what it raises, and BrokenExecutor if the process ends.

        What is given is copied at once: it may change meanwhile.
        """
        call = pickle.dumps((function, given))
        return await asyncio.wrap_future(self._executor.submit(_called, call))

    def close(self) -> None:
        """End the process, whatever it does."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._id.add_done_callback(_kill)


def _kill(process_id: Any) -> None:
    with contextlib.suppress(BrokenExecutor, asyncio.CancelledError, ProcessLookupError, OSError):
        if not process_id.cancelled():
            os.kill(process_id.result(), signal.SIGKILL)


def begin_importing() -> None:
    """Have the server import what processes need, while the run is made ready."""
    if isinstance(_context(), ForkServerContext):
        forkserver.ensure_running()


def _context() -> BaseContext:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    found = [info.name for info in pkgutil.iter_modules(allocators.__path__, f"{allocators.__name__}.")]
    context.set_forkserver_preload([*IMPORTED, *found])
    return context


def _begin(folder: str, path: list[str]) -> None:
    """In the new process: be where the run is, leave Ctrl-C to it, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.path[:] = path
    os.chdir(folder)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _called(call: bytes) -> Any:
    function, given = pickle.loads(call)
    return function(*given)


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)
