"""Any table as a trace: a mapping from canonical columns to the columns of the file.

Where `size` is not mapped it follows from what is: the token rule with `output_tokens`, steps × images with
both of these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import polars as pl
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from trimtab.traces.columns import COLUMNS
from trimtab.traces.formats import (
    Origin,
    SourceColumn,
    TimeUnit,
    TraceFormat,
    sized_from_images,
    sized_from_tokens,
)
from trimtab.traces.slicing import TraceOptions


class MappedColumn(BaseModel):
    """A column of the file and the factor on its values."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    column: str = Field(min_length=1, description="column of the file")
    scale: float = Field(1.0, gt=0, allow_inf_nan=False, description="factor on its values")


def _named(value: object) -> object:
    return {"column": value} if isinstance(value, str) else value


class TraceMapping(BaseModel):
    """Canonical column → column of the file, by name or as `{column, scale}`; time in `time_unit`.

    Dates and times (`datetime`) are ISO 8601, UTC where no offset is given. Arrivals count from the first
    row; `origin: zero` leaves them as they are. A plain `{canonical: source}` mapping is taken as `columns`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    columns: Mapping[str, Annotated[MappedColumn, BeforeValidator(_named)]] = Field(
        description="canonical column → column of the file, by name or with a scale"
    )
    time_unit: TimeUnit = Field("s", description="unit of the arrival column; datetime = ISO 8601")
    origin: Origin = Field(
        "first", description="arrivals count from the first row; zero = they stay as they are"
    )

    @model_validator(mode="before")
    @classmethod
    def _from_plain(cls, value: Any) -> Any:
        is_plain = isinstance(value, Mapping) and "columns" not in value
        return {"columns": value} if is_plain else value

    @field_validator("columns")
    @classmethod
    def _known(cls, columns: Mapping[str, MappedColumn]) -> Mapping[str, MappedColumn]:
        unknown = sorted(columns.keys() - COLUMNS.keys())
        if unknown:
            raise ValueError(f"unknown columns {unknown}; known are {list(COLUMNS)}")
        if "arrival_s" not in columns:
            raise ValueError("arrival_s must be mapped")
        _refuse_scale(columns)
        return columns


def _refuse_scale(columns: Mapping[str, MappedColumn]) -> None:
    for name, mapped in columns.items():
        scalable = name != "arrival_s" and COLUMNS[name] == pl.Float64
        if mapped.scale != 1.0 and not scalable:
            raise ValueError(f"{name} takes no scale; time_unit scales arrival_s, counts are whole numbers")


def mapped_format(mapping: TraceMapping) -> TraceFormat:
    """The format that a mapping declares."""
    columns = tuple(
        SourceColumn(name, mapped.column, mapped.scale) for name, mapped in mapping.columns.items()
    )
    return format_of("mapping", columns, mapping.time_unit, mapping.origin)


def own_format(found: tuple[str, ...]) -> TraceFormat:
    """The format of files that trimtab writes: canonical names, arrivals already relative."""
    columns = tuple(SourceColumn(name, name) for name in COLUMNS if name in found or name == "arrival_s")
    return format_of("trimtab", columns, "s", "zero")


def format_of(
    name: str, columns: tuple[SourceColumn, ...], time_unit: TimeUnit, origin: Origin
) -> TraceFormat:
    """A format made of these columns, with its size by the rule that they allow."""
    parts, rule = _size_rule(frozenset(column.target for column in columns))
    needed = parts | {"arrival_s"}
    return TraceFormat(name, columns, needed, time_unit, origin, derived=rule)


def size_in_words(layout: TraceFormat, options: TraceOptions) -> str | None:
    """What the size of a request is made of, by the rule that its format follows; None where it has none."""
    targets = {column.target for column in layout.columns}
    if "size" in targets:
        return f"column {layout.source_of('size')}"
    if "output_tokens" in targets:
        prompt = f" + {options.prompt_token_frac:g} × prompt tokens" if "prompt_tokens" in targets else ""
        return f"output tokens{prompt}"
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
