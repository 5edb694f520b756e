"""What the columns of an unknown table seem to be: times, numbers, texts, and which canonical column each is.

A guess goes by the name of a column and by its first values. Nothing is taken silently: the command line
shows the guess, and writes it as a mapping that can be changed.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from trimtab.errors import TraceError
from trimtab.traces.columns import COLUMNS, canonical_name
from trimtab.traces.formats import TimeUnit
from trimtab.traces.mapping import TraceMapping
from trimtab.traces.source import NO_TEXT, OTHER_ENCODING, TraceSource, read_blocks
from trimtab.traces.values import parsed, parsed_ticks

SHOWN: Final = 3
SAMPLE: Final = 20_000
_MOST: Final = 0.9  # of the values that are of a kind, so that a column seems to be of it
_FEW: Final = 50  # distinct values of a label

_COUNT: Final = r"(tok\w*|len\w*|lange|longueur|longitud)"
_NAMES: Final[Mapping[str, str]] = {
    "arrival_s": r"(arriv\w*|time|timestamp|ts|date|datetime|when|created\w*|start\w*|begin\w*|received\w*|"
    r"zeit\w*|datum|uhrzeit|fecha|heure)(_?(at|time|ts|s|ms|us|ns|utc))?",
    "prompt_tokens": rf"(n_?|num_?)?(prompt|input|in|context|request|ctx|eingabe|entree|entrada)_?{_COUNT}",
    "output_tokens": r"(n_?|num_?)?(completion|output|out|generated|response|gen|answer|antwort|ausgabe|"
    rf"reponse|sortie|respuesta|salida)_?{_COUNT}",
    "recorded_s": r"(e2e_?)?(total_?)?(latency|latenz|duration|elapsed|took|response_?time|request_?time|"
    r"dauer|service_?time)(_?(s|sec|secs|seconds|ms|millis|us|time))?",
    "tenant": r"(tenant|team|user|customer|client|kunde|account|org\w*|api_?key|project)(_?(id|name))?",
    "session": r"(session|conversation|chat|thread)(_?id)?",
    "model": r"mod(el|ell|ele|elo)(_?(name|id|group))?",
    "class": r"(class|type|kind|route|endpoint|service|task)",
    "priority": r"prio(rity)?",
    "node": r"(node|host|server|worker|replica|backend|instance|pod)(_?(id|name))?",
    "original_id": r"(request_?|req_?|trace_?|call_?|completion_?)?(id|uuid|guid)",
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
    *("%d/%m/%Y %H:%M:%S%.f", "%m/%d/%Y %H:%M:%S%.f", "%d.%m.%Y %H:%M:%S%.f", "%d/%b/%Y:%H:%M:%S %z"),
    *("%a, %d %b %Y %H:%M:%S %z", "%Y%m%d%H%M%S", "%b %d %Y %H:%M:%S"),
)
_UNIT_OF_NAME: Final = ((r"_?(ms|millis)$", 1e-3), (r"_?(us|micros)$", 1e-6), (r"_?ns$", 1e-9))
_EPOCHS: Final[tuple[tuple[float, TimeUnit], ...]] = ((1e17, "ns"), (1e14, "us"), (1e11, "ms"))


@dataclass(frozen=True, slots=True)
class ColumnGuess:
    """What one column seems to be.

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
    block = next(read_blocks(source, skipped=_refuse_undecoded), None)
    table = (
        block.table.head(SAMPLE) if block else pl.DataFrame(schema=dict.fromkeys(source.columns, pl.String))
    )
    mapped = {column.column: name for name, column in mapping.columns.items()}
    taken = set(mapping.columns)
    found = []
    for name in source.columns:
        guess = _guess(table[name], mapping)
        canonical = mapped.get(name) or _canonical(guess, taken)
        taken |= {canonical} if canonical else set()
        scale = guess.scale if canonical in ("recorded_s", "deadline_s") else 1.0
        found.append(
            ColumnGuess(name, guess.kind, canonical, guess.blank_frac, guess.examples, scale, guess.how)
        )
    return found


def _refuse_undecoded(row_idx: int, problem: str, line: str) -> None:
    """Leave out lines that do not parse, unless the whole file is in another encoding."""
    if problem.startswith(NO_TEXT):
        raise TraceError(problem, field=f"row {row_idx + 1}", value=line[:80], expected=OTHER_ENCODING)


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
    return ColumnGuess(name, kind, None, blank_frac, _examples(present), _scale(name), how)


def _examples(values: pl.Series) -> tuple[str, ...]:
    return tuple(str(value)[:24] for value in values.drop_nulls().unique(maintain_order=True).head(SHOWN))


def _scale(name: str) -> float:
    return next((scale for ending, scale in _UNIT_OF_NAME if re.search(ending, name.lower())), 1.0)


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
        twin = next((x for x in layouts if x != best and counts[x] == counts[best]), None)
        unclear = f" (or {twin}: --time-format)" if twin else ""
        return f"date and time, {best}{unclear}", {"time_format": best}
    distinct = text.n_unique()
    if distinct == len(text) and distinct > 1:
        return "text, all different", None
    return (f"label, {distinct} different" if distinct <= _FEW else f"text, {distinct:,} different"), None


def _ticks(text: pl.Series, layout: str) -> pl.Series:
    return parsed_ticks(text, "datetime", layout)


def _are_most(found: pl.Series) -> bool:
    return found.null_count() <= (1 - _MOST) * len(found)


def _kind_of_numbers(numbers: pl.Series, how: dict[str, Any]) -> tuple[str, Mapping[str, Any] | None]:
    middle = float(str(numbers.median()))
    for least, unit in _EPOCHS:
        if middle >= least:
            return f"time, {unit} since 1970", {"time_unit": unit, **how}
    if 9e8 <= middle < 1e10:
        return "time, s since 1970", {"time_unit": "s", **how}
    whole = bool((numbers == numbers.round()).all())
    return ("whole number" if whole else "number"), how or None


def _canonical(guess: ColumnGuess, taken: set[str]) -> str | None:
    """The first free canonical column whose names and kind fit."""
    plain = unicodedata.normalize("NFKD", guess.name).encode("ascii", "ignore").decode()  # without accents
    name = re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", plain).lower()).strip("_")
    if (
        canonical_name(name) in COLUMNS
        and canonical_name(name) not in taken
        and _fits(canonical_name(name), guess)
    ):
        return canonical_name(name)
    for canonical, pattern in _NAMES.items():
        if canonical not in taken and re.fullmatch(pattern, name) and _fits(canonical, guess):
            return canonical
    return None


def _fits(canonical: str, guess: ColumnGuess) -> bool:
    is_time = "time" in guess.kind
    is_number = "number" in guess.kind
    if canonical == "arrival_s":
        return is_time or is_number
    if COLUMNS[canonical].is_integer():
        return guess.kind == "whole number"
    return is_number if COLUMNS[canonical].is_numeric() else not is_time
