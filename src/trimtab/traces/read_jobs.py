"""Reads files of training jobs: the format by its columns, values checked, jobs sorted by submission."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import polars as pl

from trimtab.domain.job_places import JobAsk
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
from trimtab.traces.slurm import NAME as SLURM
from trimtab.traces.slurm import NO_GPU, Use, is_slurm, read_slurm
from trimtab.traces.source import TraceSource, look_at, read_blocks
from trimtab.traces.values import expected_value, parsed, parsed_ticks, seconds
from trimtab.words import counted

Zero = Literal["refuse", "leave-out"]


@dataclass(frozen=True, slots=True)
class JobTable:
    """Training jobs of a file."""

    path: Path
    format: str
    jobs: pl.DataFrame  # canonical columns that the file has, and the format's own ones as text
    was_sorted: bool
    left_out: Mapping[str, int] = field(default_factory=dict)  # reason, as of "jobs that …" → jobs
    now_s: float | None = None  # time of a state that tells it


_ASKED: Final = frozenset({"partition", "labels", "cpus_per_gpu", "memory_gib_per_gpu"})
_OPTIONAL: Final = _ASKED | {"deadline_s", "tenant", "model", "held", "preemptible", "pinned"}


def asks_of(table: JobTable) -> tuple[JobAsk, ...]:
    """What each job asks of its nodes besides GPUs; empty where the file says nothing of it."""
    jobs = table.jobs
    if _ASKED.isdisjoint(jobs.columns):
        return ()

    def texts(name: str) -> list[tuple[str, ...]]:
        values = jobs[name].fill_null("") if name in jobs else [""] * len(jobs)
        return [tuple(filter(None, (part.strip() for part in text.split(";")))) for text in values]

    def numbers(name: str) -> list[float]:
        return jobs[name].fill_null(0.0).to_list() if name in jobs else [0.0] * len(jobs)

    columns = texts("partition"), texts("labels"), numbers("cpus_per_gpu"), numbers("memory_gib_per_gpu")
    return tuple(JobAsk(*values) for values in zip(*columns, strict=True))


def holds_jobs(path: Path) -> bool:
    """Whether a file is one of training jobs, or of what was published beside them."""
    if is_gavel_list(path):
        return True
    source = look_at(path)
    return name_of_jobs(source) is not None or _published_beside(source) is not None


def name_of_jobs(source: TraceSource) -> str | None:
    """The name of the format of training jobs that a table has; None for another table."""
    if is_slurm(source):
        return SLURM
    form = job_format_of(source)
    return None if form is None else form.name


def _published_beside(source: TraceSource) -> str | None:
    return next((what for what, names in NO_JOBS.items() if set(names) <= set(source.columns)), None)


def job_format_of(source: TraceSource) -> JobFormat | None:
    """The format that knows most of the file's columns; None for a file that is of none."""
    known = [f for f in JOB_FORMATS if f.source_names <= set(source.columns)]
    return max(known, key=lambda f: len(f.source_names), default=None)


def read_jobs(path: str | Path, zero: Zero = "refuse", use: Use = "trace") -> JobTable:
    """The jobs of a file. Raises TraceError that names line, column and value.

    Args:
        path: the file.
        zero: what becomes of jobs that have nothing to do.
        use: of output of Slurm, whether jobs that ended are read or those that run and wait.
    """
    if is_gavel_list(path):
        return _gavel_table(Path(path), zero)
    source = look_at(Path(path))
    if is_slurm(source):
        return _slurm_table(source, use)
    form = job_format_of(source)
    if form is None and (what := _published_beside(source)) is not None:
        expected = "jobs, one a row; `trimtab forecast FILE --column NAME` reads series"
        raise TraceError(f"holds {what}, no jobs", file=str(path), expected=expected)
    if form is None:
        known = {SLURM: "output of sacct or squeue"} | {
            f.name: ", ".join(sorted(f.source_names)) for f in JOB_FORMATS
        }
        expected = "columns of one of: " + "; ".join(f"{name} ({names})" for name, names in known.items())
        raise TraceError("no format of training jobs", file=str(path), expected=expected)
    blocks = [block.table for block in read_blocks(source)]
    raw = pl.concat(blocks) if blocks else pl.DataFrame()
    if not len(raw):
        raise TraceError("no jobs", file=str(path), expected="at least one row")
    return _table(source, form, raw, zero)


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


