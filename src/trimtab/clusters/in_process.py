"""Runs stages in threads of the host's own process: for tests, and for stages that wait for others."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from trimtab.clusters.worker_queue import timeout_s
from trimtab.live.stage_backend import (
    Argument,
    Attempt,
    Cause,
    NodeChange,
    Outcome,
    Ref,
    StageCode,
    StageError,
    StageNode,
    ValueLost,
    digest_of,
)
from trimtab.live.stage_execution import LoadedStages, execute

SPARE_THREADS = 64


class InProcess:
    """Threads of this process. A thread cannot be stopped: cancelled and late attempts end by themselves.

    Another thread takes their place; after `SPARE_THREADS` of them a slot waits.
    """

    def __init__(self, nodes: Sequence[StageNode] = ()) -> None:
        self._nodes = tuple(nodes) or (StageNode("local", slots=os.cpu_count() or 1),)
        self._stages: dict[int, LoadedStages] = {}
        self._values: dict[str, bytes] = {}  # by place
        self._numbers = itertools.count()
        self._flags: dict[Attempt, bool] = {}
        self._waits: dict[Attempt, asyncio.Future[Outcome]] = {}
        self._threads: ThreadPoolExecutor | None = None

    @property
    def nodes(self) -> Sequence[StageNode]:
        """The nodes."""
        return self._nodes

    async def open(self, stages: Sequence[StageCode], on_change: Callable[[NodeChange], None]) -> None:
        """Start the threads."""
        self._stages = {j: LoadedStages(stages) for j in range(len(self._nodes))}
        slots = sum(node.slots * node.depth for node in self._nodes)
        self._threads = ThreadPoolExecutor(slots + SPARE_THREADS, thread_name_prefix="trimtab-stage")

    def start(self, node: int, attempt: Attempt, inputs: Sequence[Argument]) -> Awaitable[Outcome]:
        """Run an attempt in a thread."""
        self._flags[attempt] = False
        ended = asyncio.get_running_loop().run_in_executor(
            self._threads,
            partial(
                execute, self._stages[node], attempt, inputs, self._read, self._write,
                lambda: self._flags.get(attempt, True),
            ),
        )  # fmt: skip
        return self._watched(node, attempt, ended)

    async def _watched(self, node: int, attempt: Attempt, ended: asyncio.Future[Outcome]) -> Outcome:
        stages = self._stages[node]
        after_s = timeout_s(attempt, lambda stage: stages.code(stage).timeout_s)
        wait: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waits[attempt] = wait
        ended.add_done_callback(partial(_settle, wait))
        try:
            async with asyncio.timeout(None if after_s == float("inf") else after_s):
                return await wait
        except TimeoutError:
            return Outcome(error=StageError(Cause.TIMEOUT, "", f"took longer than {after_s:g} s"))
        finally:
            self._waits.pop(attempt, None)
            self._flags.pop(attempt, None)

    def cancel(self, attempt: Attempt) -> None:
        """Tell the attempt, and wait for it no longer."""
        if attempt in self._flags:
            self._flags[attempt] = True
        if (wait := self._waits.get(attempt)) is not None and not wait.done():
            wait.set_result(Outcome(error=StageError(Cause.CANCELLED)))

    def _read(self, ref: Ref) -> bytes:
        if ref.data is not None:
            return ref.data
        try:
            return self._values[ref.place]
        except KeyError:
            raise ValueLost(ref.digest) from None

    def _write(self, data: bytes) -> Ref:
        place = f"value-{next(self._numbers)}"
        self._values[place] = data
        return Ref(digest_of(data), len(data), None, place)

    async def put(self, data: bytes) -> Ref:
        """Keep a value."""
        return self._write(data)

    async def get(self, ref: Ref) -> bytes:
        """The bytes of a value."""
        return self._read(ref)

    def release(self, refs: Sequence[Ref]) -> None:
        """Forget values."""
        for ref in refs:
            self._values.pop(ref.place, None)

    async def close(self) -> None:
        """Wait for no attempt."""
        for attempt in list(self._waits):
            self.cancel(attempt)
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        self._values.clear()


def _settle(wait: asyncio.Future[Outcome], ended: asyncio.Future[Outcome]) -> None:
    if wait.done() or ended.cancelled():
        return
    error = ended.exception()
    failed = None if error is None else StageError(Cause.WORKER_LOST, type(error).__name__, str(error))
    wait.set_result(ended.result() if failed is None else Outcome(error=failed))
