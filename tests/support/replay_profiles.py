"""A small application with round numbers, and jobs of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from trimtab.domain.training_jobs import Workload
from trimtab.domain.training_profiles import ApplicationProfile, StepMeasurements
from trimtab.training.truths.replay_workloads import replay_workload

LOCAL = np.array([8.0, 16.0, 32.0])


def toy_profile(name: str = "toy", noise: float = 0.0, epochs: int = 4, **more: Any) -> ApplicationProfile:
    """A step takes local batch / 16 seconds, and 0.5 s more with several GPUs. 100 iterations at 16 an epoch.

    `noise` is the variance of the gradient over its squared norm: gain at batch M is
    (noise + 1) / (16 noise / M + 1).
    """
    batches = np.array([16.0, 64.0])
    times = np.stack([LOCAL / 16, np.zeros(3)], axis=1)
    synced = np.stack([LOCAL / 16 + 0.5, np.full(3, 0.5)], axis=1)
    layouts = [(1,), (2,), (4,), (1, 1), (2, 2), (4, 4)]
    placements = {p: (LOCAL, times if p == (1,) else synced) for p in layouts}
    scaled = np.array([[n, 4.0 * n, b] for n in (1, 4, 16) for b in LOCAL])
    progress = 100.0 * np.arange(1, epochs + 1)
    gain = (noise + 1) / (noise / (batches / 16) + 1)
    given: dict[str, Any] = {
        "name": name,
        "steps": (StepMeasurements(placements, scaled, np.tile(synced, (3, 1))),),
        "batches": batches,
        "progress": progress,
        "iterations": progress / gain[:, None],
        "grad_sqr": np.ones((2, epochs)),
        "grad_var": np.full((2, epochs), noise),
        "loss": np.tile(1.0 / (1.0 + np.arange(1, epochs + 1)), (2, 1)),
        "min_local": np.array([8.0]),
        "max_local": np.array([32.0]),
        "gpus_max": 8,
    }
    return ApplicationProfile(**(given | more))


def toy_jobs(profile: ApplicationProfile, submit_s: Any, gpus: Any, batch: Any) -> Workload:
    """Jobs of one application."""
    n = len(submit_s)
    names = [f"job-{i}" for i in range(n)]
    return replay_workload(
        "made for a test",
        [profile],
        names,
        np.array(submit_s, np.float64),
        [profile.name] * n,
        np.broadcast_to(gpus, n),
        np.broadcast_to(np.float64(batch), n),
    )


def write_application(folder: Path, suffix: str = "") -> None:
    """The toy application as files of its format."""
    profile = toy_profile(noise=3.0)
    place = folder / profile.name
    place.mkdir(parents=True, exist_ok=True)
    (steps,) = profile.steps
    rows = ["placement,local_bsz,step_time,sync_time"]
    for placement, (batches, times) in steps.placements.items():
        digits = "".join(map(str, placement))
        rows += [f"{digits},{b},{t[0]},{t[1]}" for b, t in zip(batches, times, strict=True)]
    (place / f"placements{suffix}.csv").write_text("\n".join(rows))
    rows = ["num_nodes,num_replicas,local_bsz,step_time,sync_time"]
    both = zip(steps.scaled, steps.scaled_times, strict=True)
    rows += [",".join(map(str, (*point, *times))) for point, times in both]
    (place / f"scalability{suffix}.csv").write_text("\n".join(rows))
    for k, batch in enumerate(profile.batches):
        rows = ["epoch,progress,iteration,metric,grad_sqr,grad_var"]
        for e in range(profile.epochs):
            rows.append(f"{e},{profile.progress[e]},{profile.iterations[k, e]},0,1,{profile.grad_var[k, e]}")
        (place / f"validation-{int(batch)}.csv").write_text("\n".join(rows))
