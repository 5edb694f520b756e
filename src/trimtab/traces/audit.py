"""What a recording, a log or a trace reveals: names, text, identities, exact times, requests that are alone.

It reads the file itself, every column and key, also those that no format uses. Patterns find what a reader
recognises at once: e-mail and IP addresses, keys, folders of users, text. Names of columns tell identities
and times; so a column with another name is taken for what its values look like. It proves nothing: a file
without findings may still reveal something to who knows more.

k-anonymity: P. Samarati and L. Sweeney, "Protecting privacy when disclosing information", SRI 1998. A request
is alone if no other has the same values in the columns that its sender knows: sizes, model, class.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

import polars as pl

from trimtab.errors import TraceError
from trimtab.traces.gateway_recording import is_recording, open_recording
from trimtab.traces.source import Progress, look_at, read_blocks

Verdict = Literal["clear", "linkable", "exact", "fine"]
"""clear: names, addresses, keys or text. linkable: rows of one origin are told by a number or pseudonym.
exact: times finer than a second, or a date. fine: none of these."""

FEW: Final = 5  # rows; smaller groups are counted as small
_PATTERNS: Final = {  # what a value holds → how it is found
    "e-mail addresses": r"[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}",
    "keys or passwords": r"\b(?:sk|tt|ghp|gho|glpat|xox[bp])[-_][A-Za-z0-9_-]{8,}|\bAKIA[0-9A-Z]{16}\b"
    r"|\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}|-----BEGIN|(?i:bearer\s+[a-z0-9._~+/-]{8,})"
    r"|\b[a-z][a-z0-9+.-]*://[^/\s:@]+:[^/\s@]+@",
    "IP addresses": r"\b(?:(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)\.){3}(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)\b"
    r"|\b(?:[0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}\b|\b(?:[0-9a-fA-F]{1,4}:){2,6}:[0-9a-fA-F]{1,4}\b",
    "folders of users": r"/home/\w|/Users/\w|\\Users\\\w",
}
_ISO: Final = r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?"
_WORDS: Final = r"[^\W\d]{2,}\s+[^\W\d]{2,}\s+[^\W\d]+"  # three words, which no name of a model has
_IDENTITY: Final = re.compile(
    r"(^|_)(tenant|user|uid|client|customer|account|owner|session|conversation|person|employee|patient|student"
    r"|team|group|vc|org|project|submitter|host|ip|addr|address|id|hash_ids|prefix_blocks)s?($|_)"
)
_TIME: Final = re.compile(
    r"(^|_)(arrival|arrived|arrive|time|timestamp|ts|date|start|started|finish|finished|submit|submitted|end"
    r"|ended|created?|begun|first_byte|at|utc)(_s|_ms|_us|_ns|_at|_utc|_time)*$"
)
_DURATION: Final = re.compile(
    r"(^|_)(wait|service|duration|latency|estimate|transfer|runtime|ttft|tpot|e2e|deadline|factor)($|_)"
)
_OUTCOME: Final = re.compile(r"(^|_)(node|candidates|retries|outcome|refusal|status|state|reason)($|_)")
_PSEUDONYM: Final = r"^(?:\d+|[0-9a-fA-F]{6,}|[0-9a-fA-F-]{36})$"
_ROUNDED: Final = ("coarse", "unlinked")  # profiles of recordings


@dataclass(frozen=True, slots=True)
class ColumnFinding:
    """A column or key of the file; `remedy`: what removes it, "" where nothing has to be."""

    column: str
    values: int  # different ones
    finding: str
    verdict: Verdict
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Alone:
    """Requests by what their senders know of them."""

    columns: tuple[str, ...]
    requests: int
    alone_frac: float  # no other has the same values
    few_frac: float  # fewer than FEW have them
    smallest: int  # k of k-anonymity
    rounded_alone_frac: float  # with sizes of two digits, as the profile coarse has


@dataclass(frozen=True, slots=True)
class Audit:
    """What a file reveals."""

    file: str
    rows: int
    redact: str  # the profile that a recording says it has; "" for other files
    columns: tuple[ColumnFinding, ...]
    alone: Alone | None  # None: nothing that senders know is in rows

    @property
    def is_clear(self) -> bool:
        """Whether names, addresses, keys or text can be read."""
        return any(found.verdict == "clear" for found in self.columns)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"is_clear": self.is_clear}


def audit(path: Path, progress: Progress | None = None) -> Audit:
    """Read a file, or the folder of a recording, and list what it reveals.

    Raises:
        TraceError: it cannot be read, or holds nothing.
    """
    redact = ""
    if is_recording(path):
        recording = open_recording(path)
        redact = str(recording.head.get("redact", "pseudonyms"))
        rows, others = _of_json(recording.files, progress)
    elif path.is_dir():
        expected = "a file, or the folder of one recording"
        raise TraceError("a folder without a recording", file=str(path), expected=expected)
    elif _is_json(path):
        rows, others = _of_json((path,), progress)
    else:
        source = look_at(path)
        blocks = [block.table for block in read_blocks(source, progress, lambda *_: None)]
        rows, others = _as_text(pl.concat(blocks)), {}
        if source.log is not None:  # also what its format does not read
            others = {"lines": pl.Series(_lines(path))}
    if rows.is_empty() and not others:
        raise TraceError("the file is empty", file=str(path), expected="at least one value")
    columns = {**{name: rows[name] for name in rows.columns}, **others}
    found = tuple(_finding(name, values, redact) for name, values in columns.items())
    return Audit(str(path), rows.height, redact, found, _alone(rows))


# --- reading


def _opened(path: Path) -> Any:
    with path.open("rb") as raw:
        is_gzip = raw.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rb") if is_gzip else path.open("rb")


def _lines(path: Path) -> list[str]:
    try:
        with _opened(path) as stream:
            return [line.decode("utf-8", errors="replace").strip() for line in stream]
    except (OSError, EOFError) as error:
        raise TraceError(f"cannot be read: {error}", file=str(path)) from error


def _is_json(path: Path) -> bool:
    try:
        with _opened(path) as stream:
            return stream.read(1024).lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[")
    except (OSError, EOFError) as error:
        raise TraceError(f"cannot be read: {error}", file=str(path)) from error


def _of_json(files: tuple[Path, ...], progress: Progress | None) -> tuple[pl.DataFrame, dict[str, pl.Series]]:
    """Values of objects that are requests, one row each; and all others by their paths."""
    rows: list[dict[str, str]] = []
    others: defaultdict[str, list[str]] = defaultdict(list)
    for k, path in enumerate(files):
        for entry in _objects(path):
            kind = entry.get("record") if isinstance(entry, Mapping) else None
            row: dict[str, str] = {}
            for name, value in _leaves(entry, str(kind) if kind is not None else ""):
                if kind is None and "[]" not in name:
                    row[name] = value
                else:
                    others[name].append(value)
            if row:
                rows.append(row)
        if progress is not None:
            progress(k + 1, len(files))
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = pl.DataFrame(rows, schema=dict.fromkeys(names, pl.String), infer_schema_length=None)
    return table, {name: pl.Series(values, dtype=pl.String) for name, values in others.items()}


def _objects(path: Path) -> Iterator[Any]:
    lines = [line for line in _lines(path) if line]
    try:
        yield from map(json.loads, lines)
    except ValueError:  # one object on several lines, or a last line that was cut off
        try:
            yield json.loads("\n".join(lines))
        except ValueError:
            yield {"lines": lines}


def _leaves(value: Any, name: str) -> Iterator[tuple[str, str]]:
    """Paths and texts of all values in parsed JSON; [] stands for the entries of a list."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner, f"{name}[]")
    elif value is not None:
        yield name, value if isinstance(value, str) else json.dumps(value)


