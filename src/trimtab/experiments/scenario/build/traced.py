"""Recorded requests: the columns of a trace in terms of a scenario's classes, models and adapters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from trimtab.errors import ScenarioError
from trimtab.experiments.scenario.build.defaults import ADAPTERS_NOT_NAMED
from trimtab.experiments.scenario.build.generated import (
    Members,
    RequestColumns,
    Stream,
    drawn_members,
    members_of,
)
from trimtab.experiments.scenario.spec.service_classes import ItemFamily, Served
from trimtab.experiments.scenario.spec.shared_types import FloatArray, IntArray
from trimtab.experiments.scenario.spec.workload import TraceSpec
from trimtab.traces import Trace
from trimtab.traces.run_tables import RUN_IDX
from trimtab.validation.names import nearest

UNKNOWN_TENANT = "unknown"


def traced(spec: TraceSpec, trace: Trace, table: pl.DataFrame, served: Served, seed: int) -> RequestColumns:
    """The chosen rows of a trace as requests.

    Raises:
        ScenarioError: no usable size column, or rows of an unknown class.
    """
    class_idx = _class_idx(spec, table, served)
    families = [(c.model, c.adapter) for c in served.classes.values()]
    model, models = _models(table, class_idx, [m for m, _ in families], served.models, seed)
    named = _names_adapters(spec, trace.format)
    adapter, adapters = _adapters(table, class_idx, [a for _, a in families], served.adapters, seed, named)
    tenant_names, tenant_idx = _coded(table, "tenant", UNKNOWN_TENANT)
    _, session = _coded(table, "session")
    return RequestColumns(
        arrival_s=table["arrival_s"].to_numpy(),
        class_idx=class_idx,
        units=_units(spec, table),
        model=model,
        adapter=np.where(model >= 0, adapter, -1),
        models=models,
        adapters=adapters,
        tenant_idx=tenant_idx,
        tenant_names=tenant_names,
        priority=_whole_numbers(table, "priority"),
        deadline_after_s=_floats(table, "deadline_s", np.inf),
        payload_gib=_floats(table, "payload_gib", 0.0),
        session=session,
        factor=_floats(table, "factor", 1.0),
        content=_coded(table, "content")[1],
        leave_after_s=_floats(table, "leave_after_s", np.inf),
    )


def _names_adapters(spec: TraceSpec, format_name: str) -> bool:
    return spec.adapters == "named" or (spec.adapters == "auto" and format_name not in ADAPTERS_NOT_NAMED)


def _units(spec: TraceSpec, table: pl.DataFrame) -> FloatArray:
    """Work units [rows], all above 0; 0 for runs, whose stages have them."""
    if RUN_IDX in table.columns:
        return np.zeros(table.height)
    if spec.size_column not in table.columns or not table[spec.size_column].dtype.is_numeric():
        numeric = [name for name in table.columns if table[name].dtype.is_numeric()]
        raise _trace_error(spec, "size_column", spec.size_column, nearest(spec.size_column, numeric))
    units = table[spec.size_column].cast(pl.Float64).fill_null(0.0)
    if (least := units.min()) is None or not float(str(least)) > 0:
        row = int((units <= 0).arg_max() or 0)
        expected = f"a column of numbers above 0; its row {row + 1} is not"
        raise _trace_error(spec, "size_column", spec.size_column, expected)
    return units.to_numpy()


def _class_idx(spec: TraceSpec, table: pl.DataFrame, served: Served) -> IntArray:
    """Class of each row: by the name in the column, else the default."""
    names = list(served.classes)
    default = names[0] if len(names) == 1 else spec.default_class
    if spec.class_column not in table.columns:
        if default is None:
            raise ScenarioError(
                f"the scenario has {len(names)} classes, and the trace has no column {spec.class_column}",
                file=str(spec.file),
                field="workload.trace.default_class",
                expected=f"one of {', '.join(names)}, or workload.trace.class_column, in the scenario file",
            )
        return np.full(table.height, names.index(default))
    found = table[spec.class_column].cast(pl.String)
    known = {value: spec.class_of.get(value, value) for value in found.unique().drop_nulls().sort()}
    positions = {value: names.index(name) for value, name in known.items() if name in names}
    unknown = sorted(known.keys() - positions.keys())
    if default is None and (unknown or found.null_count()):
        expected = f"default_class, or the class of each of {unknown[:8]}: one of {names}"
        raise _trace_error(spec, "class_of", dict(spec.class_of), expected)
    otherwise = None if default is None else names.index(default)
    return found.replace_strict(positions, default=otherwise, return_dtype=pl.Int64).to_numpy()


def _trace_error(spec: TraceSpec, field: str, value: object, expected: str) -> ScenarioError:
    return ScenarioError(
        "does not fit the trace",
        file=str(spec.file),
        field=f"workload.trace.{field}",
        value=value,
        expected=expected,
    )


Families = Sequence[str | None]
"""Family of each class, [classes]."""


def _models(
    table: pl.DataFrame,
    class_idx: IntArray,
    of_class: Families,
    families: Mapping[str, ItemFamily],
    seed: int,
) -> tuple[IntArray, Members]:
    """Model of each row: from its column, or drawn."""
    if "model" in table.columns:
        return _named(table["model"], class_idx, of_class, families)
    everywhere = np.ones(table.height, dtype=np.bool_)
    return _drawn(everywhere, class_idx, of_class, families, seed, Stream.MODEL)


def _adapters(
    table: pl.DataFrame,
    class_idx: IntArray,
    of_class: Families,
    families: Mapping[str, ItemFamily],
    seed: int,
    named: bool,
) -> tuple[IntArray, Members]:
    """Adapter of each row; none if the trace has no such column, or null in it."""
    if "adapter" not in table.columns:
        return np.full(table.height, -1), members_of(families)
    if named:
        return _named(table["adapter"], class_idx, of_class, families)
    has_one = table["adapter"].is_not_null().to_numpy()
    return _drawn(has_one, class_idx, of_class, families, seed, Stream.ADAPTER)


def _named(
    values: pl.Series, class_idx: IntArray, of_class: Families, families: Mapping[str, ItemFamily]
) -> tuple[IntArray, Members]:
    """Item families with the names in the trace as members, each of its family's size."""
    position, members = np.full(len(values), -1), members_of(families)
    for family in families:
        classes = [c for c, name in enumerate(of_class) if name == family]
        rows = np.flatnonzero(np.isin(class_idx, classes))
        if len(rows):
            names, codes = _codes(values.gather(rows))
            position[rows], members = codes, {**members, family: names}
    return position, members