def _table(source: TraceSource, form: JobFormat, raw: pl.DataFrame, zero: Zero = "refuse") -> JobTable:
    jobs = _canonical(source, form, raw)
    if "job_id" not in jobs:
        jobs = jobs.with_columns(job_id=pl.int_range(len(jobs)).cast(pl.String))
    _check(source, jobs, least_gpus=0 if form.has_cpu_jobs else 1)
    kept, left_out = _with_gpus_and_work(source, jobs, zero)
    in_order = kept.sort("submit_s", maintain_order=True)
    return JobTable(source.path, form.name, in_order, jobs["submit_s"].is_sorted(), left_out)


def _with_gpus_and_work(
    source: TraceSource, jobs: pl.DataFrame, zero: Zero
) -> tuple[pl.DataFrame, dict[str, int]]:
    """Jobs that ask for GPUs and have something to do; reason → others. Raises TraceError.

    A job without GPUs may have nothing to do: it is left out either way.
    """
    amounts = [name for name in ("duration_s", "work") if name in jobs]
    has_nothing = pl.any_horizontal(
        pl.lit(value=False), *((pl.col(n) <= 0).fill_null(False) for n in amounts)
    )
    marked = jobs.with_columns(_on_cpus=pl.col("gpus") == 0, _empty=has_nothing)
    idle = marked.with_row_index("_row").filter(pl.col("_empty") & ~pl.col("_on_cpus"))
    if zero == "refuse" and len(idle):
        name = next(n for n in amounts if idle[n][0] is not None and idle[n][0] <= 0)
        raise TraceError(
            "has nothing to do" + (f", as {counted(len(idle) - 1, 'other job')}" if len(idle) > 1 else ""),
            file=str(source.path),
            field=f"{source.place(idle['_row'][0])}, {name}",
            value=idle[name][0],
            expected="more than 0; a scenario with jobs.zero: leave-out does without such jobs",
        )
    on_cpus = int(marked["_on_cpus"].sum())
    left_out = {NO_GPU: on_cpus, "that have nothing to do": len(idle)}
    kept = marked.filter(~pl.col("_on_cpus") & ~pl.col("_empty")).drop("_on_cpus", "_empty")
    if not len(kept):
        raise TraceError("no jobs with GPUs and work", file=str(source.path), expected="at least one")
    return kept, {reason: rows for reason, rows in left_out.items() if rows}


def _slurm_table(source: TraceSource, use: Use) -> JobTable:
    """Jobs of Slurm; a state has columns that a trace has not."""
    read = read_slurm(source, use)
    if not len(read.jobs):
        reasons = ", ".join(f"{rows:,} {reason}" for reason, rows in read.left_out.items())
        problem = "no jobs that ended" if use == "trace" else "no jobs that run or wait"
        raise TraceError(f"{problem} ({reasons})", file=str(source.path), expected="at least one")
    jobs = read.jobs.cast({name: JOB_COLUMNS[name] for name in read.jobs.columns})
    _check(source, jobs)
    in_order = jobs.sort("submit_s", maintain_order=True)
    return JobTable(source.path, SLURM, in_order, jobs["submit_s"].is_sorted(), read.left_out, read.now_s)


def _gavel_table(path: Path, zero: Zero) -> JobTable:
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
    source = TraceSource(path, "jsonl", False, tuple(columns))
    _check(source, jobs)
    kept, left_out = _with_gpus_and_work(source, jobs, zero)
    in_order = kept.sort("submit_s", maintain_order=True)
    return JobTable(path, GAVEL_LIST, in_order, jobs["submit_s"].is_sorted(), left_out)


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
    optional = name in _OPTIONAL
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
    for name in ("duration_s", "work"):
        if name in jobs:
            refuse((jobs[name] < 0).fill_null(value=False), "less than nothing to do", name, "0 or more")
    for name in ("cpus_per_gpu", "memory_gib_per_gpu"):
        if name in jobs:
            refuse((jobs[name] < 0).fill_null(value=False), "is less than nothing", name, "0 or more")
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