def _as_text(table: pl.DataFrame) -> pl.DataFrame:
    nested = [name for name, kind in table.schema.items() if kind.is_nested()]
    said = [pl.col(name).map_elements(repr, return_dtype=pl.String) for name in nested]
    return table.with_columns(*said, pl.all().exclude(nested).cast(pl.String))


# --- judging


def _finding(name: str, column: pl.Series, redact: str) -> ColumnFinding:
    values = column.drop_nulls()
    n_values = values.n_unique()
    for what, pattern in _PATTERNS.items():
        if count := int(values.str.contains(pattern).sum()):
            return ColumnFinding(
                name, n_values, f"{what} in {count} of {len(values)} values", "clear", _remedy(redact)
            )
    known_as = _snake(name)
    if _is_time(known_as, values):
        return _time_finding(name, values, redact)
    if count := int(values.str.contains(_WORDS).sum()):
        finding = f"text in {count} of {len(values)} values"
        return ColumnFinding(name, n_values, finding, "clear", _remedy(redact))
    if _IDENTITY.search(known_as):
        return _identity_finding(name, values, redact)
    return ColumnFinding(name, n_values, "values of few kinds" if n_values <= 50 else "values", "fine")


def _snake(name: str) -> str:
    """The last key of a path in small letters, words apart."""
    last = name.replace("[]", "").rsplit(".", 1)[-1]
    return re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", last).lower())


