"""Optimus' own fits against the speeds and curves that jobs really have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.training_runs import LEVELS, RATE_PER_S, jobs_of, run_of, scaling_table
from trimtab.domain.allocator import Losses
from trimtab.domain.training_jobs import JOBS
from trimtab.errors import UsageError
from trimtab.training.allocators.optimus import Observed, Optimus
from trimtab.training.performance.optimus_convergence import LossCurve
from trimtab.training.truths.generated_losses import THRESHOLD, WINDOW, GeneratedLosses
from trimtab.training.truths.table_model import TableSpeed


class Watched(Optimus):
    """Keeps its memory and what it gave."""

    memory: Any = None
    gave: Any = None

    def init(self, cluster: Any, n_jobs: int) -> Observed:
        Watched.memory, Watched.gave = super().init(cluster, n_jobs), []
        return Watched.memory  # type: ignore[no-any-return]

    def allocate(self, *asked: Any) -> Any:
        made = super().allocate(*asked)
        Watched.gave.append(made.counts[:, 0].tolist())
        return made


def test_it_explores_and_sees_the_speeds_that_jobs_have() -> None:
    work = [20_000.0, 20_000.0]
    run = run_of(
        jobs_of([0, 0], work, model_idx=[0, 1]), Watched(), nodes=(8, 8), restart="flat(seconds_s=30)"
    )
    assert run.finished.all()
    assert Watched.gave[:3] == [[1, 1], [2, 2], [4, 4]]
    for model in (0, 1):
        seen = Watched.memory.ran[model, 64.0]
        assert set(seen) >= {1, 2, 4}
        for gpus, (seconds, done) in seen.items():
            assert done / seconds == pytest.approx(np.interp(gpus, LEVELS, RATE_PER_S[model]))


def test_what_is_explored_costs_restarts() -> None:
    run = run_of(jobs_of([0], [5_000.0], model_idx=1), "optimus", nodes=(8,), restart="flat(seconds_s=30)")
    assert run.restarts[0] >= 2
    assert run.restart_s[0] >= 3 * 30.0


def test_the_fit_of_speeds_is_exact_for_its_own_formula() -> None:
    theta = 0.02, 0.3, 0.01  # seconds of 64 / w samples, of a step, and for each GPU
    memory = Observed()
    seconds = {w: theta[0] * 64 / w + theta[1] + theta[2] * w for w in (1, 2, 4)}
    memory.ran[0, 64.0] = {w: np.array([s, 1.0]) for w, s in seconds.items()}
    found = Optimus()._seconds((0, 64.0), np.array([8, 16]), memory)
    assert found == pytest.approx([theta[0] * 64 / w + theta[1] + theta[2] * w for w in (8, 16)])


@pytest.mark.parametrize("slope", [0.02, 0.1, 0.5])
def test_the_end_of_a_curve_is_found_before_it(slope: float) -> None:
    curve = LossCurve(slope, 1.0, 0.1)
    true = curve.steps_to_converge(0.05, 10)
    k = np.arange(1.0, np.floor(true / 2) + 1)
    told = Losses(k * 7.0, curve.loss(k), float(k[-1] * 7.0))
    jobs = np.zeros(1, JOBS)
    left = Optimus(threshold=0.05 / curve.loss(k).max())._work_left(jobs, [told], Observed())
    assert k[-1] + left[0] / 7.0 == pytest.approx(true, rel=0.1)


def test_without_three_epochs_twenty_are_left() -> None:
    told = [Losses(np.array([5.0, 10.0]), np.array([0.9, 0.8]), 10.0), Losses(np.zeros(0), np.zeros(0), 1.0)]
    jobs = np.zeros(2, JOBS)
    jobs["job_idx"] = 0, 1
    assert Optimus()._work_left(jobs, told, Observed()).tolist() == [100.0, 100.0]


def test_generated_losses_converge_where_the_work_ends() -> None:
    work = np.array([100.0, 1000.0, 50.0])
    made = GeneratedLosses(work)
    for job, (curve, epochs) in enumerate(
        zip(made.curves, made.epochs_done(np.arange(3), work), strict=True)
    ):
        fall = [made.loss(job, e) - made.loss(job, e + WINDOW) for e in (epochs - 0.5, epochs + 0.5)]
        assert fall[0] > THRESHOLD > fall[1]
        assert 0.02 <= curve.floor <= 0.2


def test_a_speed_without_losses_says_so() -> None:
    speed = TableSpeed(scaling_table(), np.zeros(1, np.int64))
    with pytest.raises(UsageError, match="no losses"):
        speed.losses(np.zeros(1, JOBS))
