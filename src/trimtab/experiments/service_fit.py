"""Service times from recorded ones: fixed and per unit, for each class and node type, with intervals.

    recorded seconds = fixed_s + unit_s × size        for each class on each node type

Least squares of relative errors (weights 1 ÷ fitted², found in a few rounds), both parts at least 0.
Intervals are robust against errors that grow with the size (sandwich estimator, White 1980); R² is that of
the seconds themselves. The held-back error is that of the last fifth of the rows, by a fit of those before.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.optimize import nnls

from trimtab.errors import TraceError
from trimtab.experiments.scenario.from_recording import scenario_of
from trimtab.experiments.scenario.loader import load_cluster
from trimtab.experiments.scenario.spec.scenario import ClusterPart
from trimtab.metrics.statistics import student_t95
from trimtab.traces import Trace
from trimtab.validation.names import nearest
from trimtab.words import counted

FloatArray = NDArray[np.float64]

LEAST_ROWS: Final = 20  # of a class on a node type
HELD_FRAC: Final = 0.2
_ROUNDS: Final = 4
_POOR_R2: Final = 0.5
_POOR_ERROR: Final = 0.3
_LOADED: Final = 0.1  # share of a fitted time that each further request in flight adds over all, and is told
_SHOWN: Final = 2_000  # residuals that are kept for figures


@dataclass(frozen=True, slots=True)
class ServiceFit:
    """One class on one node type.

    `*_ci95_s` are half-widths. `r2` is the share of the variance of recorded seconds that the model explains,
    `held_back_error` the median of |fitted − recorded| ÷ recorded of rows that the fit had not seen, None
    with too few rows. `per_in_flight_frac` is by how much of the fitted time a recorded one grows with each
    further request in flight on the node. `sizes`, `residuals_frac` and `in_flight` [shown] are a sample.
    """

    class_name: str
    node_type: str
    rows: int
    fixed_s: float
    fixed_ci95_s: float
    unit_s: float
    unit_ci95_s: float
    r2: float
    held_back_error: float | None
    per_in_flight_frac: float
    hints: tuple[str, ...]
    sizes: FloatArray = field(repr=False)
    residuals_frac: FloatArray = field(repr=False)
    in_flight: FloatArray = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """The figures, without the sample."""
        left_out = ("sizes", "residuals_frac", "in_flight")
        return {name: value for name, value in asdict(self).items() if name not in left_out}


@dataclass(frozen=True, slots=True)
class FittedCluster:
    """The fits, the cluster with them, and (class, node type) → rows where these are too few for a fit."""

    cluster: ClusterPart
    fits: tuple[ServiceFit, ...]
    too_few: Mapping[tuple[str, str], int]

    def __repr__(self) -> str:
        """The fitted parameters."""
        rows = counted(sum(fit.rows for fit in self.fits), "row")
        return f"<FittedCluster: {counted(len(self.fits), 'fit')} of {rows}>"

    def table(self) -> pl.DataFrame:
        """One row for each class and node type, with the figures of its fit."""
        return pl.DataFrame([{**fit.to_dict(), "hints": list(fit.hints)} for fit in self.fits])

    def content(self) -> dict[str, Any]:
        """The values of a cluster file."""
        return self.cluster.cluster_content()


def fit_service(
    trace: Trace, cluster: Path | ClusterPart | None = None, *, max_in_flight: int | None = None
) -> FittedCluster:
    """Fit the service times of a trace's rows that tell how long they took.

    Args:
        trace: with the columns recorded_s and size; class, if there are several; node, if the cluster has
            nodes of several types.
        cluster: its nodes, or a file of them; not needed for a recording of the gateway, which names them.
        max_in_flight: take only rows that met at most so many requests on their node, themselves included.

    Raises:
        TraceError: a column is missing, a node is unknown, or too few rows are left.
    """
    part = served_by(trace, cluster)
    rows = served_rows(trace, part)
    if max_in_flight is not None:
        rows = rows.filter(pl.col("in_flight") <= max_in_flight)
    fits, too_few = [], {}
    for (name, kind), group in sorted(rows.group_by("class", "type"), key=lambda item: str(item[0])):
        if group.height < LEAST_ROWS or group["size"].n_unique() < 2:
            too_few[str(name), str(kind)] = group.height
            continue
        fits.append(_fit(str(name), str(kind), group.sort("arrival_s")))
    if not fits:
        expected = f"at least {counted(LEAST_ROWS, 'row')} of a class on a node type, of different sizes"
        raise TraceError("too few rows for a fit", file=trace.file, value=rows.height, expected=expected)
    return FittedCluster(_with_fits(part, fits), tuple(fits), too_few)


def served_by(trace: Trace, cluster: Path | ClusterPart | None) -> ClusterPart:
    """The cluster that served a trace; a recording of the gateway names its own. Raises TraceError."""
    if isinstance(cluster, ClusterPart):
        return cluster
    if cluster is not None:
        return load_cluster(cluster)
    if trace.format == "gateway":
        return scenario_of(Path(trace.file))
    raise TraceError("which nodes served it is not told", file=trace.file, expected="--cluster FILE")


def served_rows(trace: Trace, part: ClusterPart) -> pl.DataFrame:
    """arrival_s, size, recorded_s, class, type and in_flight of the rows that were served.

    Raises TraceError: a column is missing, or a node is unknown.
    """
    table = trace.table
    for name, remedy in (("recorded_s", "--map recorded_s=COLUMN"), ("size", "--map size=COLUMN")):
        if name not in table.columns or table[name].null_count() == table.height:
            raise TraceError(f"has no {name}", file=trace.file, value=table.columns, expected=remedy)
    if "outcome" in table.columns:
        table = table.filter(pl.col("outcome") == "done")
    served = table.filter((pl.col("recorded_s") > 0) & (pl.col("size") > 0))
    added = {"class": _classes(trace, served, part), "type": _types(trace, served, part)}
    named = served.with_columns(**added)
    of_node = "node" if "node" in named.columns else "type"
    return named.with_columns(in_flight=_in_flight(named, of_node))


def _classes(trace: Trace, table: pl.DataFrame, part: ClusterPart) -> pl.Expr:
    only = next(iter(part.classes)) if len(part.classes) == 1 else None
    if "class" not in table.columns or only is not None:
        if only is None and len(part.classes) > 1:
            expected = f"--map class=COLUMN with values {list(part.classes)}"
            raise TraceError("has no class", file=trace.file, value=table.columns, expected=expected)
        return pl.lit(only or "request")
    return pl.col("class").fill_null("request")


def _types(trace: Trace, table: pl.DataFrame, part: ClusterPart) -> pl.Expr:
    """Node type of each row, by the name of its node; a type's own name stands for its nodes."""
    used = list(dict.fromkeys(group.type for group in part.cluster.nodes))
    if len(used) == 1:
        return pl.lit(used[0])
    if "node" not in table.columns:
        expected = f"--map node=COLUMN with names of nodes or of their types {used}"
        raise TraceError("has no node, of a cluster with several types", file=trace.file, expected=expected)
    type_of = {kind: kind for kind in part.cluster.types}
    type_of |= {node.name: node.group.type for node in part.cluster.each_node()}
    unknown = [name for name in _names(table) if name not in type_of]
    if unknown:
        expected = f"nodes or node types of the cluster: {nearest(unknown[0], list(type_of))}"
        raise TraceError("unknown nodes", file=trace.file, field="node", value=unknown[:4], expected=expected)
    return pl.col("node").replace_strict(type_of, default=None, return_dtype=pl.String)


