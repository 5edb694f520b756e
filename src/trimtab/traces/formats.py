"""The request table, that is a trace's columns in memory, and how formats of files declare theirs.

`read` reads all formats the same way.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

import polars as pl

from trimtab.traces.slicing import TraceOptions

COLUMNS: Final[dict[str, pl.DataType]] = {
    "arrival_s": pl.Float64(),  # seconds from the start of the trace, never decreasing
    "size": pl.Float64(),  # work units of the format, > 0
    "class": pl.String(),  # service class
    "model": pl.String(),  # model that must be resident
    "adapter": pl.String(),  # null: none
    "tenant": pl.String(),  # owner of the request
    "priority": pl.Int64(),  # higher is more urgent
    "deadline_s": pl.Float64(),  # relative to the arrival
    "images": pl.Int64(),  # images to make
    "steps": pl.Int64(),  # denoising steps per image
    "prompt_tokens": pl.Int64(),  # length of the prompt
    "output_tokens": pl.Int64(),  # length of the answer
    "payload_gib": pl.Float64(),  # moved to the node before service
    "session": pl.String(),  # requests of a session should meet the same node
    "recorded_s": pl.Float64(),  # execution time in the recorded system
    "prefix_blocks": pl.List(pl.Int64()),  # ids of the prompt's prefix-cache blocks
    "content": pl.String(),  # equal = the same deterministic request asked again; null: never the same
    "original_id": pl.String(),  # id of the request in the file that it comes from
    "node": pl.String(),  # node that served it in the recorded system
}
"""Canonical column → type. Only `arrival_s` is always there; the order is that of written files."""

AT_LEAST: Final[dict[str, int]] = {
    "arrival_s": 0,
    "deadline_s": 0,
    "images": 1,
    "steps": 1,
    "prompt_tokens": 0,
    "output_tokens": 0,
    "payload_gib": 0,
    "recorded_s": 0,
}
"""Smallest value a numeric column may hold; `size` is apart, since it must be greater than 0."""

MOST_SIZE: Final = 1e15
"""Largest size: beyond it, times lose their milliseconds."""


def is_bad_size(size: pl.Expr) -> pl.Expr:
    """Whether a size, which is a number of work units, cannot be used."""
    return (size <= 0) | (size > MOST_SIZE)


_ALIASES: Final = {
    "arrival_s": ("arrival", "timestamp", "time"),
    "prompt_tokens": ("input_tokens",),
    "output_tokens": ("completion_tokens",),
    "recorded_s": ("latency_s", "duration_s", "latency"),
    "tenant": ("user", "team"),
    "session": ("session_id",),
    "original_id": ("id", "request_id"),
}
_CANONICAL_OF: Final = {alias: name for name, aliases in _ALIASES.items() for alias in aliases}


def canonical_name(name: str) -> str:
    """The canonical column that people call by this name; the name itself where there is none."""
    return _CANONICAL_OF.get(name, name)


_IDS: Final = tuple(
    re.compile(pattern)
    for pattern in (
        "original_id",
        r"(request|req)_?(id|uuid|guid)",
        r"(call|completion|response|message)_?(id|uuid|guid)",
        "id|uuid|guid",
        r"(trace|span|correlation)_?(id|uuid|guid)",
    )
)
"""Names of the id of a request, those that are surer to differ from row to row first."""


def plain_name(name: str) -> str:
    """A column's name in lower case without accents, words joined by `_`: `Modèle`, `requestId`."""
    letters = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", letters).lower()
    return re.sub(r"[^a-z0-9]+", "_", spaced).strip("_")


def id_column(names: Iterable[str]) -> str | None:
    """The column that by its name holds the ids of requests; None where there is none."""
    plain = {name: plain_name(name) for name in names}
    return next((n for usual in _IDS for n, short in plain.items() if usual.fullmatch(short)), None)


def token_size(prompt_token_frac: float) -> pl.Expr:
    """Size of a language-model request: output tokens + `prompt_token_frac` × prompt tokens."""
    return pl.col("output_tokens") + prompt_token_frac * pl.col("prompt_tokens").fill_null(0)


