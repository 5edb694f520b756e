"""How the server combines the updates of sites, coordinate by coordinate.

`summed` is the one place where updates are added; all rules but `mean` need them one by one.

Sources: H. B. McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
AISTATS 2017, algorithm 1 (`mean` with weights by rows). D. Yin et al., "Byzantine-Robust Distributed
Learning: Towards Optimal Statistical Rates", ICML 2018, definitions 1 and 2 (`median`, `trimmed-mean`).
Z. Sun et al., "Can You Really Backdoor Federated Learning?", 2019, section 5 (bound on norms).

Deviations: weights count by coordinate, so that a site without long prompts does not hold back what others
learn of them; sites without rows at a coordinate are no part of its median or its trimmed mean. The bound on
norms is a multiple of the round's median norm, as updates become smaller from round to round.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
RuleName = Literal["mean", "median", "trimmed-mean"]
ROBUST_FROM: Final = 3  # sites at a coordinate from which a median or a trimmed mean bounds a liar


class Update(NamedTuple):
    """What a site answers in a round: a change of each number, and the rows behind it, [numbers] both."""

    values: Floats
    weights: Floats


@dataclass(frozen=True)
class Rule:
    """How updates are combined.

    Attributes:
        name: `mean`; `median` and `trimmed-mean` count sites, not rows.
        weights: of a mean: by `rows`, or `equal` for all sites with rows.
        rows_max: rows that a site counts for at most, whatever it says; inf = no bound.
        clip: longest update, as a multiple of the round's median length; inf = no bound.
        trim_frac: of the sites at a coordinate, left out at each end by the trimmed mean.
    """

    name: RuleName = "mean"
    weights: Literal["rows", "equal"] = "rows"
    rows_max: float = np.inf
    clip: float = np.inf
    trim_frac: float = 0.2


def combined(updates: Mapping[str, Update], rule: Rule) -> Update:
    """The updates of a round as one: changes, and the rows or sites behind them. By name, so in one order."""
    given = [counted(updates[site], rule) for site in sorted(updates)]
    longest = rule.clip * _median_length(given) if np.isfinite(rule.clip) else np.inf
    given = [clipped(update, longest) for update in given]
    total = summed(given)
    if rule.name == "mean":
        return Update(ratio(total.values, total.weights), total.weights)
    values = np.stack([update.values for update in given])
    known = np.stack([update.weights for update in given]) > 0.0
    found = np.zeros(values.shape[1])
    for k in np.flatnonzero(known.any(axis=0)):
        found[k] = _middle(np.sort(values[known[:, k], k]), rule)
    return Update(found, total.weights)


def counted(update: Update, rule: Rule) -> Update:
    """The update with the weights that the rule grants it."""
    granted = np.minimum(update.weights, rule.rows_max) if rule.weights == "rows" else update.weights > 0.0
    return Update(update.values, granted.astype(np.float64))


def clipped(update: Update, longest: float) -> Update:
    """The update, shortened to this length."""
    length = _length(update)
    return update if length <= longest else Update(update.values * (longest / length), update.weights)


def summed(updates: Collection[Update]) -> Update:
    """Σ weight × value, and Σ weight."""
    weights = np.stack([update.weights for update in updates])
    values = np.stack([update.values for update in updates])
    return Update((weights * values).sum(axis=0), weights.sum(axis=0))


def ratio(above: Floats, below: Floats) -> Floats:
    """Means from Σ weight × value and Σ weight; 0 where there is no weight."""
    return np.divide(above, below, out=np.zeros(len(above)), where=below > 0.0)


def _length(update: Update) -> float:
    """Euclidean length of what counts."""
    return float((np.where(update.weights > 0.0, update.values, 0.0) ** 2).sum() ** 0.5)


def _median_length(updates: Collection[Update]) -> float:
    return float(np.median([_length(update) for update in updates]))


def _middle(values: Floats, rule: Rule) -> float:
    """Median or trimmed mean of sorted values."""
    if rule.name == "median":
        return float(np.median(values))
    cut = min(int(rule.trim_frac * len(values)), (len(values) - 1) // 2)
    return float(values[cut : len(values) - cut].mean())