def _names(table: pl.DataFrame) -> list[str]:
    return table["node"].drop_nulls().unique().sort().to_list()


def _in_flight(rows: pl.DataFrame, by: str) -> pl.Series:
    """Requests on the same node at each one's arrival, itself included."""
    counts = np.ones(rows.height)
    keys = rows[by].to_numpy()
    start_s, took_s = rows["arrival_s"].to_numpy(), rows["recorded_s"].to_numpy()
    for key in np.unique(keys.astype(str)):
        at = np.flatnonzero(keys.astype(str) == key)
        ended = np.searchsorted(np.sort(start_s[at] + took_s[at]), start_s[at], side="right")
        begun = np.searchsorted(np.sort(start_s[at]), start_s[at], side="right")
        counts[at] = begun - ended
    return pl.Series(np.maximum(counts, 1.0))


def _fit(name: str, kind: str, rows: pl.DataFrame) -> ServiceFit:
    size, took_s = rows["size"].to_numpy(), rows["recorded_s"].to_numpy()
    in_flight = rows["in_flight"].to_numpy()
    fixed_s, unit_s, weight = _least_squares(size, took_s)
    fitted_s = fixed_s + unit_s * size
    half_widths = _half_widths(size, took_s - fitted_s, weight)
    variance = float(took_s.var())
    r2 = 1.0 - float(((took_s - fitted_s) ** 2).mean()) / variance if variance > 0 else float("nan")
    residual = (took_s - fitted_s) / np.maximum(fitted_s, 1e-12)
    slope = _slope(in_flight, residual)
    held = _held_back_error(size, took_s)
    shown = np.linspace(0, rows.height - 1, min(rows.height, _SHOWN)).astype(np.int64)
    return ServiceFit(
        class_name=name,
        node_type=kind,
        rows=rows.height,
        fixed_s=fixed_s,
        fixed_ci95_s=half_widths[0],
        unit_s=unit_s,
        unit_ci95_s=half_widths[1],
        r2=r2,
        held_back_error=held,
        per_in_flight_frac=slope,
        hints=tuple(_hints(r2, held, slope, in_flight, size, residual, rows)),
        sizes=size[shown],
        residuals_frac=residual[shown],
        in_flight=in_flight[shown],
    )


