"""The results of a comparison: every policy over all seeds, with confidence intervals."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from trimtab.errors import MissingExtra, UsageError
from trimtab.experiments.compare.kind import AnyKind, PolicySpec, Settings
from trimtab.experiments.compare.tasks import BoundResult, RunResult
from trimtab.experiments.compare.workfolder import Workfolder
from trimtab.experiments.provenance import made_by
from trimtab.metrics import RANKED_FROM, Estimate, mean_ci95
from trimtab.validation.names import nearest
from trimtab.version import versions

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class PolicyResult:
    """One policy over all seeds at the settings' own load."""

    policy: str
    metrics: dict[str, Estimate]
    distance_frac: Estimate  # over the lower bound
    served_frac: float  # mean over the seeds, of the items that could be served
    runs: tuple[RunResult, ...] = field(repr=False)  # one per seed
    is_seedless: bool = False  # no seed changes its runs: intervals are of one run

    @property
    def is_ranked(self) -> bool:
        """Whether the policy served enough for a rank: means over few items look better than they are."""
        return not self.served_frac < RANKED_FROM


@dataclass(frozen=True)
class SweepPoint:
    """One policy at one load, over all seeds."""

    policy: str
    load: float
    metrics: dict[str, Estimate]
    runs: tuple[RunResult, ...] = field(default=(), repr=False)  # one per seed


@dataclass(frozen=True, slots=True)
class OneMore:
    """One node more of a type: its price, and the change of mean completion, paired over seeds."""

    node_type: str
    usd_per_hour: float
    change_s: Estimate


@dataclass(frozen=True)
class Comparison:
    """The results of a comparison. `results` is in the order of the given policies."""

    kind: AnyKind
    scenario: Settings
    seeds: tuple[int, ...]
    offered_load: float
    n_items: int  # such as requests, of one seed
    results: tuple[PolicyResult, ...]
    bounds: tuple[BoundResult, ...]  # one per seed; empty where none holds
    sweep: tuple[SweepPoint, ...]
    elapsed_s: float
    folder: Workfolder | None = None  # the records, until the results are written
    specs: tuple[PolicySpec, ...] = ()  # the policies as given, in the order of `results`

    def __repr__(self) -> str:
        """The objective of every policy, best first."""
        title = f"Comparison on {self.scenario.name}: {self.n_items:,} {self.kind.items}"
        lines = [f"{title}, load {self.offered_load:.3g}, seeds {_listed(self.seeds)}"]
        width, objective = max(len(r.policy) for r in self.results), self.kind.objective
        for r in self.ranked():
            mean = _short(r.metrics[objective], self.kind.metrics[objective].unit, 1.0)
            lines.append(f"  {r.policy:{width}}  {self.kind.objective_title} {mean}")
            if np.isfinite(r.distance_frac.mean):
                lines[-1] += f", {_short(r.distance_frac, '%', 100.0)} above the lower bound"
        return "\n".join(lines)

    @property
    def bound(self) -> dict[str, Any]:
        """Lower bound on the objective, over the seeds; values are None where none holds."""
        objective = self.kind.objective
        if not self.bounds:
            return {objective: None, "ci95": None, "method": None, "assumptions": [], "per_seed": []}
        mean = mean_ci95([b.value for b in self.bounds])
        return {
            objective: mean.mean,
            "ci95": mean.ci95,
            "method": ", ".join(sorted({b.method for b in self.bounds})),
            "assumptions": list(self.bounds[0].assumptions),
            "per_seed": [{"seed": b.seed, objective: b.value} for b in self.bounds],
        }

    def ranked(self, metric: str | None = None) -> list[PolicyResult]:
        """Results, best first by one metric, without a rank last; default: the objective.

        Raises UsageError for an unknown metric.
        """
        metrics, by = self.kind.metrics, metric or self.kind.objective
        if by not in metrics:
            raise UsageError("no such metric", field="sort", value=by, expected=nearest(by, metrics))
        sign = -1.0 if metrics[by].better == "higher" else 1.0

        def key(result: PolicyResult) -> tuple[bool, float]:
            mean = result.metrics[by].mean
            return not result.is_ranked, float("inf") if np.isnan(mean) else sign * mean

        return sorted(self.results, key=key)

    def table(self, shape: Literal["summary", "wide", "long"] = "summary") -> pl.DataFrame:
        """The figures as a table.

        summary: one row per policy and metric: policy, metric, mean, ci95. wide: one row per policy, with a
        column for each metric and one for its half-width, NAME_ci95. long: one row per policy, load, seed and
        metric: policy, load, seed, metric, value; the loads of the sweep are part of it.

        Raises UsageError for another shape.
        """
        import polars as pl

        if shape == "wide":
            return pl.DataFrame([_wide(result) for result in self.results], infer_schema_length=None)
        if shape == "long":
            return pl.DataFrame(self._long_rows(), schema=_LONG, orient="row")
        if shape != "summary":
            raise UsageError("no such shape", field="shape", value=shape, expected="summary, wide or long")
        rows = [
            {"policy": r.policy, "metric": name, "mean": value.mean, "ci95": value.ci95}
            for r in self.results
            for name, value in r.metrics.items()
        ]
        return pl.DataFrame(
            rows, schema={"policy": pl.String, "metric": pl.String, "mean": pl.Float64, "ci95": pl.Float64}
        )

    def _long_rows(self) -> list[tuple[str, float, int, str, float]]:
        swept = (run for point in self.sweep for run in point.runs if run.load is not None)
        runs = itertools.chain((run for result in self.results for run in result.runs), swept)
        return [
            (run.policy, self.offered_load if run.load is None else run.load, run.seed, name, value)
            for run in runs
            for name, value in run.metrics.items()
        ]

    def to_pandas(self, shape: Literal["summary", "wide", "long"] = "wide") -> Any:
        """The table of this shape as a data frame of pandas. Raises MissingExtra without pandas."""
        try:
            import pandas as pd
        except ImportError as error:
            expected = "pip install pandas, or .table(), a data frame of polars"
            raise MissingExtra("pandas is not installed", expected=expected) from error
        table = self.table(shape)
        return pd.DataFrame({name: table[name].to_list() for name in table.columns})

    @property
    def items_key(self) -> str:
        """The name of the items in `results.json` and of the folder of records."""
        return self.kind.items.replace(" ", "_")

    def to_dict(self) -> dict[str, Any]:
        """The content of `--json` and `results.json`."""
        return {
            "scenario": self.scenario.name,
            "scenario_hash": self.scenario.hash(),
            "seeds": list(self.seeds),
            self.items_key: self.n_items,
            "offered_load": self.offered_load,
            "bound": self.bound,
            "results": [_result_dict(r) for r in self.results],
            "sweep": [
                {"policy": p.policy, "load": p.load, "metrics": _estimates(p.metrics)} for p in self.sweep
            ],
            "notes": self.notes(),
            "made_by": made_by(self.scenario.content(), self._policies()),
            "versions": versions(),
            "elapsed_s": self.elapsed_s,
        }

    def _policies(self) -> list[tuple[str, Sequence[object]]]:
        """Each policy's name, as it can be given again, and its objects."""
        named = zip(self.specs, self.results, strict=True) if self.specs else ()
        return [
            (spec if isinstance(spec, str) else result.policy, self.kind.find(spec)) for spec, result in named
        ]

    def notes(self) -> list[str]:
        """Notes for readers of the figures."""
        return self.kind.notes(self.scenario, self.ranked(), is_swept=bool(self.sweep))


