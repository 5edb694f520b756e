"""Generated jobs that adapt their batch: applications drawn at random, none of them measured."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from trimtab.domain.training_jobs import Floats, Workload, gpu_nodes
from trimtab.domain.training_profiles import ApplicationProfile, StepMeasurements
from trimtab.experiments.training.training_bounds import mean_completion_bound_s
from trimtab.training.job_models import ReplayJobs
from trimtab.training.job_records import JobRecords
from trimtab.training.restart_costs import FlatRestart, PerModelRestart
from trimtab.training.throughput_model import step_seconds
from trimtab.training.training_loop import run_allocator
from trimtab.training.truths.replay_truth import ReplayOptions, ReplayTruth
from trimtab.training.truths.replay_workloads import replay_workload

JOBS, EPOCHS = 160, 30
GPU_S = (1_500.0, 5_000.0, 15_000.0, 40_000.0, 150_000.0, 600_000.0)  # of each application, slowest type
MIXES = {"mixed": (0.3, 0.25, 0.2, 0.15, 0.08, 0.02), "mostly short": (0.06, 0.8, 0.06, 0.04, 0.02, 0.02)}
NODES = {
    "one type": gpu_nodes(0, np.full(16, 4)),
    "three types": gpu_nodes([0] * 2 + [1] * 3 + [2] * 6, [8] * 5 + [4] * 6),
}
RUNS = [(n,) for n in range(1, 9)]  # placements on one node
SPREAD = [(nodes, nodes * each) for nodes in (1, 2, 4, 8, 16) for each in (1, 2, 4, 8)]


@dataclass(frozen=True)
class Drawn:
    """A workload, the truth about it, and what a restart costs each application."""

    workload: Workload
    truth: ReplayTruth


def _application(rng: np.random.Generator, k: int, speed: Floats) -> ApplicationProfile:
    """`speed` [types] that of its passes."""
    first, grad_s = float(2 ** rng.integers(5, 10)), rng.uniform(0.1, 0.5)
    node_s, within_s = grad_s * rng.uniform(0.1, 0.5), grad_s * rng.uniform(0.02, 0.1)
    gamma, largest, fits = rng.uniform(1.5, 4.0), first * 2 ** rng.integers(3, 7), first * rng.integers(1, 4)
    least = max(first // 8, 1.0)
    local = np.unique(np.geomspace(least, fits, 7).astype(int)).astype(float)

    def times(nodes: int, gpus: int, batch: float, fast: float) -> tuple[float, float]:
        compute_s = grad_s * (0.3 + 0.7 * batch / first) / fast
        links = (node_s, 0.05 * node_s, within_s, 0.05 * within_s)
        passes = (0.3 * grad_s / fast, 0.7 * grad_s / first / fast)
        noise = rng.lognormal(0.0, 0.03)
        step_s = max(step_seconds(np.array([*passes, *links, gamma]), nodes, gpus, batch), compute_s) * noise
        return step_s, step_s - compute_s * noise

    steps = tuple(
        StepMeasurements(
            {run: (local, np.array([times(1, run[0], b, fast) for b in local])) for run in RUNS},
            np.array([(n, g, b) for n, g in SPREAD for b in local]),
            np.array([times(n, g, b, fast) for n, g in SPREAD for b in local]),
        )
        for fast in speed
    )
    batches = np.array([first * 2**i for i in range(int(np.log2(largest / first)) + 1)])
    noise = np.full(EPOCHS, rng.uniform(0.5, 4.0))
    for at in rng.uniform([0.3, 0.6], [0.6, 0.9]):  # the learning rate falls
        noise[int(at * EPOCHS) :] *= rng.uniform(2.0, 8.0)
    progress = np.cumsum(np.full(EPOCHS, GPU_S[k] / grad_s / EPOCHS))
    scale = (batches / first)[:, None]
    gain = (noise + 1.0) / (noise / scale + 1.0)
    each = np.broadcast_to
    return ApplicationProfile(
        name=f"application-{k}",
        steps=steps,
        batches=batches,
        progress=progress,
        iterations=np.cumsum(np.diff(progress, prepend=0.0) / gain, axis=1),
        grad_sqr=np.ones((len(batches), EPOCHS)),
        grad_var=each(noise, (len(batches), EPOCHS)),
        loss=each(1.0 / (1.0 + 0.1 * np.arange(1, EPOCHS + 1)), (len(batches), EPOCHS)),
        min_local=np.full(len(speed), least),
        max_local=np.full(len(speed), float(fits)),
        gpus_max=64,
    )


@cache
def drawn(seed: int, load: float, nodes: str, mix: str) -> Drawn:
    """160 jobs of six applications; load 1: their least GPU seconds fill the slowest type's worth of GPUs."""
    rng = np.random.default_rng([seed, 25])
    is_mixed = nodes == "three types"
    applications = []
    for k in range(len(GPU_S)):
        speed = np.array([rng.uniform(2.0, 4.0), rng.uniform(1.2, 2.0), 1.0]) if is_mixed else np.ones(1)
        applications.append(_application(rng, k, speed))
    app = rng.choice(len(GPU_S), JOBS, p=MIXES[mix])
    # a third of a job's seconds at its first batch is about what it needs with a better one
    span_s = float(np.array(GPU_S)[app].sum()) / 3.0 / (load * 64)
    truth = ReplayTruth(applications, ReplayOptions(profiled="one-gpu" if is_mixed else "nothing"))
    workload = replay_workload(
        f"adaptive jobs, seed {seed}",
        applications,
        [str(i) for i in range(JOBS)],
        np.sort(rng.uniform(0.0, span_s, JOBS)),
        [applications[a].name for a in app],
        rng.choice([1, 2, 4, 8], JOBS, p=[0.4, 0.3, 0.2, 0.1]),
        np.zeros(JOBS),
    )
    workload.columns["restart_s"] = np.round(rng.lognormal(np.log(60.0), 0.8, len(GPU_S))).tolist()
    return Drawn(workload, truth)


def run(spec: str, seed: int, *, load: float, nodes: str, mix: str = "mixed") -> JobRecords:
    made = drawn(seed, load, nodes, mix)
    return run_allocator(
        spec,
        made.workload,
        nodes=NODES[nodes],
        type_names=("a", "b", "c") if nodes == "three types" else ("a",),
        truth=made.truth,
        clock="rounds(period_s=60)",
        restart=PerModelRestart() if nodes == "three types" else FlatRestart(30.0),
    )


def bound(metric: str, seed: int, *, load: float, nodes: str, mix: str = "mixed") -> float:
    made = drawn(seed, load, nodes, mix)
    type_gpus = np.bincount(NODES[nodes]["type_idx"], NODES[nodes]["gpus"]).astype(np.int64)
    return mean_completion_bound_s(made.workload, ReplayJobs(made.truth), type_gpus)
