"""Any table as a trace: which column of the file means what, how it is written, and what to do with bad rows.

Where `size` is not mapped it follows from what is: the token rule with `output_tokens`, steps × images with
both of these.
"""

from __future__ import annotations

import zoneinfo
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any, Final, Literal

import polars as pl
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from trimtab.traces.bad_rows import OnBadRow
from trimtab.traces.formats import (
    COLUMNS,
    Origin,
    SourceColumn,
    TimeUnit,
    TraceFormat,
    canonical_name,
    sized_from_images,
    sized_from_tokens,
)
from trimtab.traces.slicing import TraceOptions
from trimtab.traces.values import UTC

BLANK: Final = frozenset({"", "N/A", "n/a", "NULL", "null", "None"})
"""Texts that mean no value in every file; `na` of a mapping adds further ones."""


class MappedColumn(BaseModel):
    """A column of the file and the factor on its values."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    column: str = Field(min_length=1, description="column of the file")
    scale: float = Field(1.0, gt=0, allow_inf_nan=False, description="factor on its values")


def _named(value: object) -> object:
    return {"column": value} if isinstance(value, str) else value


class TraceMapping(BaseModel):
    """Canonical column → column of the file, by name or as `{column, scale}`, and how the file is written.

    With `arrival_s` the columns are all that is read; without it they are added to those of the format that
    is recognised. A plain `{canonical: source}` mapping is taken as `columns`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    columns: Mapping[str, Annotated[MappedColumn, BeforeValidator(_named)]] = Field(
        {}, description="canonical column → column of the file, by name or with a scale"
    )
    time_unit: TimeUnit | None = Field(
        None, description="unit of the arrival column; datetime = ISO 8601; default: the format's, else s"
    )
    time_format: str | None = Field(
        None, min_length=2, description="how dates are written, such as %d/%m/%Y %H:%M:%S; null = ISO 8601"
    )
    time_zone: str = Field(UTC, description="time zone of dates without an offset, such as Europe/Berlin")
    time_is: Literal["start", "end"] | None = Field(
        None,
        description="whether the time of a row is that of its start or of its end, recorded_s after it; "
        "default: the format's, else start",
    )
    origin: Origin | None = Field(
        None,
        description="first: arrivals count from the first row; zero: they stay as they are; "
        "default: the format's, else first",
    )
    sort: bool = Field(
        False, description="sort rows by arrival, instead of an error where they are not sorted"
    )
    na: tuple[str, ...] = Field((), description="further texts that mean no value, beside blank and N/A")
    decimal: Literal[".", ","] = Field(".", description="decimal mark of numbers")
    delimiter: str | None = Field(
        None, min_length=1, max_length=1, description="between the fields of a CSV file; null = as its header"
    )
    encoding: str = Field("utf-8", description="encoding of a text file, such as latin-1")
    where: str | None = Field(
        None, min_length=1, description="condition on rows to read, such as status == 200 and model != 'test'"
    )
    on_bad_row: OnBadRow = Field(
        "error",
        description="row with a value that is missing, unreadable or out of range: error; drop it; fill the "
        "value with `fill`, else with the median of the column",
    )
    fill: Mapping[str, float] = Field({}, description="canonical column → value to fill with")
    keep: tuple[str, ...] = Field((), description="further columns of the file to carry along, as text")

    @model_validator(mode="before")
    @classmethod
    def _from_plain(cls, value: Any) -> Any:
        is_plain = isinstance(value, Mapping) and bool(value) and not value.keys() & cls.model_fields.keys()
        return {"columns": value} if is_plain else value

    @field_validator("columns")
    @classmethod
    def _known(cls, columns: Mapping[str, MappedColumn]) -> Mapping[str, MappedColumn]:
        canonical = {canonical_name(name): mapped for name, mapped in columns.items()}
        unknown = sorted(canonical.keys() - COLUMNS.keys())
        if unknown:
            raise ValueError(f"unknown columns {unknown}; known are {list(COLUMNS)}")
        _refuse_scale(canonical)
        return canonical

    @field_validator("fill")
    @classmethod
    def _fillable(cls, fill: Mapping[str, float]) -> Mapping[str, float]:
        canonical = {canonical_name(name): value for name, value in fill.items()}
        numeric = [name for name, kind in COLUMNS.items() if kind.is_numeric() and name != "arrival_s"]
        unknown = sorted(canonical.keys() - set(numeric))
        if unknown:
            raise ValueError(f"columns of numbers: {numeric}, not {unknown}")
        return canonical

    @field_validator("time_zone")
    @classmethod
    def _known_zone(cls, zone: str) -> str:
        try:
            zoneinfo.ZoneInfo(zone)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError) as error:
            raise ValueError("a name such as UTC, Europe/Berlin or America/New_York") from error
        return zone

    @property
    def missing(self) -> frozenset[str]:
        """Texts that mean no value."""
        return BLANK | set(self.na)

    def is_whole(self) -> bool:
        """Whether its columns are all that is read."""
        return "arrival_s" in self.columns

    def kept_only(self) -> dict[str, Any]:
        """The differences from the defaults, for a file of the mapping."""
        return self.model_dump(mode="json", exclude_defaults=True)


