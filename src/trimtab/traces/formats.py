"""Declarations of trace formats: the meaning of their columns. `read` reads all formats the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import polars as pl

from trimtab.traces.columns import id_column, image_size, token_size
from trimtab.traces.slicing import TraceOptions

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
