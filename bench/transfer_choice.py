"""What a transfer's figures say: samples to a result, and how good a choice by distance is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from trimtab.learn.transfer import WAYS, Way, way_of

ANEW: Final = "anew"  # key of a target's figures without transfer; the others are families of sources
PRICE: Final = 0.005  # of a training, in loss: it must gain at least half a percent
SHARE: Final = 0.95  # of the final result
RESAMPLES: Final = 1_000


class Pair(NamedTuple):
    """Weights of one family on a target of another, or of the same."""

    target: str
    source: str
    total: float  # of their similarity
    losses: Mapping[Way, float]  # mean over unseen clusters; below 0 is better than the rule

    def cost(self, way: Way) -> float:
        """The loss, with the price of a training."""
        return self.losses[way] + (0.0 if way == "as-is" else PRICE)

    def regret(self, way: Way) -> float:
        """By how much another way is better."""
        return self.cost(way) - min(self.cost(each) for each in WAYS)


def pairs_of(targets: Mapping[str, Any], budget: int) -> list[Pair]:
    """All pairs, judged after so many generations."""
    found = []
    for target, of in targets.items():
        anew = mean_loss(of[ANEW]["curve"][str(budget)])
        for source, figures in of.items():
            if source != ANEW:
                tuned = mean_loss(figures["curve"][str(budget)])
                losses = {"as-is": mean_loss(figures["as_is"]), "fine-tuned": tuned, "anew": anew}
                found.append(Pair(target, source, figures["similarity"]["total"], losses))
    return found


def mean_loss(rows: Sequence[Sequence[float]]) -> float:
    """Of rows (loss, mean, p99), one a cluster."""
    return math.fsum(row[0] for row in rows) / len(rows)


def fitted(pairs: Iterable[Pair]) -> tuple[float, float]:
    """The thresholds with the least mean cost; of equal ones those that keep most."""
    known = list(pairs)
    totals = sorted({pair.total for pair in known})
    ends = [math.inf, *((a + b) / 2.0 for a, b in reversed(list(itertools.pairwise(totals)))), 0.0]
    options = [(below, anew) for anew in ends for below in ends if below <= anew]
    return min(options, key=lambda o: round(math.fsum(p.cost(way_of(p.total, *o)) for p in known), 9))


def choices(pairs: Sequence[Pair]) -> dict[str, list[tuple[Pair, Way]]]:
    """Rule of choice → what it chooses for each pair; thresholds are fitted without the target's family."""
    by_distance = []
    for pair in pairs:
        others = [p for p in pairs if pair.target not in (p.target, p.source)]
        by_distance.append((pair, way_of(pair.total, *fitted(others))))
    constant = {f"always {way}": [(pair, way) for pair in pairs] for way in WAYS}
    return {"by the distance": by_distance, **constant}


def samples_to(curve: Mapping[str, float], gain: float, each: int) -> float:
    """Samples after which a curve (generation → loss) is at this gain, linear between marks; inf = never."""
    marks = sorted((int(g), loss) for g, loss in curve.items())
    if -marks[0][1] >= gain:
        return 0.0
    for (g, loss), (after, then) in itertools.pairwise(marks):
        if -then >= gain:
            return each * (g + (after - g) * (gain + loss) / (loss - then))
    return math.inf


def pooled(targets: Mapping[str, Any], draws: Mapping[str, Any] | None = None) -> dict[str, dict[str, float]]:
    """Mean curves over targets: anew, from the same family, from others.

    `draws`: target → positions of the clusters to count; None = all once.
    """
    found: dict[str, dict[str, list[float]]] = {}
    for target, of in targets.items():
        for source, figures in of.items():
            name = source if source == ANEW else "same family" if source == target else "other families"
            for mark, rows in figures["curve"].items():
                taken = rows if draws is None else [rows[k] for k in draws[target]]
                found.setdefault(name, {}).setdefault(mark, []).append(mean_loss(taken))
    return {
        name: {mark: math.fsum(losses) / len(losses) for mark, losses in curve.items()}
        for name, curve in found.items()
    }


def resampled(targets: Mapping[str, Any]) -> list[dict[str, dict[str, float]]]:
    """`pooled` over clusters drawn with replacement, the same ones for all curves of a target."""
    rng, found = np.random.default_rng(0), []
    for _ in range(RESAMPLES):
        draws = {}
        for target, of in targets.items():
            n = len(of[ANEW]["curve"]["0"])
            draws[target] = rng.integers(n, size=n).tolist()
        found.append(pooled(targets, draws))
    return found
