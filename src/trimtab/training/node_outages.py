"""Failures and drains of nodes, in the order in which they happen.

Checkpoints of running jobs: what a job on a failed node loses.

A job saves its progress each `period_s` of progress, and whenever a decision changes its GPUs or takes them:
it is stopped in order then. Saving costs nothing beyond what the restart cost charges. A job that keeps its
GPUs between two checkpoints keeps their number, so the GPU time lost is known.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from trimtab.domain.training_jobs import Floats, Ints
from trimtab.training.truths.progress import TOLERANCE_S, Running, Truth


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


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """A node goes down or comes back.

    Jobs on a node that fails lose their GPUs at once; those on a node that is drained, at the next decision.
    """

    time_s: float
    node_idx: int
    up: bool
    drains: bool = False


@dataclass(frozen=True, slots=True)
class FailingNode:
    """A node that fails again and again; times to failure and to repair are exponential."""

    node_idx: int
    mtbf_s: float
    mttr_s: float
    seed: int

    def events(self) -> Iterator[NodeEvent]:
        """Failures and repairs, for ever. The time to the next failure begins at the repair."""
        rng, now_s = np.random.default_rng(self.seed), 0.0
        while True:
            now_s += self.mtbf_s * rng.standard_exponential()
            yield NodeEvent(now_s, self.node_idx, up=False)
            now_s += self.mttr_s * rng.standard_exponential()
            yield NodeEvent(now_s, self.node_idx, up=True)


class NodeEvents:
    """The events of a run, one after the other."""

    def __init__(self, known: Sequence[NodeEvent], failing: Sequence[FailingNode]) -> None:
        sources = [iter(sorted(known, key=lambda event: event.time_s)), *(node.events() for node in failing)]
        self._events = heapq.merge(*sources, key=lambda event: event.time_s)
        self._next = next(self._events, None)

    @property
    def next_s(self) -> float:
        """Time of the next event; inf = there is none."""
        return math.inf if self._next is None else self._next.time_s

    def until(self, time_s: float) -> Iterator[NodeEvent]:
        """Events up to this time, each given once."""
        while self._next is not None and self._next.time_s <= time_s:
            event, self._next = self._next, next(self._events, None)
            yield event