def _least_squares(size: FloatArray, took_s: FloatArray) -> tuple[float, float, FloatArray]:
    """(fixed_s, unit_s, weights [rows]) of the least squared relative errors."""
    weight = 1.0 / took_s.mean() * np.ones(len(size))
    fixed_s = unit_s = 0.0
    for _ in range(_ROUNDS):
        (fixed_s, unit_s), _ = nnls(np.stack([weight, weight * size], axis=1), weight * took_s)
        weight = 1.0 / np.maximum(fixed_s + unit_s * size, 1e-3 * took_s.mean())
    return float(fixed_s), float(unit_s), weight


def _half_widths(size: FloatArray, error_s: FloatArray, weight: FloatArray) -> tuple[float, float]:
    """95 % half-widths of both parts: the sandwich estimator, with the factor n ÷ (n − 2)."""
    # The normal matrix of rows weight × (1, size), and its inverse, by hand: two by two.
    one, first, second = (float((weight**2 * size**k).sum()) for k in (0, 1, 2))
    determinant = one * second - first**2
    if determinant <= 0.0:
        return math.inf, math.inf
    n, scores = len(size), weight**2 * error_s
    influence = ((second - first * size) * scores / determinant, (one * size - first) * scores / determinant)
    scale = student_t95(n - 2) * math.sqrt(n / max(1, n - 2))
    fixed_s, unit_s = (scale * math.sqrt(float((part**2).sum())) for part in influence)
    return fixed_s, unit_s


def _held_back_error(size: FloatArray, took_s: FloatArray) -> float | None:
    cut = round(len(size) * (1.0 - HELD_FRAC))
    if cut < LEAST_ROWS:
        return None
    fixed_s, unit_s, _ = _least_squares(size[:cut], took_s[:cut])
    return float(np.median(np.abs(fixed_s + unit_s * size[cut:] - took_s[cut:]) / took_s[cut:]))


def _slope(x: FloatArray, y: FloatArray) -> float:
    spread = float(((x - x.mean()) ** 2).sum())
    return float(((x - x.mean()) * (y - y.mean())).sum()) / spread if spread > 0 else 0.0


