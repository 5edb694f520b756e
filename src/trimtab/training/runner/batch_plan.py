"""The batch of a generation: what its ranks train with, and what their samples are worth.

A job whose batch is a range has work counted in samples at its least batch. A step of s times as many makes
as much progress as gain = (noise + 1) / (noise / s + 1) steps of the least batch, noise being the variance of
the gradient at the least batch over its squared norm; so each of its samples counts gain / s.
Source: Qiao et al., Pollux, OSDI 2021, §3.1; the learning rates: Goyal et al., Accurate, Large Minibatch SGD,
2017 (linear); Krizhevsky, One weird trick, 2014 (square root); Johnson et al., AdaScale SGD, 2020 (gain).
Deviations: noise is what was last measured before the generation began, and stays so while it runs.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from trimtab.training.runner.checkpoint_files import Checkpoint

FILE: Final = "batch.json"  # in the folder of a generation's checkpoints


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """How a generation trains, from where on."""

    batch: int  # samples of a step, of all ranks together
    local_batch: int  # samples of a rank in one pass
    accumulation: int = 0  # further passes before each step
    first_samples: int = 0  # that were trained on before
    first_work: float = 0.0  # that these were worth
    worth: float = 1.0  # of a sample
    learning_rate_factor: float = 1.0

    def work(self, samples: int) -> float:
        """Work done when so many samples were trained on since the job's beginning."""
        return self.first_work + (samples - self.first_samples) * self.worth

    def samples_total(self, work_total: float) -> int:
        """Samples since the job's beginning with which its work is done."""
        return self.first_samples + math.ceil((work_total - self.first_work) / self.worth - 1e-6)

    def write(self, folder: Path) -> None:
        """Keep it with the generation's checkpoints. Raises OSError."""
        (folder / FILE).write_text(json.dumps(asdict(self)), encoding="utf-8")


def checkpoint_work(checkpoint: Checkpoint) -> float:
    """The work that a checkpoint has; its samples where they were never worth less."""
    file = checkpoint.path.parent / FILE
    if not file.exists():
        return float(checkpoint.samples)
    return BatchPlan(**json.loads(file.read_text(encoding="utf-8"))).work(checkpoint.samples)


def gain(noise: float, scale: float) -> float:
    """Progress of a step of `scale` times the least batch, in steps of the least batch."""
    return (noise + 1.0) / (noise / scale + 1.0)


def learning_rate_factor(rule: str, noise: float, scale: float) -> float:
    """By how much the learning rate is larger than at the least batch."""
    match rule:
        case "linear":
            return scale
        case "sqrt":
            return math.sqrt(scale)
        case "adascale":
            return gain(noise, scale)
    return 1.0
