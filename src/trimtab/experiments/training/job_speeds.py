"""Seconds of a step of a training job over numbers of GPUs and batches, and the steps until it converges.

Of a file of profiled speeds: the ways are those that predict a curve from some of its points.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from trimtab.domain.training_jobs import Floats, Ints
from trimtab.errors import TraceError, UsageError
from trimtab.traces.scaling_profiles import BATCH_COLUMN, read_scaling_profiles
from trimtab.training.performance.estimated_table import CURVE_MODELS, curve_samples
from trimtab.training.performance.optimus_convergence import LossCurve, fit_loss
from trimtab.training.performance.profiled_runs import Samples, percentage_error
from trimtab.words import counted

FILE_WAYS: Final = {"runs": "profiled-runs", "formula": "optimus-speed", "metadata": "job-metadata"}


@dataclass(frozen=True)
class JobSpeeds:
    """Seconds of a step."""

    name: str
    way: str
    batches: tuple[int, ...]
    gpus: tuple[int, ...]
    seconds: Floats  # [batches, gpus]; nan = nothing can be told
    notes: tuple[str, ...] = ()  # what is no measurement

    def rows(self) -> list[dict[str, Any]]:
        """One for each batch and number of GPUs of which something can be told."""
        return [
            {"batch": batch, "gpus": n, "seconds": float(s), "samples_per_s": batch / float(s)}
            for batch, row in zip(self.batches, self.seconds, strict=True)
            for n, s in zip(self.gpus, row, strict=True)
            if np.isfinite(s)
        ]

    def csv_text(self) -> str:
        """The file MODEL.csv that `--profiles` and `rules.estimate_profiles` read: steps a second."""
        lines = [",".join([BATCH_COLUMN, *map(str, self.gpus)])]
        for batch, row in zip(self.batches, self.seconds, strict=True):
            lines.append(",".join([str(batch), *(f"{1 / s:.6g}" if np.isfinite(s) else "" for s in row)]))
        return "\n".join(lines) + "\n"


def speeds_of_file(path: Path, way: str, gpus: Sequence[int], batches: Sequence[int]) -> JobSpeeds:
    """Of a file MODEL.csv of speeds by batch and number of GPUs, some of which are empty. Raises UsageError.

    The other files of its folder tell `metadata` of other models. No batches: those of the file.
    """
    if way not in FILE_WAYS:
        raise UsageError(
            "no way of a file", field="way", value=way, expected=f"one of {', '.join(FILE_WAYS)}"
        )
    if path.is_dir():
        raise TraceError("a folder", file=str(path), expected="a file MODEL.csv of it")
    table, models = read_scaling_profiles(path.parent if way == "metadata" and path.is_file() else path)
    own = models.index(path.stem)
    batches = batches or [int(b) for b in table.batches[table.curve_idx[own] >= 0]]
    known = curve_samples(table, table.rate_per_s[0])
    curve = table.curves_of(np.full(len(batches), own), np.asarray(batches, np.float64))
    asked = {
        "curve": np.repeat(curve, len(gpus)),
        "model": np.full(len(batches) * len(gpus), str(own)),
        "batch": np.repeat(np.asarray(batches, np.float64), len(gpus)),
        "gpus": np.tile(gpus, len(batches)),
    }
    rows = Samples(asked, np.full(len(asked["gpus"]), np.nan))
    seconds = CURVE_MODELS[FILE_WAYS[way]].fit(known).seconds(rows).reshape(len(batches), len(gpus))
    seconds = np.where(seconds > 0, seconds, np.nan)
    if np.isnan(seconds).all():
        measured = ", ".join(f"{b:g}" for b in table.batches[table.curve_idx[own] >= 0])
        expected = f"of {measured}, which were measured, or --way metadata"
        raise UsageError("nothing is known of these batches", field="batch", value=batches, expected=expected)
    notes = tuple(
        _extrapolated(batch, table.levels[table.rate_per_s[0, at] > 0], gpus)
        for batch, at in zip(batches, curve, strict=True)
        if at >= 0
    )
    return JobSpeeds(path.stem, way, tuple(batches), tuple(gpus), seconds, tuple(filter(None, notes)))


def _extrapolated(batch: int, measured: Ints, gpus: Sequence[int]) -> str:
    """A note of the numbers of GPUs beyond those that were measured; empty without any."""
    least, most = int(measured[0]), int(measured[-1])
    beyond = ", ".join(str(n) for n in gpus if not least <= n <= most)
    on = counted(least, "GPU") if least == most else f"{least} to {counted(most, 'GPU')}"
    return f"batch {batch}: measured on {on}; {beyond} extrapolated" if beyond else ""


@dataclass(frozen=True)
class Convergence:
    """A loss over steps."""

    curve: LossCurve
    steps: float  # until it has converged; inf = it does not fall
    second_half_error: float  # of a fit of the first half, as a fraction


def convergence_of(path: Path, fall: float) -> Convergence:
    """Of a CSV file with `step,loss`.

    It has converged when the loss falls by less than `fall` over a tenth of the recorded steps.
    Raises TraceError and UsageError.
    """
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            rows = [(float(row["step"]), float(row["loss"])) for row in csv.DictReader(stream)]
    except (OSError, KeyError, ValueError, TypeError, csv.Error) as why:
        problem = f"can't be read: {why.strerror}" if isinstance(why, OSError) else "no losses"
        expected = "a CSV file with the columns step and loss, numbers"
        raise TraceError(problem, file=str(path), expected=expected) from None
    if len(rows) < 6:
        raise TraceError("too few losses", file=str(path), value=len(rows), expected="6 rows or more")
    steps, losses = (np.array(column) for column in zip(*rows, strict=True))
    if not (np.isfinite(steps).all() and (np.diff(steps) > 0).all()):
        raise TraceError("steps that do not grow", file=str(path), expected="each step above the one before")
    if not (np.isfinite(losses).all() and (losses > 0).all()):
        raise TraceError("no losses", file=str(path), value=float(losses.min()), expected="numbers above 0")
    half = len(rows) // 2
    early, curve = fit_loss(steps[:half], losses[:half]), fit_loss(steps, losses)
    error = percentage_error(early.loss(steps[half:]), losses[half:])
    after = curve.steps_to_converge(fall, float(np.ptp(steps)) / 10) if curve.slope > 0 else math.inf
    return Convergence(curve, after, error)
