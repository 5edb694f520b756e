"""A shadow policy beside the live one: three figures, never one number.

- how often it would have chosen another node: exact;
- what the completion of this one request would have been there, by the estimates: model-based, and blind to
  what its choice would have done to all later requests;
- what a replay of the recorded traffic gives, with an interval, next to how well a replay of the live policy
  agrees with what happened. Where it does not agree the difference is hidden.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.gateway.children import LEAST_PRIORITY, said_by
from trimtab.gateway.record.intervals import BatchMeans, Interval

REPLAY_TIMEOUT_S = 600.0
NOTED = 256  # decisions that are counted together: one by one takes several times as long


@dataclass(frozen=True, slots=True)
class ShadowFigures:
    """What was counted decision by decision."""

    decisions: int
    differ: int
    disagreement_frac: float  # exact; nan before the first decision
    predicted_difference_s: Interval  # model-based: shadow − live, per decision that both gave a node
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
        self._predicted = BatchMeans()
        self._live_total_s = 0.0  # of the decisions in `_predicted`
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
        self._predicted.add_all(difference_s[is_predicted].tolist())

    def figures(self) -> ShadowFigures:
        """So far."""
        self._count()
        n = self._decisions
        frac = self._differ / n if n else float("nan")
        predicted, count = self._predicted.interval(), self._predicted.count
        live_s = self._live_total_s / count if count else 0.0
        of_live_frac = predicted.mean / live_s if live_s > 0.0 else None
        return ShadowFigures(n, self._differ, frac, predicted, count, of_live_frac)


_FOREVER_S = 1e9  # an estimate for a node that cannot serve it


@dataclass(frozen=True, slots=True)
class ReplayFigures:
    """What the replay of a recorded window gave: shadow − live, in seconds of mean completion."""

    live_vs_replay_error_frac: float
    live_mean_s: float  # of the live policy, replayed
    difference_s: float | None  # None where hidden
    interval: tuple[float, float] | None  # 95 %; None where hidden or unknown
    hidden: bool
    requests: int


async def replay_difference(
    recording: Path, live_policy: str, shadow_policy: str, *, timeout_s: float = REPLAY_TIMEOUT_S
) -> ReplayFigures:
    """Replay a recording under both policies, in another process.

    Raises:
        ChildError: the process failed; its message says why.
        TimeoutError: it took too long and was ended.
    """
    policies = ("--policy", live_policy, "--policy", shadow_policy)
    command = ("-m", "trimtab", "replay", "--json", *policies, "--", str(recording))
    return figures_of(json.loads(await said_by(*command, timeout_s=timeout_s, priority=LEAST_PRIORITY)))


def figures_of(said: dict[str, Any]) -> ReplayFigures:
    """The figures in what `trimtab replay --json` prints for two policies, the live one first."""
    live, shadow = said["policies"]
    hidden, difference = bool(said["is_hidden"]), shadow["difference_s"]
    interval = None
    if not hidden and difference["ci95"] is not None:
        interval = (difference["mean"] - difference["ci95"], difference["mean"] + difference["ci95"])
    return ReplayFigures(
        live_vs_replay_error_frac=float(live["error_frac"]["mean_s"]),
        live_mean_s=float(live["completions"]["mean_s"]),
        difference_s=None if hidden else difference["mean"],
        interval=interval,
        hidden=hidden,
        requests=int(said["requests"]),
    )
