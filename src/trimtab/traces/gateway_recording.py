"""Recordings of the gateway: JSON Lines files of one set, rotated, plain or gzip, of one worker or several.

The format is defined in `trimtab.traces.gateway_format`. Requests stand there in order of their end;
here they are sorted by arrival. Time 0 is the head of the oldest file that is left; what arrived before it
and ended after it arrives at time 0 with what remained of its service.
Size: work units as they were estimated on arrival, so that policies see again what they saw.
Of several workers the one with the lowest number tells of nodes and estimates. Each numbers sessions and
prefix blocks for itself: what they share is not known to be the same.

Besides the canonical columns the table has, for replays:
`node` (name), `outcome`, `finish_s`, `is_initial` (it had arrived before time 0), `factor` (recorded service
without round trip and transfer, over the estimate for the node that served it) and `leave_after_s` (when its
client went away, from arrival).
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, get_type_hints

import polars as pl

from trimtab.errors import TraceError
from trimtab.traces.formats import COLUMNS
from trimtab.traces.gateway_format import FILE_NAME, HEAD_START, NOTE_START, VERSION, RequestRow
from trimtab.traces.source import Progress

NAME: Final = "gateway"
SIZE_RULE: Final = "estimated work units of its class"

_GZIP_MAGIC: Final = b"\x1f\x8b"
_NOTE_LINE = re.compile(rb"^%b.*\n" % re.escape(NOTE_START), re.MULTILINE)
_LEAST_FACTOR: Final = 1e-9
_BYTES_PER_GIB: Final = float(1 << 30)
_JUST_LONGER: Final = 1.0 + 1e-6  # at equal times completion comes before cancellation

_POLARS_TYPES: Final[dict[Any, pl.DataType]] = {
    float: pl.Float64(),
    int: pl.Int64(),
    str: pl.String(),
    list[int]: pl.List(pl.Int64()),
}
_COLUMNS_READ: Final = (
    *("arrival_s", "finish_s", "started_s", "service_s", "class", "model", "adapter", "units", "tenant"),
    *("priority", "deadline_s", "images", "steps", "prompt_tokens", "output_tokens", "session"),
    *("payload_bytes", "transfer_s", "first_byte_s", "cached_tokens"),
    *("prefix_blocks", "node", "outcome", "refusal", "status"),
)
_HINTS: Final = get_type_hints(RequestRow)
_ROW: Final = {name: _POLARS_TYPES[_HINTS[name]] for name in _COLUMNS_READ}


@dataclass(frozen=True)
class Recording:
    """One recording, all its files."""

    files: tuple[Path, ...]
    notes: tuple[Mapping[str, Any], ...]  # the lines that are no requests, by time
    writers: tuple[Mapping[str, Any], ...]  # the head of each file
    with_requests: int  # processes that wrote any

    @cached_property
    def heads(self) -> tuple[Mapping[str, Any], ...]:
        """First lines of the files, by time."""
        return tuple(note for note in self.notes if note["record"] == "head")

    @property
    def head(self) -> Mapping[str, Any]:
        """The start of a process: policy, seed, options. A process that wrote requests is a dispatcher."""
        first = next(head for head in self.heads if _worker(head) == self._leader)
        if self.with_requests < 2:
            return first
        return {**first, "options": {**first["options"], "dispatchers": self.with_requests}}

    @cached_property
    def workers(self) -> tuple[int, ...]:
        """Numbers of the processes that wrote it."""
        return tuple(sorted({_worker(head) for head in self.heads}))

    @property
    def _leader(self) -> int:
        return self.workers[0]

    @property
    def start_s(self) -> float:
        """Time 0 of the table, in the recording's own time: from here on there are files of all workers."""
        first_s: dict[int, float] = {}
        for head in self.heads:
            first_s.setdefault(_worker(head), float(head["at_s"]))
        return max(first_s.values())

    @cached_property
    def nodes(self) -> tuple[Mapping[str, Any], ...]:
        """All nodes that there ever were, by position; as they were first seen."""
        seen: dict[int, Mapping[str, Any]] = {}
        for note in self.notes:
            for node in [*note.get("nodes", ()), *([note["node"]] if note["record"] == "node" else ())]:
                seen.setdefault(int(node["idx"]), node)
        return tuple(seen[idx] for idx in sorted(seen))

    @cached_property
    def classes(self) -> tuple[Mapping[str, Any], ...]:
        """Classes with their last estimates: (fixed_s + unit_s × units) seconds on each node type.

        A class that the first worker does not know is as another one estimates it.
        """
        last = {_worker(note): note["classes"] for note in self.notes if "classes" in note}
        named = {c["name"]: c for worker in sorted(last, reverse=True) for c in last[worker]}
        return tuple(named.values())

    @cached_property
    def signals(self) -> Mapping[str, Any]:
        """Inputs of policies besides requests and estimates, as last recorded; empty in older recordings."""
        found = [n for n in self.notes if n["record"] == "signals" and _worker(n) == self._leader]
        return found[-1] if found else {}

    @cached_property
    def uses(self) -> tuple[tuple[float, int, str, float], ...]:
        """Use of nodes by others: (seconds from time 0, node position, resource, fraction), by time."""
        return tuple(
            (max(0.0, float(note["at_s"]) - self.start_s), int(node), name, float(frac))
            for note in self.notes
            if note["record"] == "use" and _worker(note) == self._leader
            for node, row in note["frac"].items()
            for name, frac in row.items()
        )

    def round_trip_s(self, node_idx: int) -> float:
        """Seconds of a round trip between the gateway and a node."""
        if node_idx >= len(self.signals.get("zone", ())):
            return 0.0
        return float(self.signals["rtt_s"][0][self.signals["zones"].index(self.signals["zone"][node_idx])])

    @property
    def rows_dropped(self) -> int:
        """Requests that the recorder could not write."""
        return sum(int(note["rows"]) for note in self.notes if note["record"] == "dropped")


