"""Options that say how the rows of one's own file are read: columns, times, blanks, conditions, bad rows."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

if TYPE_CHECKING:
    from trimtab.traces import TraceMapping

PANEL: Final = "Columns and rows of your own file"
_OPTION_OF: Final = {
    "mapping": "--mapping",
    "columns": "--map",
    "time_format": "--time-format",
    "time_zone": "--time-zone",
    "time_unit": "--time-unit",
    "time_is": "--time-is",
    "na": "--na",
    "delimiter": "--delimiter",
    "decimal": "--decimal",
    "encoding": "--encoding",
    "where": "--where",
    "on_bad_row": "--on-bad-row",
    "fill": "--fill",
    "sort_rows": "--sort-rows",
    "keep": "--keep",
}


class OnBadRow(StrEnum):
    """The treatment of a row with a value that cannot be used."""

    ERROR = "error"
    DROP = "drop"
    FILL = "fill"


class TimeIs(StrEnum):
    """Which moment of a request its row tells."""

    START = "start"
    END = "end"


class TimeUnit(StrEnum):
    """The unit of numeric arrivals."""

    S = "s"
    MS = "ms"
    US = "us"
    NS = "ns"
    DATETIME = "datetime"


def _option(name: str, text: str, metavar: str | None = None) -> Any:
    return typer.Option(name, help=text, metavar=metavar, rich_help_panel=PANEL, show_default=False)


@dataclass(frozen=True, slots=True)
class TableOptions:
    """How a file of one's own is read; None or empty = not given."""

    mapping: Annotated[
        Path | None, _option("--mapping", "Read as this mapping says, as `trace import` writes one.", "FILE")
    ] = None
    columns: Annotated[
        list[str] | None,
        _option("--map", "Read a canonical column from this one; may be repeated.", "NAME=COLUMN[*FACTOR]"),
    ] = None
    time_format: Annotated[
        str | None, _option("--time-format", "How dates are written: '%d/%m/%Y %H:%M:%S'.", "FORMAT")
    ] = None
    time_zone: Annotated[
        str | None, _option("--time-zone", "Zone of dates without an offset: Europe/Berlin.", "ZONE")
    ] = None
    time_unit: Annotated[TimeUnit | None, _option("--time-unit", "Unit of arrivals that are numbers.")] = None
    time_is: Annotated[
        TimeIs | None, _option("--time-is", "Whether rows tell the start of a request or its end.")
    ] = None
    na: Annotated[
        list[str] | None, _option("--na", "Also take this text as no value; may be repeated.", "TEXT")
    ] = None
    delimiter: Annotated[
        str | None, _option("--delimiter", "Between the fields of a CSV file; 'tab' for tabs.", "CHARACTER")
    ] = None
    decimal: Annotated[str | None, _option("--decimal", "Decimal mark of numbers: . or ,", "MARK")] = None
    encoding: Annotated[
        str | None, _option("--encoding", "Encoding of the file: latin-1, cp1252, utf-16.", "NAME")
    ] = None
    where: Annotated[
        str | None, _option("--where", "Read only rows for which this holds: 'status == 200'.", "CONDITION")
    ] = None
    on_bad_row: Annotated[
        OnBadRow | None,
        _option("--on-bad-row", "Row with a value that cannot be used: error, drop it, or fill the value."),
    ] = None
    fill: Annotated[
        list[str] | None,
        _option("--fill", "Fill this column with this value, not its median; may be repeated.", "NAME=VALUE"),
    ] = None
    sort_rows: Annotated[
        bool | None,
        typer.Option(
            "--sort-rows",
            help="Sort rows by arrival.",
            rich_help_panel=PANEL,
            show_default=False,
        ),
    ] = None
    keep: Annotated[
        list[str] | None,
        _option("--keep", "Carry this column of the file along to the records; may be repeated.", "COLUMN"),
    ] = None

    def given(self) -> dict[str, str]:
        """Option → field of those that were given."""
        return {_OPTION_OF[name]: name for name in _OPTION_OF if getattr(self, name) not in (None, [], ())}

    def over(self, recorded: TraceMapping | None) -> TraceMapping:
        """A mapping, or that of `--mapping`, overridden by the command line. Raises UsageError."""
        from trimtab.errors import TraceError
        from trimtab.traces.read import validated

        base = dict(recorded or {}) if self.mapping is None else dict(_from_file(self.mapping))
        changed: dict[str, Any] = {
            "sort" if name == "sort_rows" else name: getattr(self, name)
            for name in self.given().values()
            if name not in ("mapping", "columns", "fill", "delimiter")
        }
        if self.columns:
            changed["columns"] = {**base.get("columns", {}), **dict(map(_mapped, self.columns))}
        if self.fill:
            changed["fill"] = {**base.get("fill", {}), **dict(map(_filled, self.fill))}
        if self.delimiter is not None:
            changed["delimiter"] = {"tab": "\t", "\\t": "\t"}.get(self.delimiter, self.delimiter)
        try:
            return validated({**base, **changed})
        except TraceError as error:
            name = (error.field or "").removeprefix("mapping.").partition(".")[0]
            field = (
                _OPTION_OF.get(name, error.field) if self.mapping is None or name in changed else error.field
            )
            raise TraceError(
                "cannot be used", field=field, value=error.value, expected=error.expected
            ) from error


def _from_file(path: Path) -> TraceMapping:
    from trimtab.errors import TraceError
    from trimtab.traces.read import validated
    from trimtab.validation.yaml_text import parsed_yaml, read_yaml

    text = read_yaml(path, TraceError)
    data = parsed_yaml(text, str(path), TraceError, "no mapping", "keys such as columns and time_format")
    try:
        return validated(data)
    except TraceError as error:
        name = (error.field or "").removeprefix("mapping.")
        raise TraceError(
            error.problem, file=str(path), field=name, value=error.value, expected=error.expected
        ) from error


def _mapped(text: str) -> tuple[str, Any]:
    """`NAME=COLUMN`, or `NAME=COLUMN*FACTOR`."""
    from trimtab.errors import UsageError

    name, sign, column = text.partition("=")
    if not (name and sign and column):
        expected = "NAME=COLUMN, such as output_tokens=out_tok or recorded_s=latency_ms*0.001"
        raise UsageError("cannot be used", field="--map", value=text, expected=expected)
    source, star, factor = column.rpartition("*")
    try:
        return name.strip(), {"column": source.strip(), "scale": float(factor)} if star else column.strip()
    except ValueError:
        return name.strip(), column.strip()


def _filled(text: str) -> tuple[str, float]:
    from trimtab.errors import UsageError

    name, _, value = text.partition("=")
    try:
        return name.strip(), float(value)
    except ValueError as error:
        expected = "NAME=VALUE, such as output_tokens=100"
        raise UsageError("cannot be used", field="--fill", value=text, expected=expected) from error
