"""Guesses about an unknown table: the kind of each column, and the canonical column that it is.

A guess goes by the name of a column and by its first values. Nothing is taken silently: the command line
shows the guess, and writes it as a mapping that can be changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import polars as pl

from trimtab.errors import TraceError
from trimtab.traces.formats import COLUMNS, canonical_name, id_column, plain_name
from trimtab.traces.mapping import TraceMapping
from trimtab.traces.plausibility import unit_since_1970
from trimtab.traces.source import NO_TEXT, OTHER_ENCODING, Skipped, TraceSource, read_blocks
from trimtab.traces.values import parsed, parsed_ticks

SHOWN: Final = 3
SAMPLE: Final = 20_000
_WIDEST: Final = 32  # characters of an example
_MOST: Final = 0.9  # of the values that are of a kind, so that a column seems to be of it
_FEW: Final = 50  # distinct values of a label

_COUNT: Final = r"(tok\w*|jetons?|len\w*|lange|longueur|longitud)"
_IN: Final = r"(prompt|input|in|context|request|ctx|eingabe|entree|entrada)"
_OUT: Final = (
    r"(completion|output|out|generated|response|gen|answer|candidates|antwort|ausgabe|reponse|sortie|"
    r"respuesta|salida)"
)
_UNIT: Final = r"_?(s|sec|secs|seconds|ms|msec|millis|milliseconds|us)"
_NUMBER_OF: Final = r"(n_?|num_?|usage_)?"
_NAMES: Final[Mapping[str, str]] = {
    "arrival_s": r"(arriv\w*|time|timestamp|ts|date|datetime|when|created\w*|start\w*|begin\w*|received\w*|"
    r"zeit\w*|datum|uhrzeit|fecha|inicio|heure|debut)(_?(at|time|ts|s|ms|us|ns|utc))?",
    "prompt_tokens": rf"{_NUMBER_OF}({_IN}_?{_COUNT}|{_COUNT}_((de?|des)_)?{_IN})",
    "output_tokens": rf"{_NUMBER_OF}({_OUT}_?{_COUNT}|{_COUNT}_((de?|des)_)?{_OUT})",
    "recorded_s": r"((e2e_?)?(total_?)?(latency|latenz|duration|elapsed|took|response_?time|request_?time|"
    rf"dauer|duree|duracion|service_?time)({_UNIT}|_?time)?|(total|overall|e2e){_UNIT})",
    "tenant": r"(tenant|team|user|customer|client|kunde|mandant|equipe|account|org\w*|api_?key|project)"
    r"(_?(id|name))?",
    "session": r"(session|conversation|chat|thread)(_?id)?",
    "model": r"mod(el|ell|ele|elo)(_?(name|id|group))?",
    "class": r"(class|type|kind|route|endpoint|service|task)(_?name)?",
    "priority": r"prio(rity)?",
    "node": r"(node|host|server|worker|replica|backend|instance|pod)(_?(id|name))?",
    "size": r"(size|units|work)",
    "images": r"(n_?|num_?)?images",
    "steps": r"(num_?)?(inference_?|denoising_?)?steps",
}
_DATE_LAYOUTS: Final = (
    *(
        "%d/%m/%Y %H:%M:%S",
        "%m/%d/%Y %H:%M:%S",
        "%d.%m.%Y %H:%M:%S",
        "%d-%m-%Y %H:%M:%S",
        "%Y/%m/%d %H:%M:%S",
    ),
    *("%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M", "%d.%m.%Y %H:%M", "%Y-%m-%d %H:%M", "%d/%m/%y %H:%M:%S"),
    *("%m/%d/%Y %I:%M:%S %p", "%d/%m/%Y %I:%M:%S %p", "%Y-%m-%d %I:%M:%S %p"),
    *("%d/%m/%Y %H:%M:%S%.f", "%m/%d/%Y %H:%M:%S%.f", "%d.%m.%Y %H:%M:%S%.f", "%d/%b/%Y:%H:%M:%S %z"),
    *("%a, %d %b %Y %H:%M:%S %z", "%Y%m%d%H%M%S", "%b %d %Y %H:%M:%S"),
)
_UNIT_OF_NAME: Final = (
    (r"_?(ms|msec|millis(econds)?)$", 1e-3),
    (r"_?(us|micros(econds)?)$", 1e-6),
    (r"_?(ns|nanos(econds)?)$", 1e-9),
)


@dataclass(frozen=True, slots=True)
class ColumnGuess:
    """The guess about one column.

    `kind` in words; `canonical`: the column that it is taken as, None: not read; `how` its values are
    written, as fields of a mapping.
    """

    name: str
    kind: str
    canonical: str | None
    blank_frac: float
    examples: tuple[str, ...]
    scale: float = 1.0
    how: Mapping[str, Any] | None = None


def guess_columns(source: TraceSource, mapping: TraceMapping) -> list[ColumnGuess]:
    """A guess for each column, from the first rows; what the mapping says already holds."""
    block = next(read_blocks(source, skipped=_refusing_undecoded(source, mapping)), None)
    if block is None:
        expected = "at least one request"
        raise TraceError("nothing but a header", file=str(source.path), expected=expected)
    table = block.table.head(SAMPLE)
    mapped = {column.column: name for name, column in mapping.columns.items()}
    own_id = id_column(name for name in source.columns if name not in mapped)
    if own_id is not None and "original_id" not in mapping.columns:
        mapped[own_id] = "original_id"
    guesses = [_guess(table[name], mapping) for name in source.columns]
    return _with_lone_time(list(_named(guesses, mapped)))


def _named(guesses: Sequence[ColumnGuess], mapped: Mapping[str, str]) -> Iterator[ColumnGuess]:
    """Each with the canonical column that it is mapped to, else with the first free one that fits."""
    taken = set(mapped.values())
    for guess in guesses:
        canonical = mapped.get(guess.name) or _canonical(guess, taken)
        taken |= {canonical} if canonical else set()
        yield replace(
            guess,
            canonical=canonical,
            scale=guess.scale if canonical in ("recorded_s", "deadline_s") else 1.0,
        )


def _with_lone_time(guesses: list[ColumnGuess]) -> list[ColumnGuess]:
    """With the only column of times as the arrival, where no column has the name of one."""
    times = [guess for guess in guesses if "time" in guess.kind and guess.canonical is None]
    if len(times) != 1 or any(guess.canonical == "arrival_s" for guess in guesses):
        return guesses
    return [replace(guess, canonical="arrival_s") if guess is times[0] else guess for guess in guesses]


def _refusing_undecoded(source: TraceSource, mapping: TraceMapping) -> Skipped:
    """Leaves out lines that do not parse, but refuses those that tell of another encoding."""

    def skipped(row_idx: int, problem: str, line: str) -> None:
        if problem == NO_TEXT and mapping.on_bad_row == "error":
            file, place = str(source.path), source.place(row_idx)
            raise TraceError(problem, file=file, field=place, value=line, expected=OTHER_ENCODING)

    return skipped


def proposed(guesses: Sequence[ColumnGuess], mapping: TraceMapping) -> dict[str, Any]:
    """The mapping that the guesses make, under what is given already."""
    columns: dict[str, Any] = {
        guess.canonical: guess.name if guess.scale == 1.0 else {"column": guess.name, "scale": guess.scale}
        for guess in guesses
        if guess.canonical is not None
    }
    given = mapping.kept_only()
    arrival = next((guess for guess in guesses if guess.canonical == "arrival_s"), None)
    how = dict(arrival.how or {}) if arrival else {}
    if "time_format" in given or "time_unit" in given:
        how = {}
    decimal = {"decimal": ","} if any((g.how or {}).get("decimal") for g in guesses if g.canonical) else {}
    how.pop("decimal", None)
    return {**how, **decimal, **given, "columns": {**columns, **given.get("columns", {})}}


def _guess(values: pl.Series, mapping: TraceMapping) -> ColumnGuess:
    name, rows = values.name, max(1, len(values))
    if values.dtype.is_temporal():
        return ColumnGuess(name, "date and time", None, values.null_count() / rows, _examples(values))
    text = values.cast(pl.String).str.strip_chars() if not values.dtype.is_nested() else None
    if text is None:
        return ColumnGuess(name, "list", None, values.null_count() / rows, ())
    present = text.filter(text.is_not_null() & ~text.is_in(sorted(mapping.missing)))
    blank_frac = 1 - len(present) / rows
    kind, how = _kind(present, mapping)
    if len(present) and present.str.contains(r"^[\[{].*[\]}]$").all():
        return ColumnGuess(name, "object" if present[0].startswith("{") else "list", None, blank_frac, ())
    return ColumnGuess(name, kind, None, blank_frac, _examples(present), _scale(name), how)


def _examples(values: pl.Series) -> tuple[str, ...]:
    shown = map(str, values.drop_nulls().unique(maintain_order=True).head(SHOWN))
    return tuple(text if len(text) <= _WIDEST else f"{text[:_WIDEST]}…" for text in shown)


def _scale(name: str) -> float:
    return next((scale for ending, scale in _UNIT_OF_NAME if re.search(ending, plain_name(name))), 1.0)


def _kind(text: pl.Series, mapping: TraceMapping) -> tuple[str, Mapping[str, Any] | None]:
    """The kind of non-blank values, and how they are written."""
    if not len(text):
        return "nothing but blanks", None
    for decimal in (mapping.decimal, ","):
        numbers = parsed(text, pl.Float64(), decimal)
        if _are_most(numbers):
            return _kind_of_numbers(numbers.drop_nulls(), {"decimal": ","} if decimal == "," else {})
    if _are_most(parsed_ticks(text, "datetime")):
        return "date and time, ISO 8601", {"time_unit": "datetime"}
    layouts = [layout for layout in _DATE_LAYOUTS if _are_most(_ticks(text, layout))]
    if layouts:
        counts = {layout: len(_ticks(text, layout).drop_nulls()) for layout in layouts}
        best = max(layouts, key=counts.__getitem__)
        twin = next((x for x in layouts if counts[x] == counts[best] and _differ(x, best, text)), None)
        unclear = f" (or {twin}: --time-format)" if twin else ""
        return f"date and time, {best}{unclear}", {"time_format": best}
    distinct = text.n_unique()
    if distinct == len(text) and distinct > 1:
        return "text, all different", None
    return (f"label, {distinct} distinct" if distinct <= _FEW else f"text, {distinct:,} distinct"), None


def _ticks(text: pl.Series, layout: str) -> pl.Series:
    return parsed_ticks(text, "datetime", layout)


def _differ(one: str, other: str, text: pl.Series) -> bool:
    """Whether two layouts read some of the values as different times."""
    return not _ticks(text, one).equals(_ticks(text, other))


def _are_most(found: pl.Series) -> bool:
    return found.null_count() <= (1 - _MOST) * len(found)


def _kind_of_numbers(numbers: pl.Series, how: dict[str, Any]) -> tuple[str, Mapping[str, Any] | None]:
    unit = unit_since_1970(float(str(numbers.median())))
    if unit is not None:
        return f"time, {unit} since 1970", {"time_unit": unit, **how}
    whole = bool((numbers == numbers.round()).all())
    return ("whole number" if whole else "number"), how or None


def _canonical(guess: ColumnGuess, taken: set[str]) -> str | None:
    """The first free canonical column whose names and kind fit; a path fits by its last key, too."""
    for name in dict.fromkeys((plain_name(guess.name), plain_name(guess.name.rpartition(".")[2]))):
        known = canonical_name(name)
        if known in COLUMNS and known not in taken and _fits(known, guess):
            return known
        for canonical, pattern in _NAMES.items():
            if canonical not in taken and re.fullmatch(pattern, name) and _fits(canonical, guess):
                return canonical
    return None


def _fits(canonical: str, guess: ColumnGuess) -> bool:
    is_time = "time" in guess.kind
    is_number = "number" in guess.kind
    if guess.kind in ("object", "list"):
        return guess.kind == "list" and isinstance(COLUMNS[canonical], pl.List)
    if canonical == "arrival_s":
        return is_time or is_number
    if COLUMNS[canonical].is_integer():
        return guess.kind == "whole number"
    return is_number if COLUMNS[canonical].is_numeric() else not is_time
