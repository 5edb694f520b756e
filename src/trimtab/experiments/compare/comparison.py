"""The results of a comparison: every policy over all seeds, with confidence intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from trimtab.errors import UsageError
from trimtab.experiments.compare.kind import AnyKind, Settings
from trimtab.experiments.compare.task_pool import Workfolder
from trimtab.experiments.compare.tasks import BoundResult, RunResult
from trimtab.metrics import RANKED_FROM, Estimate, mean_ci95
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
    is_seedless: bool = False  # no seed changes its runs: intervals are batch means of one

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
            raise UsageError("no such metric", field="sort", value=by, expected=", ".join(metrics))
        sign = -1.0 if metrics[by].better == "higher" else 1.0

        def key(result: PolicyResult) -> tuple[bool, float]:
            mean = result.metrics[by].mean
            return not result.is_ranked, float("inf") if np.isnan(mean) else sign * mean

        return sorted(self.results, key=key)

    def table(self) -> pl.DataFrame:
        """One row per policy and metric: policy, metric, mean, ci95."""
        import polars as pl

        rows = [
            {"policy": r.policy, "metric": name, "mean": value.mean, "ci95": value.ci95}
            for r in self.results
            for name, value in r.metrics.items()
        ]
        return pl.DataFrame(
            rows, schema={"policy": pl.String, "metric": pl.String, "mean": pl.Float64, "ci95": pl.Float64}
        )

    def to_dict(self) -> dict[str, Any]:
        """The content of `--json` and `results.json`."""
        return {
            "scenario": self.scenario.name,
            "scenario_hash": self.scenario.hash(),
            "seeds": list(self.seeds),
            self.kind.items: self.n_items,
            "offered_load": self.offered_load,
            "bound": self.bound,
            "results": [_result_dict(r) for r in self.results],
            "sweep": [
                {"policy": p.policy, "load": p.load, "metrics": _estimates(p.metrics)} for p in self.sweep
            ],
            "notes": self.notes(),
            "versions": versions(),
            "elapsed_s": self.elapsed_s,
        }

    def notes(self) -> list[str]:
        """Notes for readers of the figures."""
        return self.kind.notes(self.scenario, self.ranked())


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
        "intervals": "batch means" if result.is_seedless else "seeds",
        "per_seed": [
            {"seed": r.seed, "metrics": {k: _number(v) for k, v in r.metrics.items()}} for r in result.runs
        ],
    }


def _estimates(metrics: Mapping[str, Estimate]) -> dict[str, Any]:
    return {name: _estimate(value) for name, value in metrics.items()}


def _estimate(value: Estimate) -> dict[str, float | None]:
    return {"mean": _number(value.mean), "ci95": value.ci95}


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
