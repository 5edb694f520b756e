"""Writes files of training jobs and profiles of their speeds, as their readers read them."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from trimtab.traces.job_formats import JOB_COLUMNS
from trimtab.traces.scaling_profiles import Curves


def write_jobs(path: Path, columns: Mapping[str, Any]) -> None:
    """Write jobs. The names of the columns are those of JOB_COLUMNS; infinite and nan values become empty."""
    table = pl.DataFrame(dict(columns), schema={name: JOB_COLUMNS[name] for name in columns})
    finite = [pl.col(n) for n, kind in table.schema.items() if kind == pl.Float64]
    known = (pl.when(c.is_finite()).then(c).alias(c.meta.output_name()) for c in finite)
    table.with_columns(known).write_csv(path)


def profile_name(model: str) -> str:
    """The name of a model as part of a file's name."""
    return re.sub(r"[^\w.-]", "_", model)


def write_profiles(folder: Path, curves: Curves) -> None:
    """Write a file for each model, a line for each batch: work per second with each number of GPUs."""
    folder.mkdir(parents=True, exist_ok=True)
    for model in {model for model, _ in curves}:
        own = {batch: curve for (name, batch), curve in curves.items() if name == model}
        counts = sorted({n for curve in own.values() for n in curve})
        with (folder / f"{profile_name(model)}.csv").open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            writer.writerow(["global_batch_size", *counts])
            for batch, curve in sorted(own.items()):
                writer.writerow([f"{batch:g}", *(f"{curve[n]:.9g}" if n in curve else "" for n in counts)])
