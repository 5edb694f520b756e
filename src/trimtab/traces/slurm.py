"""What Slurm says of its jobs: as a trace of those that ran, or as the state of those that run and wait.

`sacct --parsable2` (or `-p`) and `squeue --format` with `|` between the fields, with their header; columns of
both are known by their names. Times are those of the cluster's clocks.

Trace: jobs that have ended; each runs as long as it ran, whatever became of it. Steps (`1001.batch`) are
parts of jobs. State: jobs that run hold their GPUs, evenly on their nodes; those that wait ask for theirs.
Their work is their time limit, or a year without one. Tasks of a waiting array (`1002_[1-4]`) are jobs of
their own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Final, Literal, NamedTuple

import polars as pl

from trimtab.errors import TraceError
from trimtab.traces.source import TraceSource, read_blocks
from trimtab.traces.text_log import TextLog, lines_of
from trimtab.traces.values import parsed_ticks, seconds
from trimtab.words import counted

NAME: Final = "slurm"
NO_GPU: Final = "that ask for no GPU"
Use = Literal["trace", "state"]

SACCT: Final = (
    "sacct --allusers --parsable2 --starttime 2026-01-01 --format "
    "JobID,User,Account,State,Submit,Start,ElapsedRaw,TimelimitRaw,NNodes,AllocTRES,ReqTRES,NodeList"
)
SQUEUE: Final = "squeue --format '%i|%u|%a|%T|%V|%S|%M|%l|%D|%b|%N|%r'"

_NAMES: Final = {  # our name → names in lower case without signs: of sacct, then of squeue
    "job_id": ("jobid",),
    "state": ("state", "st"),
    "submit": ("submit", "submittime"),
    "start": ("start", "starttime"),
    "end": ("end", "endtime"),
    "elapsed_s": ("elapsedraw",),
    "elapsed": ("elapsed", "time"),
    "limit_min": ("timelimitraw",),
    "limit": ("timelimit",),
    "allocated": ("alloctres", "tresalloc"),
    "requested": ("reqtres",),
    "per_node": ("trespernode", "gres"),
    "nodes": ("nnodes", "allocnodes", "nodes"),
    "node_list": ("nodelist",),
    "account": ("account",),
    "user": ("user",),
    "reason": ("reason",),
}
_RUNS: Final = ("RUNNING", "R", "COMPLETING", "CG", "SUSPENDED", "S", "STOPPED", "ST")
_WAITS: Final = ("PENDING", "PD", "CONFIGURING", "CF", "REQUEUED", "RQ", "RESV_DEL_HOLD", "REQUEUE_HOLD")
_MAY_NOT: Final = r"(?i)^\(?(?:Dependency|JobHeld|BeginTime|Reservation)"
_NOTHING: Final = ("", "Unknown", "None", "N/A", "(null)", "None assigned", "INVALID", "NOT_SET")
_UNLIMITED: Final = ("UNLIMITED", "Partition_Limit", "infinite")
_LONGEST_S: Final = 365 * 86_400.0  # the work of a job without a limit
_REST: Final = "_rest"  # what follows the last field of the header
_COUNT: Final = r"\[(?P<tasks>[\d,:-]+)(?:%\d+)?\]$"


class SlurmJobs(NamedTuple):
    """Jobs in canonical columns, why others were left out, and when a state is from."""

    jobs: pl.DataFrame
    left_out: dict[str, int]
    now_s: float | None


def is_slurm(source: TraceSource) -> bool:
    """Whether a file is what `sacct` or `squeue` print. Raises TraceError for output without separators."""
    if source.kind != "csv" or not source.columns:
        return False
    first = source.columns[0].split()
    if len(first) > 1 and _plain(first[0]) == "jobid":
        problem = "output of Slurm in columns, which cuts off what is too long"
        raise TraceError(problem, file=str(source.path), expected=f"that of `{SACCT}` or `{SQUEUE}`")
    found = _columns(source)
    return source.separator == "|" and {"job_id", "state"} <= found.keys()


def read_slurm(source: TraceSource, use: Use) -> SlurmJobs:
    """The jobs of a file as a trace or a state. Raises TraceError."""
    rows = _rows(source, _columns(source))
    return _trace(source, rows) if use == "trace" else _state(source, rows)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z]", "", name.lower())


def _columns(source: TraceSource) -> dict[str, str]:
    """Our name → column of the file."""
    by_plain = {_plain(name): name for name in reversed(source.columns)}
    found = {
        ours: next((by_plain[name] for name in names if name in by_plain), None)
        for ours, names in _NAMES.items()
    }
    return {ours: name for ours, name in found.items() if name is not None}


def _rows(source: TraceSource, columns: dict[str, str]) -> pl.DataFrame:
    """All jobs of the file as text, null where nothing is said; GPUs, states and times typed."""
    names = (*source.columns, _REST)

    def parse(text: str) -> pl.DataFrame:
        cells = lines_of(text).select(pl.col("line").str.splitn("|", len(names))).unnest("line")
        return cells.rename(dict(zip(cells.columns, names, strict=True)))

    log = TextLog(NAME, names, parse, "columns of Slurm")
    blocks = [block.table for block in read_blocks(replace(source, kind="log", log=log, columns=names))]
    cells = pl.concat(blocks).with_row_index("line", offset=1)
    wide = cells.filter(pl.col(_REST).is_not_null())
    if len(wide):
        place, expected = f"line {wide['line'][0]}", "no | in a field: leave JobName out of --format"
        raise TraceError(
            "more fields than in the header", file=str(source.path), field=place, expected=expected
        )
    text = [pl.col(name).str.strip_chars().alias(ours) for ours, name in columns.items()]
    known = [pl.when(~pl.col(name).is_in(_NOTHING)).then(name).alias(name) for name in columns]
    absent = [pl.lit(None, pl.String).alias(name) for name in _NAMES if name not in columns]
    rows = cells.slice(1).select("line", *text).with_columns(*known, *absent)
    jobs = rows.filter(pl.col("job_id").is_not_null() & ~pl.col("job_id").str.contains(".", literal=True))
    return jobs.with_columns(
        state=pl.col("state").str.split(" ").list.first().str.strip_chars("+"),
        gpus=pl.coalesce(_gpus(pl.col("allocated")), _gpus(pl.col("requested")), _gpus_of_nodes()),
        run_s=pl.coalesce(_number("elapsed_s"), _duration_s("elapsed")),
        limit_s=pl.coalesce(
            pl.when(pl.coalesce("limit_min", "limit").is_in(_UNLIMITED)).then(_LONGEST_S),
            _number("limit_min") * 60.0,
            _duration_s("limit"),
        ),
        tenant=pl.coalesce("account", "user"),
        **{f"{name}_ns": _ns(name) for name in ("submit", "start", "end")},
    )


def _number(name: str) -> pl.Expr:
    return pl.col(name).cast(pl.Float64, strict=False)


def _ns(name: str) -> pl.Expr:
    return pl.col(name).map_batches(lambda text: parsed_ticks(text, "datetime"), return_dtype=pl.Int64)


def _duration_s(name: str) -> pl.Expr:
    """Seconds of `days-hours:minutes:seconds`, of which the first parts may be absent."""
    parts = pl.col(name).str.extract_groups(r"^(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?$")
    fields = [parts.struct.field(str(k)).cast(pl.Float64) for k in range(1, 5)]
    days, hours = (field.fill_null(0.0) for field in fields[:2])
    return days * 86_400 + hours * 3_600 + fields[2] * 60 + fields[3]


def _gpus(tres: pl.Expr) -> pl.Expr:
    """GPUs in `cpu=8,gres/gpu=4,gres/gpu:a100=4`, of which the sum may be absent; null without TRES."""
    in_all = tres.str.extract(r"(?:^|,)gres/gpu=(\d+)").cast(pl.Int64)
    typed = tres.str.extract_all(r"gres/gpu:[^=,]+=\d+").list.eval(
        pl.element().str.extract(r"=(\d+)$").cast(pl.Int64)
    )
    return pl.when(tres.is_not_null()).then(pl.coalesce(in_all, typed.list.sum()))


def _gpus_of_nodes() -> pl.Expr:
    """GPUs by what each node gives, such as `gres/gpu:a100:4`, `gres:gpu:4` or `gpu`."""
    each = pl.col("per_node")
    said = each.str.extract(r"\bgpu(?::[A-Za-z][\w.-]*)?[:=](\d+)").cast(pl.Int64)
    alone = pl.when(each.is_not_null()).then(each.str.contains(r"\bgpu\b").cast(pl.Int64))
    return pl.coalesce(said, alone) * pl.col("nodes").cast(pl.Int64, strict=False).fill_null(1)


def _trace(source: TraceSource, rows: pl.DataFrame) -> SlurmJobs:
    run_s = pl.coalesce("run_s", (pl.col("end_ns") - pl.col("start_ns")) / 1e9)
    timed = rows.with_columns(duration_s=run_s)
    _refuse_missing(source, timed, ("submit_ns", "gpus", "duration_s"), "trace")
    why = (
        pl.when(pl.col("gpus").fill_null(0) == 0)
        .then(pl.lit(NO_GPU))
        .when(pl.col("state").is_in((*_RUNS, *_WAITS)))
        .then(pl.lit("that have not ended"))
        .when(pl.col("duration_s").fill_null(0.0) <= 0)
        .then(pl.lit("that never ran"))
    )
    kept, left_out = _without(timed, why)
    columns = ("job_id", "submit_s", "gpus", "duration_s", "tenant")
    return SlurmJobs(_counted_from_first(kept).select(columns), left_out, None)


def _state(source: TraceSource, rows: pl.DataFrame) -> SlurmJobs:
    _refuse_missing(source, rows, ("submit_ns", "gpus", "limit_s"), "state")
    runs, waits = pl.col("state").is_in(_RUNS), pl.col("state").is_in(_WAITS)
    why = (
        pl.when(~runs & ~waits)
        .then(pl.lit("that have ended"))
        .when(pl.col("gpus").fill_null(0) == 0)
        .then(pl.lit(NO_GPU))
        .when(waits & pl.col("reason").str.contains(_MAY_NOT).fill_null(value=False))
        .then(pl.lit("that may not start yet"))
    )
    kept, left_out = _without(rows, why)
    run_s = pl.when(runs).then(pl.col("run_s").fill_null(0.0)).otherwise(0.0)
    timed = _counted_from_first(kept).with_columns(run_s=run_s, duration_s="limit_s")
    held = [_held(source, row) for row in timed.iter_rows(named=True)]
    stated = timed.with_columns(
        held=pl.Series(held, dtype=pl.String),
        work_left=pl.max_horizontal(pl.col("limit_s") - pl.col("run_s"), 1.0),
        attained_gpu_s=pl.col("run_s") * pl.col("gpus"),
        job_id=pl.Series([list(_tasks(job_id)) for job_id in timed["job_id"]], dtype=pl.List(pl.String)),
    ).explode("job_id")
    now_s = [
        timed["submit_s"].max(),
        timed.filter(runs).select(pl.col("start_s") + pl.col("run_s")).max().item(),
    ]
    columns = (
        "job_id",
        "submit_s",
        "gpus",
        "duration_s",
        "tenant",
        "held",
        "work_left",
        "attained_gpu_s",
        "run_s",
    )
    return SlurmJobs(
        stated.select(columns), left_out, max((float(t) for t in now_s if t is not None), default=None)
    )


def _refuse_missing(source: TraceSource, rows: pl.DataFrame, names: tuple[str, ...], use: Use) -> None:
    """Refuse a file that does not tell what every job needs."""
    for name in names:
        if len(rows) and rows[name].is_null().all():
            raise TraceError(
                f"no value of {name.removesuffix('_ns')} of any job",
                file=str(source.path),
                value=list(source.columns),
                expected=f"the columns of `{SACCT}`" + (f" or `{SQUEUE}`" if use == "state" else ""),
            )


def _without(rows: pl.DataFrame, why: pl.Expr) -> tuple[pl.DataFrame, dict[str, int]]:
    marked = rows.with_columns(why=why)
    return marked.filter(pl.col("why").is_null()), dict(Counter(marked["why"].drop_nulls().to_list()))


def _counted_from_first(rows: pl.DataFrame) -> pl.DataFrame:
    """With times in seconds from the first submission."""
    first = rows["submit_ns"].min()
    since = {name: seconds(rows[f"{name}_ns"] - first, "datetime") for name in ("submit", "start")}
    return rows.with_columns(values.alias(f"{name}_s") for name, values in since.items())


def _held(source: TraceSource, row: dict[str, object]) -> str:
    """GPUs of each node of a job that runs, as node:count."""
    names = list(node_names(str(row["node_list"] or ""))) if row["state"] in _RUNS else []
    gpus = int(str(row["gpus"]))
    if names and gpus % len(names):
        raise TraceError(
            "GPUs that are not the same number on each node",
            file=str(source.path),
            field=f"line {row['line']}, job {row['job_id']}",
            value=f"{gpus} on {counted(len(names), 'node')}",
            expected="a multiple: Slurm does not tell which node has how many; leave such jobs out",
        )
    return ";".join(f"{name}:{gpus // len(names)}" for name in names)


def node_names(listed: str) -> Iterator[str]:
    """The nodes of a list such as `gpu[01-03,07],big1`."""
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", listed):
        found = re.fullmatch(r"([^\[]*)\[([^\]]*)\](.*)", part)
        if found is None:
            yield part
            continue
        for number in _numbers(found[2]):
            yield from node_names(f"{found[1]}{number}{found[3]}")


def _tasks(job_id: str) -> Iterator[str]:
    """The jobs of an id: one, or each task of an array that waits, as `1002_[1-4%2]`."""
    found = re.search(_COUNT, job_id)
    if found is None:
        yield job_id
        return
    for number in _numbers(found["tasks"]):
        yield f"{job_id[: found.start()]}{number}"


def _numbers(listed: str) -> Iterator[str]:
    """The numbers of `01-03,7,10-20:5`, with their leading zeros."""
    for part in listed.split(","):
        ends, _, step = part.partition(":")
        first, _, last = ends.partition("-")
        for number in range(int(first), int(last or first) + 1, int(step or 1)):
            yield f"{number:0{len(first)}d}"
