"""Online services that hold GPUs all the time: their load over the day, and how a job beside one slows both.

A service is a row of the workload that never ends. Its load ℓ is from 0 to 1. A job beside it that may use
the share p of the GPU keeps min(1 − ℓ (1 − kept), p / busy) of its speed; the service answers 1 + ℓ p (1 /
kept − 1) times as slowly. `kept` is what each keeps of its speed at full load and p = 1, as measured for
the pair.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from trimtab.domain.training_jobs import Floats, ServiceLoads

SLOWDOWN_LIMIT: Final = 1.2  # of a service, over its latency alone


def load_of(services: ServiceLoads, job_idx: Any, age_s: Any) -> Floats:
    """Load of services after so many seconds; 0 of other jobs."""
    if services.series is not None:
        since_s = np.asarray(age_s) + services.phase_s[job_idx] + 1e-6
        step = np.minimum(since_s // services.step_s, len(services.series) - 1).astype(np.int64)
        return np.where(services.is_service[job_idx], services.series[step, job_idx], 0.0)
    steps = np.floor((np.asarray(age_s) + 1e-6) / services.step_s) * services.step_s
    angle = 2 * math.pi * (services.phase_s[job_idx] + steps) / services.period_s
    wave = np.array([(1.0 - math.cos(a)) / 2.0 for a in np.atleast_1d(angle)])
    level = services.least + (services.most - services.least) * wave
    return np.where(services.is_service[job_idx], level, 0.0)


def guest_kept(load: Any, kept: Any, share: Any, busy_frac: Any) -> Floats:
    """Share of its speed that a job keeps beside a service."""
    busy = np.maximum(busy_frac, 1e-9)
    return np.asarray(np.minimum(1.0 - load * (1.0 - np.asarray(kept)), share / busy), np.float64)


def host_slowdown(load: Any, kept: Any, share: Any) -> Floats:
    """Latency of a service beside a job, over that alone; inf where the pair can't share a GPU."""
    with np.errstate(divide="ignore"):
        excess = 1.0 / np.asarray(kept, np.float64) - 1.0
    pressed = np.asarray(load) * share
    return np.where(pressed > 0, 1.0 + np.where(pressed > 0, pressed, 1.0) * excess, 1.0)
