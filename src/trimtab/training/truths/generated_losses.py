"""Generated losses of jobs whose learning nobody measured.

Idea: loss = (1 − floor) / (slope · epoch + 1) + floor, the form of Optimus' convergence model, with 1 % of
noise. A job's true work ends where that model calls it converged: over ten epochs the loss falls by less than
0.05. So its number of epochs follows from its slope and floor, and nothing else about the job changes.
Source: Peng et al., Optimus, EuroSys 2018, §3.1 and the parameters of its published estimator.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from trimtab.domain.training_jobs import Floats, Ints
from trimtab.training.loss_reports import LossReports
from trimtab.training.performance.optimus_convergence import LossCurve

THRESHOLD, WINDOW = 0.05, 10.0  # fall of the loss, and the epochs over which it counts
_SEED, _NOISE = 11, 0.01


class GeneratedLosses:
    """Losses of jobs with this true work, drawn anew for each job by its position."""

    def __init__(self, work: Floats) -> None:
        drawn = np.random.default_rng(_SEED).random((len(work), 2))
        self.curves = [LossCurve(1.0 / (2.0 + 48.0 * u), 1.0, 0.02 + 0.18 * v) for u, v in drawn]
        epochs = [c.steps_to_converge(THRESHOLD / (1.0 - c.floor), WINDOW) for c in self.curves]
        self._epoch_work = work / np.array(epochs)
        self._reported = np.zeros(len(work), np.int64)
        self._noise = cache(lambda job: np.random.default_rng([_SEED, job]))

    def loss(self, job: int, epoch: float) -> float:
        """Of a job after so many epochs, without noise."""
        curve = self.curves[job]
        return (1.0 - curve.floor) / (curve.slope * epoch + 1.0) + curve.floor

    def epochs_done(self, jobs: Ints, done: Floats) -> Floats:
        """Epochs of jobs after so much work."""
        return done / self._epoch_work[jobs]

    def report(self, jobs: Ints, reports: LossReports) -> None:
        """These jobs ran: they report the epochs that have ended."""
        epochs = np.floor(self.epochs_done(jobs, reports.done[jobs]) + 1e-9).astype(np.int64)
        for i in np.flatnonzero(epochs > self._reported[jobs]):
            job = int(jobs[i])
            for epoch in range(int(self._reported[job]) + 1, int(epochs[i]) + 1):
                factor = 1.0 + _NOISE * float(self._noise(job).standard_normal())
                reports.report(job, epoch * float(self._epoch_work[job]), factor * self.loss(job, epoch))
            self._reported[job] = epochs[i]
