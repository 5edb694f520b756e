"""Which format a table or log has, by the columns or lines that all its files have, and in words.

A file has a format if it has every column of it; of several the one that knows most columns. One that shares
the column of arrivals and knows more of the file, though not all of its own columns are there, makes the file
doubtful: the unit of its times would be a guess.
"""

from __future__ import annotations

from typing import Final, NoReturn

from trimtab.errors import TraceError
from trimtab.traces.formats import TraceFormat
from trimtab.traces.gateway_recording import NAME as RECORDING
from trimtab.traces.job_formats import GAVEL_LIST, JOB_FORMATS, SIMPLEST_JOBS
from trimtab.traces.mapping import own_format
from trimtab.traces.public_formats import AZURE_LLM_2023, GENTD26, MOONCAKE, QWEN_BAILIAN
from trimtab.traces.read_jobs import name_of_jobs
from trimtab.traces.request_logs import BY_COLUMNS, OF_LOGS
from trimtab.traces.slurm import NAME as SLURM
from trimtab.traces.source import OTHER_ENCODING, UNDECODED, TraceSource
from trimtab.traces.wfformat import NAME as WFFORMAT
from trimtab.traces.wfformat import RUNS

PUBLIC_FORMATS: Final = (AZURE_LLM_2023, MOONCAKE, QWEN_BAILIAN, GENTD26, *BY_COLUMNS)
FORMAT_NAMES: Final = (
    "auto",
    *(public.name for public in (*PUBLIC_FORMATS, *OF_LOGS)),
    RECORDING,
    WFFORMAT,
    RUNS,
    "trimtab",
)


def recognised(source: TraceSource) -> TraceFormat | None:
    """The format whose columns a file has; None for one of columns of its own.

    Raises:
        TraceError: its columns are those of one format and, in part, of another.
    """
    if source.log is not None:
        return next(log for log in OF_LOGS if log.name == source.log.name)
    columns = frozenset(source.columns)
    whole = [public for public in PUBLIC_FORMATS if columns.issuperset(public.source_names)]
    if not whole:
        return own_format(source.columns) if "arrival_s" in columns else None
    found = max(whole, key=lambda public: len(public.all_names & columns))
    for other in PUBLIC_FORMATS:
        is_rival = other.source_of("arrival_s") == found.source_of("arrival_s")
        if is_rival and len(other.all_names & columns) > len(found.all_names & columns):
            _refuse_doubtful(source, found, other)
    return found


def _refuse_doubtful(source: TraceSource, found: TraceFormat, other: TraceFormat) -> NoReturn:
    extra = [name for name in source.columns if name in other.all_names - found.all_names]
    units = " or ".join(f"--time-unit {each.time_unit} (as {each.name})" for each in (found, other))
    lacks = [name for name in other.source_names if name not in source.columns]
    raise TraceError(
        f"has the columns of {found.name}, and some of {other.name}, whose {', '.join(lacks)} it lacks",
        file=str(source.path),
        value=extra,
        expected=f"--format {found.name} with {units}",
    )


def known_by(source: TraceSource, layout: TraceFormat, name: str) -> str:
    """What a file was recognised by, in words; `name` is the format that was asked for."""
    if layout.name == "mapping":
        return "the columns that are mapped"
    if name != "auto":
        return "the format that was asked for"
    if source.log is not None:
        return source.log.signs
    if layout.name == "trimtab":
        return "column arrival_s"
    public = next(each for each in PUBLIC_FORMATS if each.name == layout.name)
    return f"columns {', '.join(dict.fromkeys(public.source_names))}"


def refuse_unrecognised(source: TraceSource) -> NoReturn:
    """The error for a file of no known format."""
    if any(UNDECODED in name for name in source.columns):
        raise TraceError(
            "names of columns are no UTF-8 text",
            file=str(source.path),
            value=list(source.columns),
            expected=OTHER_ENCODING,
        )
    refuse_wrapped(source)
    jobs = name_of_jobs(source)
    if jobs is not None:
        expected = "a trace of requests; `trimtab compare --trace FILE --cluster FILE` runs training jobs"
        raise TraceError(f"holds training jobs ({jobs})", file=str(source.path), expected=expected)
    raise TraceError(
        "the format is not recognised from the columns",
        file=str(source.path),
        value=list(source.columns),
        expected=f"requests: those of one of {list(FORMAT_NAMES[1:])}, or a column mapping, which "
        "`trimtab trace import FILE --out trace.parquet` proposes; training jobs: those of one of "
        f"{[SLURM, GAVEL_LIST, *(form.name for form in JOB_FORMATS)]}, of which the simplest has "
        f"{', '.join(SIMPLEST_JOBS)}",
    )


def refuse_wrapped(source: TraceSource) -> None:
    """Refuse one object around a list of rows, with the command that makes one row a line of them."""
    if source.rows_key is not None:
        raise TraceError(
            f"one JSON object, with a list of objects under {source.rows_key}",
            file=str(source.path),
            expected=f"one object a line, as `jq -c '.{source.rows_key}[]' {source.path.name}` writes it",
        )
