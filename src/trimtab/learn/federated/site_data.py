"""A site's own rows: from a trace, or a recording of its gateway, to the moments that it learns from."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from trimtab.domain.cluster import RESOURCES
from trimtab.domain.learned_estimates import class_idx
from trimtab.errors import UsageError
from trimtab.experiments.service_fit import served_by, served_rows
from trimtab.learn.federated.estimates import TOKENS, UNITS, Layout, Moments, curve_places
from trimtab.traces import Trace

_NUMBERED: Final = re.compile(r" \(\d+\)$")  # a recording's types that share a name
_REQUEST: Final = "request"  # the class of rows that name none


@dataclass(frozen=True)
class SiteRows:
    """The moments of a site's rows, and how many rows say what.

    Attributes:
        moments: of the rows that count.
        lengths: class → rows with prompt and output tokens.
        service: (class, type) → rows with the seconds of their service.
        left_out: class or node type that the problem does not name → rows.
    """

    moments: Moments
    lengths: Mapping[str, int]
    service: Mapping[tuple[str, str], int]
    left_out: Mapping[str, int]

    def told(self) -> dict[str, Any]:
        """For displays."""
        return {
            "lengths": dict(self.lengths),
            "service": {f"{name} on {kind}": rows for (name, kind), rows in self.service.items()},
            "left_out": dict(self.left_out),
        }


def site_rows(
    trace: Trace, layout: Layout, *, names: Mapping[str, str] | None = None, cluster: Path | None = None
) -> SiteRows:
    """The rows of a trace that say something of the classes and node types of a problem.

    Args:
        trace: as `read_trace` has it.
        layout: of the problem.
        names: class or node type of the trace → that of the problem, where they differ.
        cluster: file with the nodes that served it, for seconds of service; a recording names its own.

    Raises:
        UsageError: no row says anything.
    """
    rows = _Rows(layout, names or {})
    rows.add_lengths(trace.table)
    if trace.format == "gateway" or cluster is not None:
        part = served_by(trace, cluster)
        if layout.types and "recorded_s" in trace.table.columns:
            rows.add_service(served_rows(trace, part))
        rows.add_demand({name: each.demand for name, each in part.classes.items()})
    rows.moments.smooth(layout)
    if not rows.moments.rows.any():
        raise UsageError(
            "says nothing of what is learned",
            file=trace.file,
            value=trace.table.columns,
            expected=f"prompt_tokens and output_tokens of {', '.join(layout.classes)}, or recorded_s with "
            f"--cluster of node types {', '.join(layout.types) or '(none is asked for)'}",
        )
    return SiteRows(rows.moments, rows.lengths, rows.service, rows.left_out)


def rows_with_lengths(table: pl.DataFrame) -> list[tuple[str, pl.DataFrame]]:
    """Rows of answers whose lengths are known, by the name of their class."""
    if not {"prompt_tokens", "output_tokens"} <= set(table.columns):
        return []
    if "outcome" in table.columns:
        table = table.filter(pl.col("outcome") == "done")
    known = table.filter(pl.col("prompt_tokens").is_not_null() & (pl.col("output_tokens") > 0))
    return _by(known, "class")


class _Rows:
    def __init__(self, layout: Layout, names: Mapping[str, str]) -> None:
        self.layout, self.names = layout, names
        self.moments = Moments.empty(layout)
        self.lengths: Counter[str] = Counter()
        self.service: Counter[tuple[str, str]] = Counter()
        self.left_out: Counter[str] = Counter()

    def add_lengths(self, table: pl.DataFrame) -> None:
        for name, rows in rows_with_lengths(table):
            c = self._class(name, rows.height)
            if c is None:
                continue
            at, part = curve_places(rows["prompt_tokens"].cast(pl.Float64).to_numpy())
            tokens = rows["output_tokens"].cast(pl.Float64).to_numpy()
            self.moments.add(self.layout.curve(c) + at, part, tokens / TOKENS)
            self.lengths[self.layout.classes[c]] += rows.height

    def add_service(self, table: pl.DataFrame) -> None:
        for name, of_class in _by(table, "class"):
            c = self._class(name, 0)
            if c is None:
                continue
            for kind, rows in _by(of_class, "type"):
                known = self.names.get(kind, _NUMBERED.sub("", kind))
                if known not in self.layout.types:
                    self.left_out[kind] += rows.height
                    continue
                at = np.full(rows.height, self.layout.line(c, self.layout.types.index(known)))
                self.moments.add(at, rows["size"].to_numpy() / UNITS, rows["recorded_s"].to_numpy())
                self.service[self.layout.classes[c], known] += rows.height

    def add_demand(self, demand: Mapping[str, Mapping[Any, float]]) -> None:
        for name, amounts in demand.items():
            c = self._class(name, 0)
            if c is None:
                continue
            rows = float(max(1, self.lengths[self.layout.classes[c]]))
            for resource, amount in amounts.items():
                at = self.layout.demand(c) + RESOURCES.index(resource)
                self.moments.square[at] += rows
                self.moments.target[at] += rows * amount
                self.moments.rows[at] += rows

    def _class(self, name: str, rows: int) -> int | None:
        c = class_idx(self.layout.classes, self.names.get(name, name))
        if c is None:
            self.left_out[name] += rows
        return c


def _by(table: pl.DataFrame, column: str) -> list[tuple[str, pl.DataFrame]]:
    """The rows of each value of a column, by value."""
    if column not in table.columns:
        return [(_REQUEST, table)] if table.height else []
    named = table.with_columns(pl.col(column).fill_null(_REQUEST))
    groups = named.group_by(column, maintain_order=True)
    return sorted(((str(key), rows) for (key,), rows in groups), key=lambda each: each[0])
