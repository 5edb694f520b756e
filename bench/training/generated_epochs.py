"""Generated jobs of fixed numbers of GPUs that change their batch as they train; nothing is from a list."""

from __future__ import annotations

from functools import cache

import numpy as np

from bench.golden.gavel import gavel_run
from trimtab.domain.training_jobs import Ints, Workload
from trimtab.traces.gavel_jobs import GavelJob
from trimtab.training.job_records import JobRecords
from trimtab.training.truths.gavel_workloads import gavel_workload
from trimtab.training.truths.stepped_truth import SteppedTruth, StepRates

JOBS, GPUS, MODELS = 120, 32, 5
WIDTHS, WIDTH_SHARES = (1, 2, 4, 8), (0.6, 0.28, 0.1, 0.02)


@cache
def drawn(seed: int, load: float) -> tuple[Workload, SteppedTruth]:
    """120 jobs on 32 GPUs; load: GPU seconds asked for over those there are until the last submission."""
    rng = np.random.default_rng([seed, 120])
    batches = [2 ** int(k) * np.array([1, 2, 4, 8]) for k in rng.integers(4, 8, MODELS)]
    rates, samples = {}, {}
    for m in range(MODELS):
        samples[f"model-{m}"] = int(rng.integers(2_000, 10_000))
        step_s, share = (
            rng.uniform(0.1, 0.4),
            rng.uniform(0.2, 0.7),
        )  # share that does not grow with the batch
        for batch in batches[m].tolist():
            for width in WIDTHS:
                scale = width**-0.85 * (share + (1 - share) * batch / batches[m][0])
                rates[f"model-{m}", batch, width] = 1.0 / (step_s * scale)
    known = StepRates((rates,), samples)
    jobs: list[GavelJob] = []
    schedules: dict[int, Ints] = {}
    asked_s = 0.0
    for j in range(JOBS):
        m, width = int(rng.integers(MODELS)), int(rng.choice(WIDTHS, p=WIDTH_SHARES))
        first, mode = int(batches[m][0]), str(rng.choice(["static", "accordion", "gns"], p=[0.3, 0.35, 0.35]))
        epoch_s = known.steps_of_epoch(f"model-{m}", first) / rates[f"model-{m}", first, width]
        epochs = max(int(np.exp(rng.uniform(np.log(720.0), np.log(18_000.0))) / epoch_s), 10)
        plan = np.full(epochs, first)
        if mode == "gns":
            for at in np.sort(rng.uniform(0.1, 0.9, 3)):
                plan[int(at * epochs) :] *= 2
        if mode == "accordion":
            plan[int(rng.uniform(0.1, 0.4) * epochs) :] = batches[m][-1]
        schedules[j] = plan
        steps = epochs * known.steps_of_epoch(f"model-{m}", first)
        jobs.append(GavelJob(f"model-{m}", f"model-{m}", first, steps, width, mode, 1.0, 0.0))
    sized, _ = gavel_workload("", jobs, schedules, {}, known)
    asked_s = float((sized.duration_s * sized.gpus_requested).sum())
    arrival_s = np.sort(rng.uniform(0.0, asked_s / (load * GPUS), JOBS))
    listed = [
        GavelJob(job.job_type, job.model, job.batch, job.steps, job.gpus, job.mode, 1.0, float(at))
        for job, at in zip(jobs, arrival_s, strict=True)
    ]
    return gavel_workload(f"changing batches, seed {seed}", listed, schedules, {}, known)


def run(spec: str, seed: int, *, load: float) -> JobRecords:
    return gavel_run(*drawn(seed, load), spec, "step-rounds(period_s=120)")
