"""The peak of a worker process's memory while it runs a stage."""

from __future__ import annotations

import contextlib
import math
import resource
import time
from pathlib import Path

_MEASURED_AGAIN_S = 1.0
_MEASURED_S = 0.01  # stages that take less are too short for an exact peak of memory
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class PeakMemory:
    """Measures one stage after another. Of short ones the peak since the last reset is read once a second."""

    def __init__(self) -> None:
        self._last_s: dict[str, float] = {}  # service of each stage
        self._peak_gib, self._measured_s = 0.0, -math.inf
        self._is_exact = False

    def begin(self, stage: str) -> None:
        """A stage begins."""
        self._is_exact = self._last_s.get(stage, 0.0) >= _MEASURED_S and _reset_peak()

    def end(self, stage: str, service_s: float) -> float:
        """A stage has ended: the peak in GiB."""
        self._last_s[stage] = service_s
        now_s = time.monotonic()
        if self._is_exact or now_s >= self._measured_s + _MEASURED_AGAIN_S:
            self._peak_gib, self._measured_s = _peak_gib(), now_s
        return self._peak_gib


def _reset_peak() -> bool:
    try:
        _CLEAR.write_text("5")
    except OSError:
        return False
    return True


def _peak_gib() -> float:
    """Peak of this process's memory: since `_reset_peak`, or since its start."""
    with contextlib.suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / (1 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
