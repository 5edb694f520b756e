"""Profiles of training speed: one CSV a model, a row for each global batch, a column for each number of GPUs.

The format is that of ElasticFlow's artifact: `global_batch_size,1,2,4,…` with iterations per second. An empty
value, 0 or nan means that the model does not run so.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from trimtab.domain.training_profiles import ScalingTable
from trimtab.errors import TraceError

BATCH_COLUMN: Final = "global_batch_size"
Curves = dict[tuple[str, float], dict[int, float]]


def read_scaling_profiles(path: str | Path) -> tuple[ScalingTable, tuple[str, ...]]:
    """The table of a CSV file, or of all of a folder, and the names of its models. Raises TraceError."""
    files = [Path(path)] if Path(path).is_file() else sorted(Path(path).glob("*.csv"))
    if not files:
        expected = "CSV files such as resnet50.csv with columns global_batch_size, 1, 2, 4, …"
        raise TraceError("no profiles", file=str(path), expected=expected)
    curves: Curves = {}
    for file in files:
        curves |= _curves_of(file)
    return scaling_table(curves)


def scaling_table(curves: Curves) -> tuple[ScalingTable, tuple[str, ...]]:
    """The table of curves (model, batch) → GPUs → rate, and the names of its models."""
    models = tuple(sorted({model for model, _ in curves}))
    batches = np.array(sorted({batch for _, batch in curves}))
    levels = np.array(sorted({n for curve in curves.values() for n in curve}), np.int64)
    rate = np.zeros((1, len(curves), len(levels)))
    curve_idx = np.full((len(models), len(batches)), -1, np.int64)
    for i, ((model, batch), curve) in enumerate(curves.items()):
        curve_idx[models.index(model), np.searchsorted(batches, batch)] = i
        for n, value in curve.items():
            rate[0, i, np.searchsorted(levels, n)] = value
    names = tuple(f"{model} (batch {batch:g})" for model, batch in curves)
    return ScalingTable(levels, names, rate, curve_idx, batches), models


def _curves_of(file: Path) -> Curves:
    try:
        with file.open(newline="", encoding="utf-8") as stream:
            rows = list(csv.DictReader(stream))
    except (OSError, UnicodeDecodeError, csv.Error):
        raise TraceError("can't be read", file=str(file), expected="a CSV file in UTF-8") from None
    if not rows:
        raise TraceError(
            "no rows", file=str(file), expected=f"{BATCH_COLUMN},1,2,4,… and a row for each batch"
        )
    curves: Curves = {}
    for line, row in enumerate(rows, 2):
        batch = _number(file, line, BATCH_COLUMN, row.pop(BATCH_COLUMN, None))
        if (file.stem, batch) in curves:
            field = f"line {line}, {BATCH_COLUMN}"
            raise TraceError("twice", file=str(file), field=field, value=batch, expected="each batch once")
        curves[file.stem, batch] = _curve_of(file, line, row)
    return curves


def _curve_of(file: Path, line: int, row: Mapping[str | None, Any]) -> dict[int, float]:
    """GPUs → speed, of a row without its batch."""
    curve = {}
    for name, text in row.items():
        place = f"line {line}, {name}"
        if name is None:
            expected = "as many values as columns"
            raise TraceError("too many values", file=str(file), field=f"line {line}", expected=expected)
        if not name.strip().isdigit() or int(name) < 1:
            expected = "a whole number of GPUs, 1 or more"
            raise TraceError(
                "no column of speeds", file=str(file), field=place, value=name, expected=expected
            )
        value = _number(file, line, name, text) if text not in ("", None) else 0.0
        if value < 0 or value == math.inf:
            expected = "work per second; 0, nan or nothing = it does not run so"
            raise TraceError("no speed", file=str(file), field=place, value=text, expected=expected)
        if value > 0:
            curve[int(name)] = value
    if not curve:
        expected = "a speed above 0 for at least one number of GPUs"
        raise TraceError(
            "runs with no number of GPUs", file=str(file), field=f"line {line}", expected=expected
        )
    return curve


def _number(file: Path, line: int, field: str, text: str | None) -> float:
    try:
        return float(text or "")
    except ValueError:
        raise TraceError(
            "no number", file=str(file), field=f"line {line}, {field}", value=text, expected="a number"
        ) from None
