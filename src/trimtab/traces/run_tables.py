"""Runs of chains as tables: one row a run, and one row a stage instance.

A run trace is JSONL or Parquet with one row a run: the columns of a request (`arrival_s`; `tenant`,
`priority`, `deadline_s` and `payload_gib` are optional) and `stages`, a list of

    {"stage": name, "class": class, "size": units, "after": [names], "output_gib": size,
     "after_frac": [shares]}

where `after`, `output_gib` and `after_frac` are optional. `after_frac` is the share of each predecessor's
output that the stage reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from trimtab.domain.chains import Flow, check_stages
from trimtab.errors import ChainError, TraceError
from trimtab.traces.json_lines import amount_at, names_at, tables_at, text_at

RUN_CLASS: Final = "workflow"  # class of runs
RUN_IDX: Final = "run_idx"  # position of a run among all runs of its file
STAGES: Final = "stages"  # the column that tells a run trace from others
_PRIORITIES: Final = 1 << 31
RUN_COLUMNS: Final[dict[str, pl.DataType]] = {
    "arrival_s": pl.Float64(),
    "class": pl.String(),
    "tenant": pl.String(),
    "priority": pl.Int64(),
    "deadline_s": pl.Float64(),
    "payload_gib": pl.Float64(),
    RUN_IDX: pl.Int64(),
}
STAGE_COLUMNS: Final[dict[str, pl.DataType]] = {
    "run_idx": pl.Int64(),
    "stage": pl.String(),
    "class": pl.String(),
    "size": pl.Float64(),
    "after": pl.List(pl.String()),
    "after_frac": pl.List(pl.Float64()),
    "output_gib": pl.Float64(),
}


def tables_of(rows: list[dict[str, Any]], file: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The tables of runs and of stages. Raises TraceError that names run, stage, field and value."""
    runs, stages = [], []
    for k, row in enumerate(rows):
        place = f"run {k + 1}"
        runs.append(_run(row, k, f"{file}: {place}"))
        stages += list(_stages(row.get(STAGES), k, f"{file}: {place}"))
    table = pl.DataFrame(runs, schema=RUN_COLUMNS)
    _refuse_unsorted(table, file)
    return table, pl.DataFrame(stages, schema=STAGE_COLUMNS)


def _run(row: dict[str, Any], k: int, place: str) -> dict[str, Any]:
    tenant, priority = row.get("tenant"), row.get("priority")
    is_whole = isinstance(priority, int) and not isinstance(priority, bool)
    if priority is not None and not (is_whole and abs(priority) < _PRIORITIES):
        expected = f"a whole number, less than {_PRIORITIES:,}"
        raise TraceError("cannot be used", file=place, field="priority", value=priority, expected=expected)
    known = {"tenant": None if tenant is None else text_at(tenant, "tenant", place), "priority": priority}
    numbers = {name: _amount(row.get(name), name, place) for name in ("deadline_s", "payload_gib")}
    arrival_s = _amount(row.get("arrival_s"), "arrival_s", place)
    if arrival_s is None:
        raise TraceError("missing value", file=place, field="arrival_s", expected="seconds, at least 0")
    return {"arrival_s": arrival_s, "class": RUN_CLASS, "run_idx": k, **known, **numbers}


def _stages(given: Any, k: int, place: str) -> Iterator[dict[str, Any]]:
    if not isinstance(given, list) or not given:
        raise TraceError("has no stages", file=place, field=STAGES, value=given, expected="a list of stages")
    seen: dict[str, list[str]] = {}
    for i, stage in enumerate(tables_at(given, STAGES, place)):
        field = f"{STAGES}[{i}]"
        name, kind = (text_at(stage.get(key), f"{field}.{key}", place) for key in ("stage", "class"))
        size = _amount(stage.get("size"), f"{field}.size", place)
        if size is None or size <= 0.0:
            raise TraceError(
                "value out of range", file=place, field=f"{field}.size", value=size, expected="above 0"
            )
        if name in seen:
            raise TraceError(
                "a stage twice", file=place, field=f"{field}.stage", value=name, expected="each once"
            )
        after = names_at(stage.get("after"), f"{field}.after", place)
        if len(set(after)) < len(after):
            raise TraceError(
                "a stage twice", file=place, field=f"{field}.after", value=after, expected="each once"
            )
        seen[name] = after
        yield {
            "run_idx": k,
            "stage": name,
            "class": kind,
            "size": size,
            "after": after,
            "after_frac": _shares(stage.get("after_frac"), len(after), field, place),
            "output_gib": _amount(stage.get("output_gib"), f"{field}.output_gib", place) or 0.0,
        }
    try:
        check_stages("stages", {name: dict.fromkeys(after, Flow.ALL) for name, after in seen.items()})
    except ChainError as error:
        raise TraceError(
            error.problem, file=place, field=error.field, value=error.value, expected=error.expected
        ) from error


def _shares(given: Any, count: int, field: str, place: str) -> list[float]:
    shares = [1.0] * count if given is None else given
    is_list = isinstance(shares, list) and len(shares) == count
    if not is_list or not all(_is_share(share) for share in shares):
        expected = f"{count} shares from 0 to 1, as many as `after`"
        raise TraceError(
            "cannot be used", file=place, field=f"{field}.after_frac", value=given, expected=expected
        )
    return [float(share) for share in shares]


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0.0 <= value <= 1.0


def _amount(value: Any, field: str, place: str) -> float | None:
    return None if value is None else amount_at(value, field, place)


def _refuse_unsorted(table: pl.DataFrame, file: str) -> None:
    bad = table.with_columns(before=pl.col("arrival_s").shift()).filter(
        pl.col("arrival_s") < pl.col("before")
    )
    if bad.height:
        run_idx, arrival_s, before_s = bad.select("run_idx", "arrival_s", "before").row(0)
        raise TraceError(
            "arrivals are not sorted",
            file=file,
            field=f"run {run_idx + 1}, arrival_s",
            value=arrival_s,
            expected=f"at least {before_s:g}, as in the run before",
        )


def run_rows(table: pl.DataFrame, stages: pl.DataFrame) -> pl.DataFrame:
    """The tables as one row a run: what a run trace holds."""
    nested = stages.group_by("run_idx", maintain_order=True).agg(
        pl.struct(name for name in STAGE_COLUMNS if name != "run_idx").alias(STAGES)
    )
    return table.join(nested, on="run_idx", how="left", maintain_order="left").drop("run_idx", "class")
