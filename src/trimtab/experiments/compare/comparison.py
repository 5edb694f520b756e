"""What a comparison found: every policy over all seeds, with confidence intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trimtab.errors import UsageError
from trimtab.experiments.compare.task_pool import Workfolder
from trimtab.experiments.compare.tasks import BoundResult, RunResult
from trimtab.experiments.scenario import Scenario
from trimtab.experiments.serving.warnings import few_served_note, unfit_note, unserved_note
from trimtab.metrics import METRICS, RANKED_FROM, Estimate, mean_ci95
from trimtab.version import versions

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class PolicyResult:
    """One policy over all seeds at the scenario's own load."""

    policy: str
    metrics: dict[str, Estimate]
    distance_frac: Estimate  # over the lower bound
    served_frac: float  # mean over the seeds, of the requests that some node could serve
    runs: tuple[RunResult, ...] = field(repr=False)  # one per seed

    @property
    def is_ranked(self) -> bool:
        """Whether it served enough to be compared with others: the means of fewer requests flatter it."""
        return not self.served_frac < RANKED_FROM


@dataclass(frozen=True)
class SweepPoint:
    """One policy at one load, over all seeds."""

    policy: str
    load: float
    metrics: dict[str, Estimate]


@dataclass(frozen=True)
class Comparison:
    """What `compare` found. `results` is in the order of the policies given."""

    scenario: Scenario
    seeds: tuple[int, ...]
    offered_load: float
    n_requests: int
    results: tuple[PolicyResult, ...]
    bounds: tuple[BoundResult, ...]  # one per seed; empty where none holds
    sweep: tuple[SweepPoint, ...]
    elapsed_s: float
    folder: Workfolder | None = None  # the request records, until the results are written

    def __repr__(self) -> str:
        """Mean completion of every policy, best first; `table` and `to_dict` have the rest."""
        title = f"Comparison on {self.scenario.name}: {self.n_requests:,} requests"
        lines = [f"{title}, load {self.offered_load:.3g}, seeds {_listed(self.seeds)}"]
        width = max(len(r.policy) for r in self.results)
        for r in self.ranked():
            mean = _short(r.metrics["completion_mean_s"], "s", 1.0)
            lines.append(f"  {r.policy:{width}}  mean completion {mean}")
            if np.isfinite(r.distance_frac.mean):
                lines[-1] += f", {_short(r.distance_frac, '%', 100.0)} above the lower bound"
        return "\n".join(lines)

    @property
    def bound(self) -> dict[str, Any]:
        """Lower bound on mean completion, over the seeds; values are None where none holds."""
        if not self.bounds:
            return {
                "completion_mean_s": None,
                "ci95": None,
                "method": None,
                "assumptions": [],
                "per_seed": [],
            }
        mean = mean_ci95([b.completion_mean_s for b in self.bounds])
        return {
            "completion_mean_s": mean.mean,
            "ci95": mean.ci95,
            "method": ", ".join(sorted({b.method for b in self.bounds})),
            "assumptions": list(self.bounds[0].assumptions),
            "per_seed": [{"seed": b.seed, "completion_mean_s": b.completion_mean_s} for b in self.bounds],
        }

    def ranked(self, metric: str = "completion_mean_s") -> list[PolicyResult]:
        """Results, best first by one metric, without a rank last. Raises UsageError for an unknown one."""
        if metric not in METRICS:
            raise UsageError("no such metric", field="sort", value=metric, expected=", ".join(METRICS))
        sign = -1.0 if METRICS[metric].better == "higher" else 1.0

        def key(result: PolicyResult) -> tuple[bool, float]:
            mean = result.metrics[metric].mean
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
        """What `--json` prints and `results.json` holds."""
        return {
            "scenario": self.scenario.name,
            "scenario_hash": self.scenario.hash(),
            "seeds": list(self.seeds),
            "requests": self.n_requests,
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
        """What a reader of the figures must know."""
        notes = self._notes_on_recording()
        by_seed = {run.seed: run for result in self.results for run in result.runs if run.n_fits_no_node}
        if by_seed:
            first = by_seed[min(by_seed)]
            count = sum(run.n_fits_no_node for run in by_seed.values())
            notes.append(unfit_note(count, first.fits_no_node, f"seed {first.seed}: "))
        unranked = {r.policy: r.served_frac for r in self.ranked() if not r.is_ranked}
        return notes + ([few_served_note(unranked)] if unranked else [])

    def _notes_on_recording(self) -> list[str]:
        trace = self.scenario.workload.trace
        if trace is None:
            return []
        from trimtab.experiments.scenario.trace_rows import unserved_rows
        from trimtab.traces.gateway_recording import is_recording

        if not is_recording(Path(trace.file)):
            return []

        requests, by_outcome = unserved_rows(trace)
        return [unserved_note(requests, by_outcome)] if by_outcome else []


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
        "per_seed": [
            {"seed": r.seed, "metrics": {k: _number(v) for k, v in r.metrics.items()}} for r in result.runs
        ],
    }


def _estimates(metrics: dict[str, Estimate]) -> dict[str, Any]:
    return {name: _estimate(value) for name, value in metrics.items()}


def _estimate(value: Estimate) -> dict[str, float | None]:
    return {"mean": _number(value.mean), "ci95": value.ci95}


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
