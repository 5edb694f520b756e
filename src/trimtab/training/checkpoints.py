"""Checkpoints of running jobs: what a job on a failed node loses.

A job saves its progress each `period_s` of progress, and whenever a decision changes its GPUs or takes them:
it is stopped in order then. Saving costs nothing beyond what the restart cost charges. A job that keeps its
GPUs between two checkpoints keeps their number, so the GPU time lost is known.
"""

from __future__ import annotations

import numpy as np

from trimtab.domain.training_jobs import Floats, Ints
from trimtab.training.progress import TOLERANCE_S, Running, Truth


class Checkpoints:
    """Lets a truth advance with checkpoints on the way. `period_s` 0 = all progress is safe at once."""

    def __init__(self, truth: Truth, period_s: float, n_jobs: int) -> None:
        self._truth, self._period_s = truth, period_s
        self._unsaved_s = np.zeros(n_jobs)  # progress since the last checkpoint
        if period_s > 0:
            truth.save(np.arange(n_jobs))

    def advance(self, running: Running, seconds: Floats) -> Floats:
        """As `Truth.advance`: to the last checkpoint of each row, then on."""
        if self._period_s <= 0:
            return self._truth.advance(running, seconds)
        rows = running.job_idx
        unsaved_s = self._unsaved_s[rows] + seconds
        count = np.floor((unsaved_s + TOLERANCE_S) / self._period_s)
        self._unsaved_s[rows] = np.maximum(unsaved_s - count * self._period_s, 0.0)
        saves = count > 0
        if not saves.any():
            return self._truth.advance(running, seconds)
        first_s = np.where(saves, seconds - self._unsaved_s[rows], 0.0)
        after_s = self._truth.advance(running, first_s)
        self._truth.save(rows[saves])
        goes_on = np.flatnonzero(np.isinf(after_s))
        rest_s = (seconds - first_s)[goes_on]
        after_s[goes_on] = first_s[goes_on] + self._truth.advance(running.of(goes_on), rest_s)
        return after_s

    def save(self, job_idx: Ints) -> None:
        """These jobs are stopped in order."""
        if self._period_s > 0:
            self._truth.save(job_idx)
            self._unsaved_s[job_idx] = 0.0

    def lose(self, job_idx: Ints) -> Floats:
        """These jobs go back to their checkpoints. Returns the seconds of progress that they lose."""
        lost_s = self._unsaved_s[job_idx]
        if self._period_s > 0:
            self._truth.go_back(job_idx)
            self._unsaved_s[job_idx] = 0.0
        return lost_s
