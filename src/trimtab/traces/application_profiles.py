"""Reads profiles of applications that adapt their batch, in the format of Pollux's and Sia's simulators.

One folder per application:

    placements.csv         placement (GPUs on each node, one digit each), local_bsz, step_time, sync_time
    scalability.csv        num_nodes, num_replicas, local_bsz, step_time, sync_time
    validation-BATCH.csv   one row per epoch: progress, iteration, metric, grad_sqr, grad_var

With several types of GPU: `placements-TYPE.csv` and `scalability-TYPE.csv`.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from trimtab.domain.training_jobs import Floats
from trimtab.domain.training_profiles import ApplicationProfile, StepMeasurements
from trimtab.errors import TraceError

_TIMES: Final = ("step_time", "sync_time")
_SCALED: Final = ("num_nodes", "num_replicas", "local_bsz")
_EPOCH: Final = ("progress", "iteration", "grad_sqr", "grad_var", "metric")


@dataclass(frozen=True, slots=True)
class ApplicationLimits:
    """A simulator's settings for an application besides its measurements. 0 = as measured."""

    max_local: float = 0.0
    gpus_max: int = 0
    agent_batch: float = 0.0
    slowdown: float = 1.0  # true step times over the measured ones


POLLUX_LIMITS: Final = {
    "yolov3": ApplicationLimits(max_local=8.0),
    "ncf": ApplicationLimits(gpus_max=1, agent_batch=32768.0),
}
"""The constants of Pollux's simulator."""

SIA_LIMITS: Final = {
    "cifar10": ApplicationLimits(slowdown=1.8),
    "ncf": ApplicationLimits(gpus_max=1, agent_batch=32768.0, slowdown=1.5),
} | {name: ApplicationLimits(slowdown=1.2) for name in ("bert", "deepspeech2", "imagenet", "yolov3")}
"""The constants of Sia's simulator: there applications are slower than measured by calibrated factors."""
SIA_RESTART_S: Final = {
    "bert": 120.0,
    "cifar10": 50.0,
    "deepspeech2": 25.0,
    "imagenet": 250.0,
    "ncf": 15.0,
    "yolov3": 80.0,
}
"""The cost of a restart for each application there."""


def read_applications(
    folder: str | Path,
    type_names: tuple[str, ...] = ("",),
    limits: Mapping[str, ApplicationLimits] = POLLUX_LIMITS,
    names: Sequence[str] | None = None,
) -> tuple[ApplicationProfile, ...]:
    """The applications of a folder, by name; `names`: these only. Raises TraceError.

    `type_names`: suffixes of the files.
    """
    found = sorted(path for path in Path(folder).iterdir() if path.is_dir()) if Path(folder).is_dir() else []
    found = [path for path in found if names is None or path.name in names]
    if not found:
        raise TraceError("no profiles", file=str(folder), expected="a folder for each application")
    return tuple(_application(path, type_names, limits.get(path.name, ApplicationLimits())) for path in found)


def _application(folder: Path, type_names: tuple[str, ...], limits: ApplicationLimits) -> ApplicationProfile:
    steps = tuple(_steps(folder, f"-{name}" if name else "", limits.slowdown) for name in type_names)
    local = [np.concatenate([batch for batch, _ in step.placements.values()]) for step in steps]
    by_batch = {int(path.stem.rpartition("-")[2]): path for path in folder.glob("validation-*.csv")}
    if not by_batch:
        raise TraceError("no curves of gradient noise", file=str(folder), expected="validation-BATCH.csv")
    tables = [_table(by_batch[batch], _EPOCH) for batch in sorted(by_batch)]
    epochs = min(map(len, tables))
    curves = np.stack([table[:epochs] for table in tables])
    measured = max(int(step.scaled[:, 1].max(initial=1)) for step in steps)
    return ApplicationProfile(
        name=folder.name,
        steps=steps,
        batches=np.array(sorted(by_batch), np.float64),
        progress=curves[:, :, 0].min(axis=0),
        iterations=curves[:, :, 1],
        grad_sqr=curves[:, :, 2],
        grad_var=curves[:, :, 3],
        loss=_errors(curves[:, :, 4]),
        min_local=np.array([batches.min() for batches in local]),
        max_local=np.array([limits.max_local or batches.max() for batches in local]),
        gpus_max=limits.gpus_max or measured,
        agent_batch=limits.agent_batch,
    )


def _errors(metric: Floats) -> Floats:
    """What a metric [batches, epochs] leaves to learn. Above 1 it is in percent; if it falls, an error."""
    scaled = metric / (100.0 if metric.max() > 1.0 else 1.0)
    falls = scaled[:, -1].mean() < scaled[:, 0].mean()
    return scaled if falls else 1.0 - scaled


def _steps(folder: Path, suffix: str, slowdown: float) -> StepMeasurements:
    file = folder / f"placements{suffix}.csv"
    table = _table(file, ("placement", "local_bsz", *_TIMES))
    placements = {}
    for digits in np.unique(table[:, 0]):
        rows = table[table[:, 0] == digits]
        rows = rows[np.argsort(rows[:, 1], kind="stable")]
        placements[tuple(int(d) for d in str(int(digits)))] = (rows[:, 1], rows[:, 2:] * slowdown)
    scaled = _table(folder / f"scalability{suffix}.csv", (*_SCALED, *_TIMES))
    return StepMeasurements(placements, scaled[:, :3], scaled[:, 3:] * slowdown)


def _table(file: Path, columns: tuple[str, ...]) -> Floats:
    """The columns of a file, [rows, columns]."""
    try:
        with file.open(newline="", encoding="utf-8") as stream:
            rows = list(csv.DictReader(stream))
    except OSError:
        raise TraceError("can't be read", file=str(file), expected="a profile of this application") from None
    if not rows:
        raise TraceError("no rows", file=str(file), expected=f"columns {', '.join(columns)}")
    table = np.array([[_number(file, line, row, c) for c in columns] for line, row in enumerate(rows, 2)])
    if "step_time" in columns:
        steps = table[:, columns.index("step_time")]
        for row in np.flatnonzero(steps <= 0)[:1]:
            field, expected = f"line {row + 2}, step_time", "seconds above 0"
            raise TraceError(
                "no time", file=str(file), field=field, value=float(steps[row]), expected=expected
            )
    return table


def _number(file: Path, line: int, row: Mapping[str, Any], column: str) -> float:
    try:
        value = float(row.get(column) or "")
    except ValueError:
        value = np.nan
    if not np.isfinite(value):
        place = f"line {line}, {column}"
        raise TraceError(
            "no number", file=str(file), field=place, value=row.get(column), expected="a finite number"
        )
    return value
