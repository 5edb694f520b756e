"""Figures of a live run: completions, differences between policies, and how near a replay comes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bench.live.traffic import Floats
from trimtab.experiments.serving.replay import paired_by_batches, replay


def figures(completion_s: Floats) -> dict[str, float]:
    """Mean and 99th percentile."""
    return {"mean_s": float(completion_s.mean()), "p99_s": float(np.quantile(completion_s, 0.99))}


def difference_s(completion_s: Floats, other_s: Floats) -> dict[str, float | None]:
    """Mean completion less that of another policy over the same requests, with its 95 % interval."""
    return paired_by_batches(completion_s, other_s)._asdict()


def replay_error_frac(recording: Path, after_s: float) -> dict[str, float]:
    """Errors of `trimtab replay` under the recorded policy, of requests that came after this time."""
    (replayed,) = replay(recording, after_s=after_s).policies
    return {"mean": replayed.error_frac.mean_s, "p99": replayed.error_frac.p99_s}
