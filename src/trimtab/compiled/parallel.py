"""Compiles in several processes at once, and reports progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, wait

Job = Callable[[], object]
Notice = Callable[[str], None]
NOTICE_S = 5.0  # between two lines


def compile_apart(jobs: Sequence[Job], notice: Notice | None = None) -> None:
    """Run these jobs, longest first. Their compiled kernels are in the cache afterwards.

    Jobs must be picklable. `notice` gets a line at once, and another every few seconds.
    """
    from loky import ProcessPoolExecutor, cpu_count  # takes a while to import

    tell = _Progress(len(jobs), notice)
    workers = min(cpu_count(), len(jobs))
    if workers < 2:
        for done, job in enumerate(jobs, 1):
            job()
            tell(done)
        return
    executor = ProcessPoolExecutor(max_workers=workers)
    try:
        open_jobs = {executor.submit(job) for job in jobs}
        while open_jobs:
            done_jobs, open_jobs = wait(open_jobs, NOTICE_S, return_when=FIRST_COMPLETED)
            for future in done_jobs:
                future.result()
            tell(len(jobs) - len(open_jobs))
    finally:
        executor.shutdown(wait=True, kill_workers=True)


class _Progress:
    """Reports a line at once, and another every few seconds."""

    def __init__(self, jobs: int, notice: Notice | None) -> None:
        self._jobs, self._notice = jobs, notice
        self._begun_s = self._last_s = time.perf_counter()
        if notice is not None:
            notice("compiling kernels, once on this machine")

    def __call__(self, done: int) -> None:
        now_s = time.perf_counter()
        if self._notice is not None and now_s - self._last_s >= NOTICE_S:
            self._last_s = now_s
            self._notice(f"compiling kernels: {done} of {self._jobs} parts, {now_s - self._begun_s:.0f} s")