def _hints(
    r2: float,
    held: float | None,
    slope: float,
    in_flight: FloatArray,
    size: FloatArray,
    residual: FloatArray,
    rows: pl.DataFrame,
) -> Iterator[str]:
    """Where the model does not fit, and what to do then."""
    grown = slope * float(np.quantile(in_flight, 0.9) - np.quantile(in_flight, 0.1))
    if grown > _LOADED:
        yield (
            f"recorded times grow by {100 * slope:.2g} % of the fitted with each further request in flight: "
            "they include waiting, or the server slows as it serves more. The model has a slot per request; "
            "fit rows of low load only with --max-in-flight N"
        )
    order = np.argsort(size)
    thirds = [float(np.median(part)) for part in np.array_split(residual[order], 3)]
    if max(thirds[0], thirds[2]) - thirds[1] > _LOADED or thirds[1] - min(thirds[0], thirds[2]) > _LOADED:
        shape = ", ".join(f"{100 * part:+.0f} %" for part in thirds)
        yield f"not a straight line in the size: median errors of small, middle and large sizes are {shape}"
    tokens = {"prompt_tokens", "output_tokens"} <= set(rows.columns)
    if tokens and (told := _prompt_hint(rows, residual)) is not None:
        yield told
    if r2 < _POOR_R2 or (held is not None and held > _POOR_ERROR):
        error = "" if held is None else f", held-back error {100 * held:.0f} %"
        yield f"the size explains little of the times (R² {r2:.2f}{error}): predictions will be rough"


def _prompt_hint(rows: pl.DataFrame, residual: FloatArray) -> str | None:
    """The gain of another weight of prompt tokens, if it is much."""
    known = rows.drop_nulls(["prompt_tokens", "output_tokens"])
    if known.height < LEAST_ROWS or known.height < rows.height:
        return None
    took_s = known["recorded_s"].to_numpy()
    names = ("output_tokens", "prompt_tokens")
    parts = [np.ones(known.height), *(known[name].to_numpy().astype(float) for name in names)]
    weight = 1.0 / np.maximum(took_s, 1e-9)
    (_, output_s, prompt_s), _ = nnls(np.stack(parts, axis=1) * weight[:, None], took_s * weight)
    if output_s <= 0:
        return None
    frac = prompt_s / output_s
    size = parts[1] + frac * parts[2]
    fixed_s, unit_s, _w = _least_squares(size, took_s)
    fitted_s = fixed_s + unit_s * size
    before, after = float(np.median(np.abs(residual))), float(np.median(np.abs(took_s / fitted_s - 1.0)))
    if after > 0.8 * before:
        return None
    return (
        f"a prompt token weighs {frac:.3g} of an output token here: with prompt_token_frac {frac:.3g} the"
        f"  median error falls from {100 * before:.0f} % to {100 * after:.0f} %"
    )


def _with_fits(part: ClusterPart, fits: list[ServiceFit]) -> ClusterPart:
    """The cluster with fitted classes; a type without a fit scales that of the nearest speed."""
    types = part.cluster.types
    classes: dict[str, Any] = {name: dict(service) for name, service in part.classes.items()}
    for name in dict.fromkeys(fit.class_name for fit in fits):
        own = {fit.node_type: fit for fit in fits if fit.class_name == name}
        before = classes.get(name, {})
        fixed_s, unit_s = {}, {}
        for kind, of_type in types.items():
            told = part.classes[name].service_on(kind, of_type.speed) if name in part.classes else (0.0, 0.0)
            if told is None:  # it cannot serve this class
                continue
            like = min(own, key=lambda other: abs(math.log(types[other].speed / of_type.speed)))
            ratio = 1.0 if kind in own else types[like].speed / of_type.speed
            fit = own.get(kind, own[like])
            fixed_s[kind], unit_s[kind] = fit.fixed_s * ratio, fit.unit_s * ratio
        classes[name] = {**before, "fixed_s": fixed_s, "unit_s": unit_s}
    return part.cluster_part(classes=classes)