def _drawn(
    has_one: np.ndarray[tuple[int], np.dtype[np.bool_]],
    class_idx: IntArray,
    of_class: Families,
    families: Mapping[str, ItemFamily],
    seed: int,
    stream: Stream,
) -> tuple[IntArray, Members]:
    position = np.full(len(class_idx), -1)
    for c, name in enumerate(of_class):
        rows = np.flatnonzero(class_idx == c)
        if name is not None and len(rows):
            members = drawn_members(families[name], seed, stream, c, len(rows))
            position[rows] = np.where(has_one[rows], members, -1)
    return position, members_of(families)


def _codes(values: pl.Series) -> tuple[tuple[str, ...], IntArray]:
    """Distinct values in order of appearance, and the position of each row's among them; -1 = null."""
    text = values.cast(pl.String)
    names = text.drop_nulls().unique(maintain_order=True)
    codes = text.cast(pl.Enum(names)).to_physical().cast(pl.Int64).fill_null(-1)
    return tuple(names), codes.to_numpy()


def _coded(
    table: pl.DataFrame, column: str, missing: str | None = None
) -> tuple[tuple[str, ...], IntArray | None]:
    if column not in table.columns:
        return (), None
    values = table[column].cast(pl.String)
    return _codes(values if missing is None else values.fill_null(missing))


def _whole_numbers(table: pl.DataFrame, column: str) -> IntArray | None:
    return table[column].fill_null(0).to_numpy() if column in table.columns else None


def _floats(table: pl.DataFrame, column: str, missing: float) -> FloatArray | None:
    return table[column].fill_null(missing).to_numpy() if column in table.columns else None
