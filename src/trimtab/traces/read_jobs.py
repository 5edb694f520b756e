"""Reads files of training jobs: the format by its columns, values checked, jobs sorted by submission."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from trimtab.errors import TraceError
from trimtab.traces.gavel_jobs import is_gavel_list, read_gavel_jobs
from trimtab.traces.job_formats import (
    GAVEL_LIST,
    JOB_COLUMNS,
    JOB_FORMATS,
    NO_JOBS,
    OWN_FORMAT,
    STATE_COLUMNS,
    JobFormat,
)
from trimtab.traces.source import TraceSource, look_at, read_blocks
from trimtab.traces.values import expected_value, parsed, parsed_ticks, seconds


@dataclass(frozen=True, slots=True)
class JobTable:
    """Training jobs of a file."""

    path: Path
    format: str
    jobs: pl.DataFrame  # canonical columns that the file has, and the format's own ones as text
    was_sorted: bool
    left_out: int = 0  # jobs that ask for no GPU, in formats that list them


def holds_jobs(path: Path) -> bool:
    """Whether a file is one of training jobs, or of what was published beside them."""
    if is_gavel_list(path):
        return True
    source = look_at(path)
    return job_format_of(source) is not None or _published_beside(source) is not None


def _published_beside(source: TraceSource) -> str | None:
    return next((what for what, names in NO_JOBS.items() if set(names) <= set(source.columns)), None)


def job_format_of(source: TraceSource) -> JobFormat | None:
    """The format that knows most of the file's columns; None for a file that is of none."""
    known = [f for f in JOB_FORMATS if f.source_names <= set(source.columns)]
    return max(known, key=lambda f: len(f.source_names), default=None)


def read_jobs(path: str | Path) -> JobTable:
    """The jobs of a file. Raises TraceError that names line, column and value."""
    if is_gavel_list(path):
        return _gavel_table(Path(path))
    source = look_at(Path(path))
    form = job_format_of(source)
    if form is None and (what := _published_beside(source)) is not None:
        expected = "jobs, one a row; `trimtab forecast FILE --column NAME` reads series"
        raise TraceError(f"holds {what}, no jobs", file=str(path), expected=expected)
    if form is None:
        expected = "columns of one of: " + "; ".join(
            f"{f.name} ({', '.join(sorted(f.source_names))})" for f in JOB_FORMATS
        )
        raise TraceError("no format of training jobs", file=str(path), expected=expected)
    blocks = [block.table for block in read_blocks(source)]
    raw = pl.concat(blocks) if blocks else pl.DataFrame()
    if not len(raw):
        raise TraceError("no jobs", file=str(path), expected="at least one row")
    return _table(source, form, raw)


def jobs_of_rows(rows: Sequence[Mapping[str, Any]], name: str = "jobs") -> JobTable:
    """Jobs given as values instead of a file, with the columns of the format `trimtab-jobs`.

    A value of the state that a row lacks is 0, and it holds nothing. Raises TraceError; `name` stands for
    the file in messages.
    """
    columns = dict.fromkeys(key for row in rows for key in row)
    form = next(f for f in JOB_FORMATS if f.name == OWN_FORMAT)
    missing = [column for column in form.columns if column not in columns]
    if not rows or missing:
        expected = f"at least one job, with {', '.join(form.columns)}"
        raise TraceError("no jobs" if not rows else f"lack {missing[0]}", file=name, expected=expected)
    texts = {column: [_as_text(column, row.get(column)) for row in rows] for column in columns}
    source = TraceSource(Path(name), "jsonl", False, tuple(columns))
    return _table(source, form, pl.DataFrame(texts, schema=dict.fromkeys(columns, pl.String)))


def _as_text(column: str, value: Any) -> str | None:
    """A value as files have it; GPUs held may be a table node → count."""
    if column == "held" and isinstance(value, Mapping):
        return ";".join(f"{node}:{count}" for node, count in value.items())
    if value is None:
        return "0" if column in STATE_COLUMNS else None
    return str(value)


def _table(source: TraceSource, form: JobFormat, raw: pl.DataFrame) -> JobTable:
    jobs = _canonical(source, form, raw)
    if "job_id" not in jobs:
        jobs = jobs.with_columns(job_id=pl.int_range(len(jobs)).cast(pl.String))
    _check(source, jobs, least_gpus=0 if form.has_cpu_jobs else 1)
    on_gpus = jobs.filter(pl.col("gpus") > 0)
    was_sorted = jobs["submit_s"].is_sorted()
    in_order = on_gpus.sort("submit_s", maintain_order=True)
    return JobTable(source.path, form.name, in_order, was_sorted, len(jobs) - len(on_gpus))


