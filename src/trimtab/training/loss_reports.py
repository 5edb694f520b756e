"""The losses that jobs have reported, for allocators that read them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from trimtab.domain.allocator import Losses
from trimtab.domain.training_jobs import Floats, Records

_LEAST = 1e-6  # a loss is above 0


@dataclass
class LossReports:
    """Of all jobs of a run."""

    done: Floats  # [jobs] work done, kept up to date by the truth
    is_read: bool = False  # whether an allocator asked; before that nobody needs to report
    _points: dict[int, tuple[list[float], list[float]]] = field(default_factory=dict)

    def report(self, job: int, work: float, loss: float) -> None:
        """A job ends an epoch, so much work done. After a failure it reports no epoch twice."""
        works, losses = self._points.setdefault(job, ([], []))
        if not works or work > works[-1]:
            works.append(work)
            losses.append(max(loss, _LEAST))

    def of(self, jobs: Records) -> list[Losses]:
        """Of these jobs."""
        self.is_read = True
        index = jobs["job_idx"].tolist()
        points = (self._points.get(j, ([], [])) for j in index)
        return [
            Losses(np.array(works), np.array(losses), float(self.done[j]))
            for j, (works, losses) in zip(index, points, strict=True)
        ]
