"""The memory that stages take of their worker process: measured, and bounded by what they declare.

A stage has of its worker what its attempts add, and what they leave behind, such as a model. What the worker
has without it is not counted: its interpreter, imported code, other stages' models.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from trimtab.live.stage_backend import Cause, Outcome, StageCode, StageError

_MEASURED_AGAIN_S: Final = 1.0
_MEASURED_S: Final = 0.01  # stages that take less are too short for a measurement each time
_LOOK_S: Final = 0.02  # between two looks at what a limited stage takes
_BURST_GIB: Final = 0.25  # beyond twice its limit a stage gets nothing from the system
_GIB: Final = float(1 << 30)
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class MemoryLimits:
    """The declared memory of stages, watched by a thread.

    A thread may come too late for one large allocation. The system refuses that: then the stage gets a
    MemoryError.

    Args:
        limits_gib: of stages that declare one.
        exceeded: called, in the watching thread, with a text that says what was exceeded.
    """

    def __init__(self, limits_gib: Mapping[str, float], exceeded: Callable[[str], None]) -> None:
        self._limits_gib, self._exceeded = limits_gib, exceeded
        self._watched: tuple[str, float] | None = None  # the stage that runs, and its base
        if limits_gib and _STATUS.exists():
            threading.Thread(target=self._watch, name="trimtab-memory", daemon=True).start()

    def has(self, stage: str) -> bool:
        """Whether a stage has a limit."""
        return stage in self._limits_gib

    def begin(self, stage: str, base_gib: float) -> None:
        """A stage begins; its worker has so much without it."""
        if (limit_gib := self._limits_gib.get(stage)) is not None:
            _set_most(_read("VmData") + 2.0 * limit_gib + _BURST_GIB)
            self._watched = stage, base_gib

    def end(self, stage: str, own_gib: float) -> str:
        """A stage has ended, and took so much at most. Returns what it has exceeded; "" = nothing."""
        if self._watched is None:
            return ""
        self._watched = None
        _set_most(None)
        return self._problem(stage, own_gib)

    def _problem(self, stage: str, own_gib: float) -> str:
        limit_gib = self._limits_gib[stage]
        return (
            "" if own_gib <= limit_gib else f"took {own_gib:.2f} GiB, more than its memory_gib={limit_gib:g}"
        )

    def _watch(self) -> None:
        while True:
            time.sleep(_LOOK_S)
            if (watched := self._watched) is not None:
                problem = self._problem(watched[0], _read("VmRSS") - watched[1])
                if problem and self._watched is watched:
                    self._exceeded(problem)

    def judged(self, stage: str, outcome: Outcome, problem: str) -> Outcome:
        """The outcome of a stage that may have exceeded its limit: then it is an error."""
        limit_gib = self._limits_gib.get(stage)
        if limit_gib is not None and outcome.error is not None:
            if outcome.error.cause is not Cause.OUT_OF_MEMORY:
                return outcome
            problem = f"asked for more memory than its memory_gib={limit_gib:g} allows"
        if not problem:
            return outcome
        trace, where = (outcome.error.trace, outcome.error.where) if outcome.error else ("", "")
        error = StageError(Cause.MEMORY_LIMIT, "", problem, trace, where)
        return Outcome(error=error, service_s=outcome.service_s, load_s=outcome.load_s)


class PeakMemory:
    """Measures the peak of one stage after another. Of short ones it is measured once a second."""

    def __init__(self, limits: MemoryLimits | None = None) -> None:
        self._limits = limits or MemoryLimits({}, lambda _: None)
        self._last_s: dict[str, float] = {}  # service of each stage
        self._peak_gib: dict[str, float] = {}
        self._kept_gib: dict[str, float] = {}  # what its attempts have left behind
        self._next_s: dict[str, float] = {}  # when a short one is measured again
        self._stage, self._base_gib, self._peak = "", 0.0, "VmRSS"  # where the system has the peak
        self._is_measured = False

    def begin(self, stage: str) -> None:
        """A stage begins."""
        is_due = time.monotonic() >= self._next_s.get(stage, 0.0) or self._last_s[stage] >= _MEASURED_S
        self._is_measured = is_due or self._limits.has(stage)
        self._stage = stage
        if self._is_measured and stage in self._last_s:  # else once its code is there
            self.note_base()

    def note_base(self) -> None:
        """The stage that runs answers for what its worker takes from here on: imported code is for all."""
        if self._is_measured:
            self._peak = "VmHWM" if _reset_peak() else "VmRSS"
            self._base_gib = _read("VmRSS") - self._kept_gib.get(self._stage, 0.0)
            self._limits.begin(self._stage, self._base_gib)

    def end(self, stage: str, service_s: float) -> tuple[float, str]:
        """A stage has ended: its peak in GiB, and what it has exceeded; "" = nothing."""
        self._last_s[stage] = service_s
        if not self._is_measured:
            return self._peak_gib.get(stage, 0.0), ""
        peak_gib = self._peak_gib[stage] = max(0.0, _read(self._peak) - self._base_gib)
        self._kept_gib[stage] = max(0.0, _read("VmRSS") - self._base_gib)
        self._next_s[stage] = time.monotonic() + _MEASURED_AGAIN_S
        return peak_gib, self._limits.end(stage, peak_gib)


def declared_gib(stages: Iterable[StageCode]) -> dict[str, float]:
    """The limits of stages that declare their memory."""
    return {stage.name: stage.demand["memory_gib"] for stage in stages if stage.demand.get("memory_gib")}


def machine_gib() -> float:
    """The memory of this machine, or of the container that this process is in."""
    limits = []
    with contextlib.suppress(ValueError, OSError):
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / _GIB)
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # there is none, or it is "max"
            limits.append(int(Path(file).read_text()) / _GIB)
    return min(limits, default=float("inf"))


def _set_most(gib: float | None) -> None:
    """Bound what this process may allocate; None = by nothing but its own hard limit."""
    if sys.platform != "linux":
        return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = hard if gib is None else int(gib * _GIB)
    soft = wanted if hard == resource.RLIM_INFINITY or wanted == hard else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _reset_peak() -> bool:
    try:
        _CLEAR.write_text("5")
    except OSError:
        return False
    return True


def _read(name: str) -> float:
    """GiB of this process: VmRSS, its peak VmHWM since `_reset_peak`, or VmData, what it may write to."""
    with contextlib.suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) / (1 << 20)
    return 0.0