def image_size() -> pl.Expr:
    """Size of an image-generation request: denoising steps × images."""
    return (pl.col("steps") * pl.col("images")).cast(pl.Float64)


TimeUnit = Literal["s", "ms", "us", "ns", "datetime"]
Origin = Literal["first", "zero"]


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """One column of a file as one canonical column; `scale` multiplies its values (64-bit floats only)."""

    target: str
    source: str
    scale: float = 1.0


def _nothing_derived(_: TraceOptions) -> Mapping[str, pl.Expr]:
    return {}


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """The declaration of one format.

    Attributes:
        name: by which it is asked for.
        columns: the file's columns that are read.
        needed: canonical columns in which every kept row must have a value.
        time_unit: unit of the arrival column.
        origin: `first`, arrivals count from the file's first row; `zero`, they already count from the start.
        raw: further columns of the file that `derived` and `drop_reason` use, as text, by their own name.
        derived: canonical columns computed from the read ones.
        drop_reason: text naming why a row is dropped, null where it is kept.
        also: columns that are read where a file has them.
        raw_also: the same for `raw`; columns without values where a file has them not.
        size_rule: what a derived size is made of, where it is neither tokens nor images.
        time_format: how dates are written, for `strftime`; None: ISO 8601.
        time_is_end: whether the arrival column tells the end of a request, `recorded_s` after its arrival.
        is_sorted: whether rows are sorted by arrival; else they are sorted when they are read.
        missing: further texts that mean no value.
        wanted: what a file must hold so that there are requests in it, for messages.
    """

    name: str
    columns: tuple[SourceColumn, ...]
    needed: frozenset[str]
    time_unit: TimeUnit
    origin: Origin
    raw: tuple[str, ...] = ()
    derived: Callable[[TraceOptions], Mapping[str, pl.Expr]] = _nothing_derived
    drop_reason: Callable[[TraceOptions], pl.Expr] | None = None
    also: tuple[SourceColumn, ...] = ()
    size_rule: str | None = None
    time_format: str | None = None
    time_is_end: bool = False
    is_sorted: bool = True
    missing: frozenset[str] = frozenset()
    raw_also: tuple[str, ...] = ()
    wanted: str = "at least one request"

    @property
    def all_names(self) -> frozenset[str]:
        """All columns of a file that it knows."""
        return frozenset((*self.source_names, *(column.source for column in self.also), *self.raw_also))

    @property
    def source_names(self) -> tuple[str, ...]:
        """The columns of the file that must be there; they also identify the format."""
        return (*(column.source for column in self.columns), *self.raw)

    def source_of(self, target: str) -> str:
        """The file's name of a canonical column; a derived column goes by its own."""
        return next((column.source for column in self.columns if column.target == target), target)


def with_optional(layout: TraceFormat, found: Iterable[str]) -> TraceFormat:
    """With those of its optional columns that a file has, and the ids of requests by their usual names."""
    names = list(found)
    targets = {column.target for column in layout.columns}
    columns = [*layout.columns, *(c for c in layout.also if c.source in names and c.target not in targets)]
    used = {column.source for column in columns}
    own_id = id_column(name for name in names if name not in used)
    if own_id is not None and all(column.target != "original_id" for column in columns):
        columns.append(SourceColumn("original_id", own_id))
    return replace(
        layout,
        columns=tuple(columns),
        raw=(*layout.raw, *(name for name in layout.raw_also if name in names)),
        raw_also=tuple(name for name in layout.raw_also if name not in names),
    )


def sized_from_tokens(options: TraceOptions) -> Mapping[str, pl.Expr]:
    """`size` by the rule of language models."""
    return {"size": token_size(options.prompt_token_frac)}


def sized_from_images(_: TraceOptions) -> Mapping[str, pl.Expr]:
    """`size` by the rule of image generation."""
    return {"size": image_size()}
