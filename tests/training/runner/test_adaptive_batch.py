"""Jobs with a range of batches: the batch of most goodput, by the noise that they report."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from support.train_runs import decider_of, job, jobs_text, last_state, train
from trimtab.errors import UsageError
from trimtab.training.runner.adaptive_speed import AdaptiveSpeed
from trimtab.training.runner.batch_plan import BatchPlan
from trimtab.training.runner.job_list import job_list_of
from trimtab.training.runner.live_decisions import LiveDecisions, SlotTime
from trimtab.training.runner.rank_protocol import Report
from trimtab.training.runner.run_ledger import KnownRun, RunSettings
from trimtab.training.runner.run_recording import recorded, rerun_of
from trimtab.training.runner.train_jobs import decisions_of

NOISE, LEAST = 20.0, 8  # variance over squared norm of the gradient, at the least batch


def adaptive(samples: int, *words: Any, most: int = 256, **more: Any) -> dict[str, Any]:
    batch = {"min": LEAST, "max": most, "learning_rate": "sqrt"}
    return job("fit", samples, *words, batch=batch, **more)


def speed_of(*jobs: dict[str, Any]) -> AdaptiveSpeed:
    return AdaptiveSpeed(job_list_of(jobs_text(*jobs), "jobs.yaml", Path()).jobs)


def told(step_s: float, batch: int, noise: float = NOISE) -> Report:
    """The variance is that at the batch of the step."""
    return Report(1, batch, step_s, 0.0, 2.0, 2.0 * noise * LEAST / batch, -1, "")


def gain(scale: float) -> float:
    return (NOISE + 1.0) / (NOISE / scale + 1.0)


def measured_pair(policy: str, **more: Any) -> tuple[KnownRun, LiveDecisions]:
    """Jobs as fast as each other, whose gradients have much noise and none, after they ran with all slots."""
    pair = [adaptive(80_000, gpus_max=4, **more) | {"id": name} for name in ("noisy", "clear")]
    listed = job_list_of(jobs_text(*pair, clock=""), "jobs.yaml", Path())
    run = KnownRun("", RunSettings(policy, {"x": 4}, "test"), listed)
    made = decisions_of(run)
    for k, noise in enumerate((1000.0, 0.0)):
        for gpus, local in ((1, 8), (2, 8), (4, 2), (4, 8)):
            report = told(0.02 + 0.004 * local, local * gpus, noise)
            made.speed.report(k, 1, gpus, BatchPlan(local * gpus, local), report)
        made.held([SlotTime(k, np.array([4]), 1.0, 0.0)])
    return run, made


def test_the_batch_is_that_of_most_goodput() -> None:
    """A step of s times the least takes a + c s: (noise / s + 1) (a + c s) is least at √(noise a / c)."""
    a, c = 0.02, 0.004
    speed = speed_of(adaptive(8000, gpus=2))
    assert speed.plan(0, 1, 2, 0, 0.0) == BatchPlan(8, 4, 0, 0, 0.0)
    assert speed.work_per_s(0, 1, 2) == 2 * LEAST  # nothing is known: a step a second on each
    for scale in (1, 8):
        speed.report(0, 1, 2, BatchPlan(LEAST * scale, 4 * scale), told(a + c * scale, LEAST * scale))
    plan = speed.plan(0, 1, 2, 100, 50.0)
    scale = plan.batch / LEAST
    assert scale == pytest.approx(math.sqrt(NOISE * a / c), rel=0.06)  # steps between candidates
    assert plan.local_batch * 2 == plan.batch
    assert plan.worth == pytest.approx(gain(scale) / scale)
    assert plan.learning_rate_factor == pytest.approx(math.sqrt(scale))
    assert speed.work_per_s(0, 1, 2) == pytest.approx(LEAST * gain(scale) / (a + c * scale), rel=0.02)
    assert plan.work(180) == pytest.approx(50.0 + 80 * plan.worth)
    left = plan.samples_total(8000) - 100
    assert (left - 1) * plan.worth < 8000 - 50 <= left * plan.worth + 1e-6


def test_without_noise_the_batch_stays() -> None:
    speed = speed_of(adaptive(8000, gpus=2))
    for scale in (1, 8):
        speed.report(
            0, 1, 2, BatchPlan(LEAST * scale, 4 * scale), told(0.02 + 0.004 * scale, LEAST * scale, 0.0)
        )
    assert speed.plan(0, 1, 2, 0, 0.0).batch == LEAST


def test_a_rank_that_holds_less_takes_more_passes() -> None:
    batch = {"min": 64, "max": 256, "local_max": 16}
    speed = speed_of(job("fit", 8000, batch=batch, gpus=2))
    plan = speed.plan(0, 1, 2, 0, 0.0)
    assert (plan.batch, plan.local_batch, plan.accumulation) == (64, 16, 1)


@pytest.mark.parametrize("policy", ["pollux", "weighted-goodput", "sia", "fifo"])
def test_allocators_decide_by_goodput(policy: str) -> None:
    """Of two jobs that scale alike in speed, the noisy one makes more of four GPUs, and allocators run."""
    run, made = measured_pair(policy)
    rates = [[made.speed.work_per_s(k, 1, gpus) for gpus in (1, 4)] for k in (0, 1)]
    assert rates[0][1] / rates[0][0] > 2.0 > rates[1][1] / rates[1][0]
    decider_of(run, made)(made.due_s)
    counts = made.wanted.sum(axis=1)
    assert 1 <= counts.sum() <= 4


def test_jobs_of_one_model_are_recorded_with_their_own_speeds(tmp_path: Path) -> None:
    run, made = measured_pair("fifo", model="net")
    recorded(run, made, made.records(0.0), tmp_path, rerun_of(run, made), None)
    for k, name in enumerate(("noisy", "clear")):
        line = (tmp_path / "profiles" / f"{name}.csv").read_text().splitlines()[1].split(",")
        rates = [made.speed.work_per_s(k, 1, gpus) for gpus in (1, 2, 3, 4)]
        assert [float(word) for word in line] == pytest.approx([LEAST, *rates])
    assert pl.read_csv(tmp_path / "jobs.csv")["model"].to_list() == ["noisy", "clear"]


def test_a_running_job_goes_on_with_the_batch_of_the_formula(tmp_path: Path) -> None:
    """One rank takes two passes beyond the least batch, and half of a pass is taken to be fixed.

    So s times the least batch takes a step's time times 1 + s / 2, and s is √(2 noise).
    """
    run = train(
        tmp_path,
        "fifo",
        adaptive(2400, "--step-s", 0.02, "--variance", NOISE * LEAST, most=128),
        adapt_s=0.3,
        restart_s=0.05,
    )
    assert run.state == "done"
    folder = tmp_path / run.run_id / "jobs" / "fit" / "checkpoints"
    plans = [BatchPlan(**json.loads(file.read_text())) for file in sorted(folder.glob("g*/batch.json"))]
    assert plans[0].batch == LEAST
    assert plans[1].batch / LEAST == pytest.approx(math.sqrt(2 * NOISE), rel=0.07)
    assert plans[1].local_batch == -(-plans[1].batch // 2)
    work = 0.0
    for plan, after in pairwise(plans):
        scale = plan.batch / LEAST
        work += (after.first_samples - plan.first_samples) * gain(scale) / scale
        assert after.first_work == pytest.approx(work)
    samples = plans[-1].samples_total(2400)
    assert samples > 2400  # those of larger batches are worth less
    counts = last_state(tmp_path, run.run_id, "fit")["counts"]
    assert sum(counts) == samples
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize(
    ("batch", "named"),
    [
        ({"min": 8, "max": 4}, "max"),
        ({"min": 8}, "max"),
        ({"min": 8, "max": 16, "learning_rate": "cubic"}, "learning_rate"),
        (0, "batch"),
        ({"min": 1, "max": 16}, "a sample at least for each of 2 ranks"),
    ],
)
def test_a_bad_range_is_named(batch: Any, named: str) -> None:
    with pytest.raises(UsageError) as refused:
        speed_of(job("fit", 8, gpus=2, batch=batch))
    assert "jobs[0].batch" in str(refused.value)
    assert named in str(refused.value)
