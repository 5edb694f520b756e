"""The example `train_digits.py` whose steps wait for numbers of ranks: `gated_digits.py 16:2/32:1 OPTIONS…`.

Step 16 waits until the job has two ranks, step 32 until it has one.
"""

from __future__ import annotations

import runpy
import sys
import time
from pathlib import Path

import torch

from trimtab.training import torch as helper
from trimtab.training.elastic import STOP

EXAMPLE = Path(__file__).parents[2] / "examples" / "training" / "train_digits.py"
GATES = [tuple(map(int, gate.split(":"))) for gate in sys.argv.pop(1).split("/")]


class GatedTraining(helper.ElasticTraining):
    """Training that stands still at a gate until the run stops this process."""

    def step(self, loss: torch.Tensor) -> None:
        """A step; the one in which the run is told to stop is the last of the process."""
        job = self.job
        world = max(((step, world) for step, world in GATES if job.step >= step), default=(0, job.world))[1]
        if job.world != world:
            job.report(step=job.step, samples=job.samples)
        while job.world != world and job.wish() != STOP:
            time.sleep(0.01)
        super().step(loss)


if __name__ == "__main__":
    helper.ElasticTraining = GatedTraining  # type: ignore[misc]
    runpy.run_path(str(EXAMPLE), run_name="__main__")