def _is_time(name: str, values: pl.Series) -> bool:
    if _DURATION.search(name) or not len(values):
        return False
    is_iso = bool(values.str.contains(_ISO).all())
    is_number = values.cast(pl.Float64, strict=False).null_count() == 0
    return is_iso or (is_number and _TIME.search(name) is not None)


def _time_finding(name: str, values: pl.Series, redact: str) -> ColumnFinding:
    n_values, remedy = values.n_unique(), "" if redact in _ROUNDED else _rounding(redact)
    if bool(values.str.contains(_ISO).all()):
        if bool(values.str.contains(r":00:00(?:\.0+)?Z?$").all()):
            return ColumnFinding(name, n_values, "dates and hours", "fine")
        finding = "dates with times"
        return ColumnFinding(name, n_values, finding, "exact", remedy or _rounding(""))
    numbers = values.cast(pl.Float64)
    most = float(numbers.abs().max() or 0.0)  # type: ignore[arg-type]
    unit_s = next((unit for least, unit in ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3)) if most >= least), 1.0)
    is_date = most * unit_s >= 5e8
    is_whole = bool((numbers * unit_s == (numbers * unit_s).floor()).all())
    if redact in _ROUNDED and not is_date:
        return ColumnFinding(name, n_values, "times rounded by the recorder", "fine")
    if is_date or not is_whole:
        finding = f"{'dates and ' if is_date else ''}times {'in seconds' if is_whole else 'below a second'}"
        return ColumnFinding(name, n_values, finding, "exact", remedy)
    return ColumnFinding(name, n_values, "times in whole units", "fine")


def _identity_finding(name: str, values: pl.Series, redact: str) -> ColumnFinding:
    n_values = values.n_unique()
    if not n_values:
        return ColumnFinding(name, 0, "no value", "fine")
    sizes = values.value_counts()["count"].to_numpy()
    small = int((sizes < FEW).sum())
    origins = f"{n_values} origins, the smallest with {sizes.min()} of {len(values)} values"
    if small:
        origins += f", {small} with fewer than {FEW}"
    is_of_rows = n_values == len(values) > 1
    if is_of_rows:
        origins = "another one in every row: it joins with other logs"
    stems = values.str.replace_all(r"\d+", "").n_unique()
    is_number = bool(values.str.contains(_PSEUDONYM).all()) or (stems == 1 < n_values)
    is_named = not is_number and not (is_of_rows and _snake(name).endswith("id"))
    verdict: Verdict = "clear" if is_named else "linkable"
    what = "names" if is_named else "pseudonyms"
    remedy = _remedy(redact) if is_named else _unlinking(redact)
    return ColumnFinding(name, n_values, f"{what}: {origins}", verdict, remedy)


def _remedy(redact: str) -> str:
    return "record: {redact: pseudonyms}" if redact else "trace convert, without the column"


def _rounding(redact: str) -> str:
    return "record: {redact: coarse}" if redact else "rounding to seconds from the first row"


def _unlinking(redact: str) -> str:
    return "record: {redact: unlinked}" if redact else "leaving the column out"


def _alone(rows: pl.DataFrame) -> Alone | None:
    """How many requests no other is like, by what their senders know: no times, identities and outcomes."""
    known = []
    for name in rows.columns:
        known_as, values = _snake(name), rows[name].drop_nulls()
        told_later = _DURATION.search(known_as) or _OUTCOME.search(known_as) or _IDENTITY.search(known_as)
        if not told_later and not _is_time(known_as, values) and values.n_unique() > 1:
            known.append(name)
    if not known or rows.height < 2:
        return None
    exact = _groups(rows.select(known))
    numbers = [pl.col(name).cast(pl.Float64, strict=False).round_sig_figs(2) for name in known]
    rounded = rows.select(
        pl.coalesce(number.cast(pl.String), pl.col(name)) for name, number in zip(known, numbers, strict=True)
    )
    return Alone(
        columns=tuple(known),
        requests=rows.height,
        alone_frac=_share(exact, 1, rows.height),
        few_frac=_share(exact, FEW - 1, rows.height),
        smallest=int(exact.min()),  # type: ignore[arg-type]
        rounded_alone_frac=_share(_groups(rounded), 1, rows.height),
    )


def _groups(table: pl.DataFrame) -> pl.Series:
    """How many rows each combination of values has."""
    return table.group_by(pl.all()).len()["len"]


def _share(sizes: pl.Series, most: int, rows: int) -> float:
    """The share of rows in groups of at most `most`."""
    return float(sizes.filter(sizes <= most).sum()) / rows
