"""How far decisions move on a shared trace: the order of policies, their figures, the cheapest fleet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from scipy.stats import kendalltau

from trimtab.experiments.compare import Comparison
from trimtab.experiments.serving.sizing import FleetSizing

MEAN, P99 = "completion_mean_s", "completion_p99_s"
BEST: Final = 5


@dataclass(frozen=True)
class PolicyMoved:
    """A policy on both traces, seconds: means over the seeds, with half-widths of their 95 % intervals."""

    policy: str
    mean_s: tuple[float, float]  # original, shared
    mean_ci95_s: tuple[float, float]
    p99_s: tuple[float, float]
    p99_ci95_s: tuple[float, float]


@dataclass(frozen=True)
class FleetMoved:
    """The cheapest fleet on each trace: original, shared."""

    objectives: str
    fleet: tuple[str, str]
    usd_per_hour: tuple[float, float]


@dataclass(frozen=True)
class DecisionsMoved:
    """What changes; `mean_tau` and `p99_tau` are Kendall's τ between the orders of the policies."""

    policies: int
    seeds: int
    mean_tau: float
    p99_tau: float
    best: tuple[str, str]
    regret_frac: float  # mean of the shared trace's best policy over the least, on the original, minus 1
    best_five: tuple[PolicyMoved, ...]  # on the original
    fleet: FleetMoved | None = None

    def to_dict(self) -> dict[str, Any]:
        """The same as nested dicts, lists and numbers."""
        return asdict(self)


def decisions_moved(
    original: tuple[Comparison, FleetSizing | None], shared: tuple[Comparison, FleetSizing | None]
) -> DecisionsMoved:
    """What comparisons of the same policies and seeds on two traces, and their fleets, say differently."""
    first, second = (
        {r.policy: r.metrics for r in comparison.results if r.is_ranked}
        for comparison, _ in (original, shared)
    )
    both = [name for name in first if name in second]

    def tau(metric: str) -> float:
        return float(kendalltau(*([of[p][metric].mean for p in both] for of in (first, second))).statistic)

    in_order = sorted(both, key=lambda policy: first[policy][MEAN].mean)
    best = in_order[0], min(both, key=lambda policy: second[policy][MEAN].mean)
    return DecisionsMoved(
        policies=len(both),
        seeds=len(original[0].seeds),
        mean_tau=tau(MEAN),
        p99_tau=tau(P99),
        best=best,
        regret_frac=first[best[1]][MEAN].mean / first[best[0]][MEAN].mean - 1.0,
        best_five=tuple(_moved(policy, first, second) for policy in in_order[:BEST]),
        fleet=_fleets_moved([sizing for _, sizing in (original, shared) if sizing is not None]),
    )


def _fleets_moved(sizings: Sequence[FleetSizing]) -> FleetMoved | None:
    """The cheapest fleet of each, or the nearest where none meets the objectives; None without fleets."""
    if not sizings:
        return None
    first, second = (sizing.best or sizing.nearest for sizing in sizings)
    objectives = ", ".join(map(str, sizings[0].objectives))
    words, usd_per_hour = (first.in_words(), second.in_words()), (first.usd_per_hour, second.usd_per_hour)
    return FleetMoved(objectives, words, usd_per_hour)


def _moved(policy: str, first: dict[str, Any], second: dict[str, Any]) -> PolicyMoved:
    mean, other = first[policy], second[policy]

    def both(metric: str, part: str) -> tuple[float, float]:
        return tuple(getattr(of[metric], part) or 0.0 for of in (mean, other))  # type: ignore[return-value]

    return PolicyMoved(policy, both(MEAN, "mean"), both(MEAN, "ci95"), both(P99, "mean"), both(P99, "ci95"))