def is_recording(path: Path) -> bool:
    """Whether this is a file of a recording, or a folder that holds one."""
    if path.is_dir():
        return any(FILE_NAME.fullmatch(entry.name) for entry in path.iterdir())
    try:
        return _bytes(path, len(HEAD_START)).startswith(HEAD_START)
    except (OSError, EOFError):
        return False  # its reader reports that


def open_recording(path: Path) -> Recording:
    """The contents of a recording besides its requests.

    Raises:
        TraceError: none is there, several are in the folder, it is damaged or of a later version.
    """
    files = _files(path)
    by_file = [_notes(file) for file in files]
    writers = [next((note for note in notes if note["record"] == "head"), None) for notes in by_file]
    heads = [head for head in writers if head is not None]
    if not heads:
        raise TraceError("no head in the recording", file=str(path), expected="it on the first line")
    notes_of_all = [  # each line with the worker that wrote it
        {"worker": _worker(head or heads[0]), **note}
        for head, notes in zip(writers, by_file, strict=True)
        for note in notes
    ]
    leader = min(map(_worker, heads))
    notes = [note for note in notes_of_all if note["record"] != "node" or note["worker"] == leader]
    notes.sort(key=lambda note: float(note.get("at_s", 0.0)))
    busy = {_worker(head or heads[0]) for head, file in zip(writers, files, strict=True) if _has_rows(file)}
    recording = Recording(files, tuple(notes), tuple(head or heads[0] for head in writers), len(busy))
    if (version := recording.head.get("format")) != VERSION:
        raise TraceError("format of the recording", file=str(path), value=version, expected=str(VERSION))
    return recording


def read_requests(
    recording: Recording, progress: Progress | None = None
) -> tuple[pl.DataFrame, dict[str, int]]:
    """All requests that were work for the nodes, and reason → how many of the others there are.

    Raises:
        TraceError: a damaged file, or no request in it.
    """
    rows = _all_rows(recording, progress)
    marked = rows.with_columns(_left_out=_left_out())
    dropped = dict(marked["_left_out"].drop_nulls().value_counts().sort("_left_out").iter_rows())
    kept = marked.filter(pl.col("_left_out").is_null())
    if kept.is_empty():
        raise TraceError("no requests in the recording", file=str(recording.files[0]), value=dropped or None)
    return _canonical(kept, recording), dropped


def read_answers(recording: Recording) -> pl.DataFrame:
    """Finished requests whose tokens and first byte are known, by the time at which a node got them.

    node (name), type (of the node), start_s, first_token_s, finish_s, prompt_tokens, cached_tokens and
    output_tokens. The first byte stands for the first token: of streams.
    """
    named, typed = (
        {int(node["idx"]): str(node[key]) for node in recording.nodes} for key in ("name", "type")
    )
    known = pl.col("output_tokens", "prompt_tokens", "first_byte_s", "started_s", "service_s").is_not_null()
    return (
        _all_rows(recording)
        .filter(pl.col("outcome") == "done", known)
        .select(
            node=pl.col("node").replace_strict(named, return_dtype=pl.String),
            type=pl.col("node").replace_strict(typed, return_dtype=pl.String),
            start_s=pl.col("started_s"),
            first_token_s=pl.col("first_byte_s"),
            finish_s=pl.col("started_s") + pl.col("service_s"),
            prompt_tokens=pl.col("prompt_tokens"),
            cached_tokens=pl.col("cached_tokens").fill_null(0),
            output_tokens=pl.col("output_tokens"),
        )
        .sort("start_s")
    )