_LONG = {"policy": str, "load": float, "seed": int, "metric": str, "value": float}


def _wide(result: PolicyResult) -> dict[str, str | float | None]:
    row: dict[str, str | float | None] = {"policy": result.policy}
    for name, value in result.metrics.items():
        row |= {name: value.mean, f"{name}_ci95": value.ci95}
    return row


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds)) if len(seeds) <= 5 else f"{seeds[0]}, {seeds[1]}, …, {seeds[-1]}"


def _short(value: Estimate, unit: str, factor: float) -> str:
    ci95 = f" ± {factor * value.ci95:.2g}" if value.ci95 else ""
    return f"{factor * value.mean:.4g}{ci95} {unit}"


def _result_dict(result: PolicyResult) -> dict[str, Any]:
    return {
        "policy": result.policy,
        "metrics": _estimates(result.metrics),
        "distance_to_bound_frac": _estimate(result.distance_frac),
        "served_frac": _number(result.served_frac),
        "is_ranked": result.is_ranked,
        "intervals": _interval_kinds(result),
        "per_seed": [
            {"seed": r.seed, "metrics": {k: _number(v) for k, v in r.metrics.items()}} for r in result.runs
        ],
    }


def _interval_kinds(result: PolicyResult) -> dict[str, str]:
    """Metric → what its interval is over, for those that have one."""
    kinds = {}
    for name, value in result.metrics.items():
        if value.ci95 is not None:
            of_run = "block bootstrap" if "_p99" in name else "batch means"
            kinds[name] = of_run if result.is_seedless else "seeds"
    return kinds


def _estimates(metrics: Mapping[str, Estimate]) -> dict[str, Any]:
    return {name: _estimate(value) for name, value in metrics.items()}


def _estimate(value: Estimate) -> dict[str, float | None]:
    return {"mean": _number(value.mean), "ci95": value.ci95}


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