def _gavel_table(path: Path) -> JobTable:
    """A list without header; a job's id is its line, from 0."""
    listed = read_gavel_jobs(path)
    columns = {
        "job_id": [str(i) for i in range(len(listed))],
        "submit_s": [job.arrival_s for job in listed],
        "gpus": [job.gpus for job in listed],
        "duration_s": [job.duration_s for job in listed],
        "model": [job.model for job in listed],
        "batch": [float(job.batch) for job in listed],
        "work": [float(job.steps) for job in listed],
    }
    own = {"mode": [job.mode for job in listed], "weight": [job.priority for job in listed]}
    if all(math.isnan(job.duration_s) for job in listed):
        del columns["duration_s"]
    jobs = pl.DataFrame(columns | own)
    _check(TraceSource(path, "jsonl", False, tuple(columns)), jobs)
    return JobTable(
        path, GAVEL_LIST, jobs.sort("submit_s", maintain_order=True), jobs["submit_s"].is_sorted()
    )


def _canonical(source: TraceSource, form: JobFormat, raw: pl.DataFrame) -> pl.DataFrame:
    own = {name: raw[name] for name in form.also}
    columns = {to: _column(source, form, to, raw[name]) for to, name in form.columns.items()}
    extra = {
        name: _column(source, form, name, raw[name])
        for name in JOB_COLUMNS
        if name in raw.columns and name not in columns
    }
    table = pl.DataFrame(own | columns | extra)
    for name, expression in form.derived.items():
        table = table.with_columns(_derived(source, form, name, table.select(expression).to_series()))
    return table


def _derived(source: TraceSource, form: JobFormat, name: str, values: pl.Series) -> pl.Series:
    """A computed column; what can't be computed is refused, with the columns that it comes from."""
    kind = JOB_COLUMNS[name]
    wrong = values.is_null() | (values != values.floor()) if kind.is_integer() else values.is_null()
    if wrong.any():
        raise TraceError(
            f"no value of {name}",
            file=str(source.path),
            field=f"{source.place(int(wrong.arg_max() or 0))}, {', '.join(form.also)}",
            expected=expected_value(kind),
        )
    return values.cast(kind).alias(name)


def _column(source: TraceSource, form: JobFormat, name: str, values: pl.Series) -> pl.Series:
    kind = JOB_COLUMNS[name]
    if name == "submit_s" and not values.str.contains(r"^\s*-?[\d.eE+-]+\s*$").all():
        ticks = parsed_ticks(values, "datetime")
        return _complete(source, name, values, seconds(ticks - ticks.min(), "datetime"))
    column = _complete(source, name, values, parsed(values, kind))
    is_time = name in {"submit_s", "duration_s", "deadline_s"}
    return column * form.unit_s if is_time else column


def _complete(source: TraceSource, name: str, values: pl.Series, column: pl.Series) -> pl.Series:
    optional = name in {"deadline_s", "tenant", "model", "held", "preemptible", "pinned"}
    wrong = column.is_null() if not optional else column.is_null() & values.is_not_null() & (values != "")
    if wrong.any():
        row = int(wrong.arg_max() or 0)
        raise TraceError(
            f"no value of {name}",
            file=str(source.path),
            field=f"{source.place(row)}, {values.name}",
            value=values[row],
            expected=expected_value(JOB_COLUMNS[name]),
        )
    return column


def _check(source: TraceSource, jobs: pl.DataFrame, least_gpus: int = 1) -> None:
    def refuse(wrong: pl.Series, problem: str, field: str, expected: str) -> None:
        if wrong.any():
            row = int(wrong.arg_max() or 0)
            place = f"{source.place(row)}, {field}"
            raise TraceError(
                problem, file=str(source.path), field=place, value=jobs[field][row], expected=expected
            )

    refuse(
        ~jobs["job_id"].is_first_distinct(), "two jobs have the same id", "job_id", "an id of its own each"
    )
    refuse(jobs["submit_s"] < 0, "submitted before the trace began", "submit_s", "0 or later")
    refuse(jobs["gpus"] < least_gpus, "asks for no GPU", "gpus", f"{least_gpus} or more")
    for field in ("duration_s", "work"):
        if field in jobs:
            refuse((jobs[field] <= 0).fill_null(value=False), "has nothing to do", field, "more than 0")
    if "gpus_min" in jobs:
        expected = "1 or more, and no more than gpus"
        refuse(
            (jobs["gpus_min"] > jobs["gpus"]) | (jobs["gpus_min"] < 1), "does not fit", "gpus_min", expected
        )
    if "gpus_max" in jobs:
        refuse(jobs["gpus_max"] < jobs["gpus"], "is less than it asks for", "gpus_max", "gpus or more")
    if "deadline_s" in jobs:
        before = (jobs["deadline_s"] < jobs["submit_s"]).fill_null(value=False)
        refuse(before, "deadline before submission", "deadline_s", "a time after the submission")