def _all_rows(recording: Recording, progress: Progress | None = None) -> pl.DataFrame:
    total = sum(file.stat().st_size for file in recording.files)
    done, tables = 0, []
    parts = {key: p for p, key in enumerate(sorted({_part(head) for head in recording.writers}))}
    for file, head in zip(recording.files, recording.writers, strict=True):
        tables.append(_in_one(_table(file), head, recording, parts[_part(head)], len(parts)))
        done += file.stat().st_size
        if progress is not None:
            progress(done, total)
    return pl.concat(tables)


def _worker(note: Mapping[str, Any]) -> int:
    return int(note.get("worker", 0))


def _part(head: Mapping[str, Any]) -> tuple[int, int]:
    """Whose numbers of sessions and blocks a file has: a worker's that took another's place are its own."""
    return _worker(head), int(head.get("process", 0))


def _has_rows(file: Path) -> bool:
    return any(not line.startswith(NOTE_START) for line in _whole_lines(file).splitlines())


def _in_one(
    rows: pl.DataFrame, head: Mapping[str, Any], recording: Recording, part: int, parts: int
) -> pl.DataFrame:
    """Rows of one of several parts, in the positions of the recording's nodes and with numbers of its own."""
    if parts == 1:
        return rows
    position = {node["name"]: int(node["idx"]) for node in recording.nodes}
    moved = {int(n["idx"]): position[n["name"]] for n in head["nodes"] if n["name"] in position}
    return rows.with_columns(
        node=pl.col("node").replace(moved),
        session=pl.col("session") * parts + part,
        prefix_blocks=pl.col("prefix_blocks").list.eval(pl.element() * parts + part),
    )


def _files(path: Path) -> tuple[Path, ...]:
    folder = path if path.is_dir() else path.parent
    try:
        sets = _sets(folder)
    except OSError as error:
        raise TraceError(f"cannot be read: {error.strerror or error}", file=str(path)) from error
    if not path.is_dir():
        own = FILE_NAME.fullmatch(path.name)
        return tuple(sets[own["recording"]]) if own and own["recording"] in sets else (path,)
    if len(sets) != 1:
        firsts = [str(files[0]) for files in sets.values()]
        problem = "several recordings in the folder" if sets else "no recording in the folder"
        expected = f"one of {', '.join(firsts)}" if sets else "files such as trimtab-…-w0-000001.jsonl"
        raise TraceError(problem, file=str(path), expected=expected)
    return tuple(next(iter(sets.values())))


def _sets(folder: Path) -> dict[str, list[Path]]:
    sets: dict[str, list[Path]] = {}
    for entry in sorted(folder.iterdir(), key=lambda file: file.name):
        if found := FILE_NAME.fullmatch(entry.name):
            sets.setdefault(found["recording"], []).append(entry)
    return sets


def _bytes(file: Path, most: int = -1) -> bytes:
    with file.open("rb") as raw:
        is_gzip = raw.read(2) == _GZIP_MAGIC
        raw.seek(0)
        if not is_gzip:
            return raw.read(most)
        with gzip.GzipFile(fileobj=raw) as unpacked:
            return unpacked.read(most)


def _whole_lines(file: Path) -> bytes:
    """Without a last line that a killed process left half written."""
    try:
        text = _bytes(file)
    except OSError as error:  # gzip.BadGzipFile is one
        raise TraceError(f"cannot be read: {error.strerror or error}", file=str(file)) from error
    except EOFError as error:
        raise TraceError(f"damaged gzip file ({error})", file=str(file)) from error
    return text[: text.rfind(b"\n") + 1]


def _notes(file: Path) -> list[Mapping[str, Any]]:
    notes = []
    for number, line in enumerate(_whole_lines(file).splitlines(), 1):
        if line.startswith(NOTE_START):
            try:
                notes.append(json.loads(line))
            except ValueError as error:
                raise _bad_line(file, number, line) from error
    return notes


