"""A shadow policy beside the live one: two figures, never one number.

- how often it would have chosen another node: exact;
- what the completion of this one request would have been there, by the estimates: model-based, and blind to
  what its choice would have done to all later requests. `trimtab replay` tells that, of a recording.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

NOTED = 256  # decisions that are counted together: one by one takes several times as long


@dataclass(frozen=True, slots=True)
class ShadowFigures:
    """What was counted decision by decision."""

    decisions: int
    differ: int
    disagreement_frac: float  # exact; nan before the first decision
    predicted_difference_s: float  # mean, model-based: shadow − live, per decision that both gave a node
    predicted: int  # decisions behind it
    predicted_difference_frac: float | None  # of the live choice's mean; None before there is one


Compared = tuple[float, float, float, float, float]
"""A decision of both: nodes that the live policy sent it to, that its session lives on and that the shadow
chose, −1 = none; predicted completions from now on the first and on the last, in seconds."""


class ShadowTally:
    """Counts as decisions are made; constant memory."""

    def __init__(self) -> None:
        self._decisions = 0
        self._differ = 0
        self._predicted = 0  # decisions behind the two sums
        self._difference_total_s = 0.0
        self._live_total_s = 0.0
        self._noted: list[Compared] = []  # and not counted yet

    @property
    def counts(self) -> tuple[int, int]:
        """Decisions, and those that differ."""
        self._count()
        return self._decisions, self._differ

    def note(self, decisions: Iterable[Compared]) -> None:
        """Decisions of both policies."""
        self._noted += decisions
        if len(self._noted) >= NOTED:
            self._count()

    def _count(self) -> None:
        """Count what was noted."""
        if not self._noted:
            return
        live_idx, affinity_node_idx, shadow_idx, live_s, shadow_s = np.array(self._noted).T
        self._noted.clear()
        is_home = (live_idx >= 0) & (live_idx == affinity_node_idx)  # by session affinity
        differs = (live_idx != shadow_idx) & ~is_home
        self._decisions += len(live_idx)
        self._differ += int(differs.sum())
        with np.errstate(invalid="ignore"):  # two estimates that are infinite
            difference_s = np.where(is_home, 0.0, shadow_s - live_s)
        is_held = differs & ((live_idx < 0) | (shadow_idx < 0))
        is_predicted = (np.abs(difference_s) < _FOREVER_S) & ~is_held & (np.abs(live_s) < np.inf)
        self._live_total_s += float(live_s[is_predicted].sum())
        self._difference_total_s += float(difference_s[is_predicted].sum())
        self._predicted += int(is_predicted.sum())

    def figures(self) -> ShadowFigures:
        """So far."""
        self._count()
        n = self._decisions
        frac = self._differ / n if n else float("nan")
        total_s, count = self._difference_total_s, self._predicted
        mean_s = total_s / count if count else float("nan")
        of_live_frac = total_s / self._live_total_s if self._live_total_s > 0.0 else None
        return ShadowFigures(n, self._differ, frac, mean_s, count, of_live_frac)


_FOREVER_S = 1e9  # an estimate for a node that cannot serve it