def _refuse_scale(columns: Mapping[str, MappedColumn]) -> None:
    for name, mapped in columns.items():
        scalable = name != "arrival_s" and COLUMNS[name] == pl.Float64
        if mapped.scale != 1.0 and not scalable:
            raise ValueError(f"{name} takes no scale; time_unit scales arrival_s, counts are whole numbers")


def mapped_format(mapping: TraceMapping) -> TraceFormat:
    """The format that a whole mapping declares."""
    return _with_times(format_of("mapping", _columns(mapping), "s", "first"), mapping)


def overlaid(layout: TraceFormat, mapping: TraceMapping) -> TraceFormat:
    """A recognised format with the columns of a mapping in place of its own."""
    if not mapping.columns:
        return _with_times(layout, mapping)
    kept = tuple(column for column in layout.columns if column.target not in mapping.columns)
    columns = (*kept, *_columns(mapping))
    base = layout.derived

    def derived(options: TraceOptions) -> Mapping[str, pl.Expr]:
        return {name: made for name, made in base(options).items() if name not in mapping.columns}

    return _with_times(replace(layout, columns=columns, derived=derived), mapping)


def _columns(mapping: TraceMapping) -> tuple[SourceColumn, ...]:
    return tuple(SourceColumn(name, mapped.column, mapped.scale) for name, mapped in mapping.columns.items())


def _with_times(layout: TraceFormat, mapping: TraceMapping) -> TraceFormat:
    has_format = mapping.time_format is not None
    return replace(
        layout,
        time_unit="datetime" if has_format else mapping.time_unit or layout.time_unit,
        time_format=mapping.time_format or layout.time_format,
        time_is_end=layout.time_is_end if mapping.time_is is None else mapping.time_is == "end",
        origin=mapping.origin or layout.origin,
        is_sorted=layout.is_sorted and not mapping.sort,
    )


def own_format(found: Iterable[str]) -> TraceFormat:
    """The format of files that trimtab writes: canonical names, arrivals already relative."""
    names = set(found) | {"arrival_s"}
    columns = tuple(SourceColumn(name, name) for name in COLUMNS if name in names)
    return format_of("trimtab", columns, "s", "zero")


def format_of(
    name: str, columns: tuple[SourceColumn, ...], time_unit: TimeUnit, origin: Origin
) -> TraceFormat:
    """A format made of these columns, with its size by the rule that they allow."""
    parts, rule = _size_rule(frozenset(column.target for column in columns))
    needed = parts | {"arrival_s"}
    return TraceFormat(name, columns, needed, time_unit, origin, derived=rule)


def size_in_words(layout: TraceFormat, options: TraceOptions) -> str | None:
    """The columns that make the size of a request, by the rule of its format; None where it has none."""
    targets = {column.target for column in layout.columns}
    if "size" in targets:
        return f"column {layout.source_of('size')}"
    if "output_tokens" in targets:
        prompt = f" + {options.prompt_token_frac:g} × prompt tokens" if "prompt_tokens" in targets else ""
        return f"output tokens{prompt}"
    if layout.size_rule is not None:
        return layout.size_rule
    return "denoising steps × images" if {"steps", "images"} <= targets else None


def _size_rule(
    targets: frozenset[str],
) -> tuple[frozenset[str], Callable[[TraceOptions], Mapping[str, pl.Expr]]]:
    if "size" in targets:
        return frozenset({"size"}), lambda _: {}
    if "output_tokens" in targets:
        return frozenset({"output_tokens"}), _tokens_rule(targets)
    if {"steps", "images"} <= targets:
        return frozenset({"steps", "images"}), sized_from_images
    return frozenset(), lambda _: {}


def _tokens_rule(targets: frozenset[str]) -> Callable[[TraceOptions], Mapping[str, pl.Expr]]:
    if "prompt_tokens" in targets:
        return sized_from_tokens
    return lambda _: {"size": pl.col("output_tokens").cast(pl.Float64)}