def _table(file: Path) -> pl.DataFrame:
    text = _whole_lines(file)
    requests = _NOTE_LINE.sub(b"", text)
    if not requests:
        return pl.DataFrame(schema=_ROW)
    try:
        return pl.read_ndjson(requests, schema=_ROW)
    except pl.exceptions.PolarsError as error:
        for number, line in enumerate(text.splitlines(), 1):
            try:
                json.loads(line)
            except ValueError:
                raise _bad_line(file, number, line) from error
        raise TraceError(f"cannot be read: {str(error).splitlines()[0]}", file=str(file)) from error


def _bad_line(file: Path, number: int, line: bytes) -> TraceError:
    return TraceError(
        "no JSON object", file=str(file), field=f"line {number}", value=line[:80].decode(errors="replace")
    )


def _left_out() -> pl.Expr:
    """Why a request is no work for nodes: refused for its own sake, not because the gateway was full."""
    for_itself = (pl.col("outcome") == "refused") & (pl.col("status").fill_null(0) != 503)
    reason = pl.concat_str(pl.lit("refused: "), pl.col("refusal").fill_null("unknown"))
    return pl.when(for_itself).then(reason).when(pl.col("class").is_null()).then(pl.lit("no class"))


def _canonical(rows: pl.DataFrame, recording: Recording) -> pl.DataFrame:
    start_s = recording.start_s
    names = {int(node["idx"]): str(node["name"]) for node in recording.nodes}
    arrival_s, started_s, finish_s = (pl.col(c) - start_s for c in ("arrival_s", "started_s", "finish_s"))
    # Of what ran at time 0 already only the rest is to be served.
    rest_s = pl.col("service_s") - pl.max_horizontal(0.0, -started_s)
    timed = rows.with_columns(
        size=pl.max_horizontal(pl.col("units").fill_null(0.0), 1e-9),
        is_initial=arrival_s < 0.0,
        arrival_s=pl.max_horizontal(arrival_s, 0.0),
        finish_s=finish_s,
        recorded_s=pl.max_horizontal(rest_s, 0.0),
        session=pl.col("session").cast(pl.String),
        payload_gib=pl.col("payload_bytes") / _BYTES_PER_GIB,
        node_idx=pl.col("node"),
        node=pl.col("node").replace_strict(names, default=None, return_dtype=pl.String),
    ).sort("arrival_s", maintain_order=True)
    timed = timed.filter(pl.col("finish_s") >= 0.0)
    left_s = pl.when(pl.col("outcome") == "cancelled").then(pl.col("finish_s") - pl.col("arrival_s"))
    full = timed.with_columns(factor=_factors(timed, recording), leave_after_s=left_s)
    present = [name for name in COLUMNS if name in full.columns and full[name].null_count() < full.height]
    present += [] if "node" in present else ["node"]
    return full.select(*present, "outcome", "finish_s", "is_initial", "factor", "leave_after_s")


def _factors(rows: pl.DataFrame, recording: Recording) -> pl.Series:
    """Recorded service over the estimate on the node that served it; at least 1 of what was not finished."""
    tables = _estimates(recording.classes, recording.nodes)
    joined = rows.select("class", "node_idx", "size", "recorded_s", "transfer_s", "outcome").join(
        tables, on=["class", "node_idx"], how="left", maintain_order="left"
    )
    estimate_s = pl.col("fixed_s") + pl.col("unit_s") * pl.col("size")
    rtt_s = {int(node["idx"]): recording.round_trip_s(int(node["idx"])) for node in recording.nodes}
    away_s = pl.col("node_idx").replace_strict(rtt_s, default=0.0, return_dtype=pl.Float64)
    moved_s = away_s + pl.col("transfer_s").fill_null(0.0)  # which a replay adds again
    ratio = pl.when(estimate_s > 0.0).then((pl.col("recorded_s") - moved_s) / estimate_s).fill_null(1.0)
    is_whole = pl.col("outcome").is_in(["done", "failed"])
    at_least = pl.when(is_whole).then(_LEAST_FACTOR).otherwise(1.0)
    scaled = ratio * pl.when(is_whole).then(1.0).otherwise(_JUST_LONGER)
    return joined.select(factor=pl.max_horizontal(scaled, at_least)).to_series()


def _estimates(classes: Sequence[Mapping[str, Any]], nodes: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    rows = [
        (c["name"], int(node["idx"]), float(c["fixed_s"][kind]), float(c["unit_s"].get(kind, 0.0)))
        for c in classes
        for node in nodes
        if (kind := node["type"]) in c["fixed_s"]
    ]
    schema = {"class": pl.String, "node_idx": pl.Int64, "fixed_s": pl.Float64, "unit_s": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")
