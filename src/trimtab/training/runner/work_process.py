"""A process beside the run, for work that may take long: decisions, simulations, compiling.

A thread would share the interpreter with the run, and code that never lets go of it would hold up the run's
supervision of its jobs. Processes are forks of a server that has imported what they need.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import multiprocessing
import os
import pickle
import pkgutil
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, CancelledError, Future, ProcessPoolExecutor
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext, ForkServerContext
from typing import Any, Final

from trimtab.training import allocators

IMPORTED: Final = ("trimtab.training.runner.deciding", "trimtab.training.runner.forecasts")  # by the server


class WorkProcess:
    """Does one call after the other."""

    def __init__(self) -> None:
        self._begun: Future[_Begun] = Future()
        self._begun.set_running_or_notify_cancel()  # who stops waiting for it does not cancel it
        # A thread, for a fork waits until the server has imported; a daemon, for the end waits for no import.
        threading.Thread(target=_begin_process, args=(self._begun,), daemon=True).start()

    async def call(self, function: Callable[..., Any], *given: Any) -> Any:
        """What the function returns there. Raises what it raises, and BrokenExecutor if the process ends.

        What is given is copied at once: it may change meanwhile.
        """
        call = pickle.dumps((function, given))
        executor, _ = await asyncio.wrap_future(self._begun)
        return await asyncio.wrap_future(executor.submit(_called, call))

    def close(self) -> None:
        """End the process, whatever it does."""
        self._begun.add_done_callback(_end_process)


_Begun = tuple[ProcessPoolExecutor, Future[int]]  # with the id of its process


def _begin_process(begun: Future[_Begun]) -> None:
    try:
        begin_importing()
        given = os.getcwd(), sys.path
        executor = ProcessPoolExecutor(1, _context(), initializer=_begin, initargs=given)
        begun.set_result((executor, executor.submit(os.getpid)))
    except BaseException as error:
        begun.set_exception(error)


def _end_process(begun: Future[_Begun]) -> None:
    if begun.exception() is None:
        executor, process_id = begun.result()
        executor.shutdown(wait=False, cancel_futures=True)
        process_id.add_done_callback(_kill)


def _kill(process_id: Future[int]) -> None:
    with contextlib.suppress(BrokenExecutor, CancelledError, ProcessLookupError, OSError):
        os.kill(process_id.result(), signal.SIGKILL)


def begin_importing() -> None:
    """Have the server import what processes need, while the run is made ready. Once is enough."""
    if not isinstance(_context(), ForkServerContext):
        return
    resource_tracker.ensure_running()  # the server's own call of it would unblock the signal
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # else Ctrl-C ends its imports with a traceback
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    atexit.unregister(_end_server)
    atexit.register(_end_server)


def _end_server() -> None:
    """End the server: it would finish its imports, and fork what nobody waits for."""
    process_id = getattr(forkserver._forkserver, "_forkserver_pid", None)
    if process_id is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process_id, signal.SIGKILL)


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
