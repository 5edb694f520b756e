"""Hybrid: a heuristic with a threshold that a bandit tunes, and the plain rule where it does better."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trimtab.compiled.kernel import kernel
from trimtab.domain.cluster import Cluster, Floats
from trimtab.domain.parameters import Fraction, NonNegative, Positive
from trimtab.domain.planning import History
from trimtab.domain.view import Memory, Plan, View, empty_plan, memory, needs_of, own_s
from trimtab.policies.load_aware.least_expected_completion import note_waits
from trimtab.policies.shared.selection import NOTES, notes_room, rank_noted
from trimtab.policies.shared.unmet_needs import LoadsPolicy

THRESHOLDS = (math.inf, 0.5, 2.0, 6.0)  # in services; the first is the plain rule
ARMS = len(THRESHOLDS)
PERIODS = 16  # of which the policy still knows each request's arm
TRIED = 2.0  # periods of an arm that count as a trial of it
_LENGTH = 1 + 2 * ARMS + 2 * PERIODS  # of plan.params: threshold, plays, losses, begins and arms of periods


def mean_losses(plays: Floats, losses: Floats) -> Floats:
    """Mean loss of each arm [arms]; nan where it was never played."""
    return np.divide(losses, plays, out=np.full(ARMS, np.nan), where=plays > 0.0)


def next_arm(plays: Floats, losses: Floats, caution: float, margin: float) -> int:
    """The arm of least loss minus its uncertainty bonus; the plain rule, 0, where that arm proved worse."""
    never = np.flatnonzero(plays <= 0.0)
    if len(never):
        return int(never[0])
    mean = mean_losses(plays, losses)
    usual = losses.sum() / plays.sum()
    bonus = caution * usual * np.sqrt(2.0 * math.log(max(plays.sum(), math.e)) / plays)
    arm = int(np.argmin(mean - bonus))
    has_failed = plays[arm] >= TRIED and mean[arm] > (1.0 - margin) * mean[0]
    return 0 if has_failed else arm


def score_period(history: History, begins_s: Floats, arms: Floats) -> tuple[Floats, Floats]:
    """Plays (shares) and losses (mean slowdowns) [arms] of work that finished since the last period began.

    A request counts for the arm under which it came. `begins_s`, `arms` [periods], the latest last; -1 is no
    period.
    """
    work, finish_s = history.work, history.finish_s
    period = np.searchsorted(begins_s, work["arrival_s"], side="right") - 1
    fresh = (finish_s > begins_s[-1]) & (period >= 0) & (work["estimate_s"] < np.inf)
    arm = arms[np.maximum(period, 0)]
    fresh &= arm >= 0
    total = max(1, int(fresh.sum()))
    slowdown = (finish_s[fresh] - work["arrival_s"][fresh]) / np.maximum(work["estimate_s"][fresh], 1e-9)
    chosen = arm[fresh].astype(np.int64)
    plays = np.bincount(chosen, minlength=ARMS) / total
    return plays, np.bincount(chosen, slowdown, minlength=ARMS) / total


@dataclass(frozen=True)
class HybridRules(LoadsPolicy):
    """Least completion; when every node is busy, node time costs more, from a wait that a bandit sets.

    Idea
        Rule: where every node would let the request wait for more than `threshold` of its best services,
        score(node) = wait + (1 + dearness) · (load + service), so that the request avoids nodes on which it
        takes long. Otherwise, and always under the plain rule (threshold inf), the score is the expected
        completion. Every `plan_period_s` discounted UCB chooses among the thresholds inf, 0.5, 2 and 6 by the
        mean slowdown (completion over best service) of finished requests that came under each. An arm that
        has been tried and is not at least `margin` better than the plain rule gives way to it.
    Source
        Aurélien Garivier, Eric Moulines: "On upper-confidence bound policies for non-stationary bandit
        problems", arXiv:0805.3415, 2008 (discounted UCB); "On upper-confidence bound policies for switching
        bandit problems", Algorithmic Learning Theory, 2011.
    Reads
        Past arrivals and when they ended; what `least-expected-completion` reads; plan.params.
    Cost
        O(nodes) a decision; a plan looks at 4096 past requests.
    When it wins / loses
        Wins where overload comes and goes and nodes are unrelated or models are loaded often. Slow to learn:
        a period must be some services long, and its mean depends on the traffic more than on the arm. Trials
        of bad arms cost time. At a light load no arm changes anything.
    Deviations from the source
        The arms are four thresholds of one rule, not policies; all requests of a period are one play, shared
        among the arms under which they came. Losses instead of rewards, in units of the mean loss instead of
        bounded. A request counts for the arm of its arrival, whenever it ends. The plain rule takes
        precedence.
    """

    name: ClassVar[str] = "hybrid-rules"
    plan_period_s: Positive = 60.0
    dearness: NonNegative = 1.0
    discount: Fraction = 0.95
    caution: NonNegative = 0.1
    margin: NonNegative = 0.0

    def init(self, cluster: Cluster) -> Memory:
        """The cost of node time under load; notes of the nodes."""
        return memory(params=[self.dearness], floats=notes_room(cluster.n_nodes))

    def plan(self, view: View, history: History, waiting: Any, rollout: Any) -> Plan:
        """The threshold of the next period, and all that the bandit remembers."""
        params, now_s = history.plan.params, float(view.context.now_s)
        if params.shape != (_LENGTH,):  # the first plan: the plain rule, and no period before
            begins_s, arms = np.full(PERIODS, -np.inf), np.full(PERIODS, -1.0)
            plays, losses, arm = np.zeros(ARMS), np.zeros(ARMS), 0
        else:
            plays, losses, begins_s, arms = np.split(params[1:], [ARMS, 2 * ARMS, 2 * ARMS + PERIODS])
            new_plays, new_losses = score_period(history, begins_s, arms)
            plays, losses = self.discount * plays + new_plays, self.discount * losses + new_losses
            arm = next_arm(plays, losses, self.caution, self.margin)
        begins_s, arms = np.append(begins_s[1:], now_s), np.append(arms[1:], float(arm))
        learned = np.concatenate([[THRESHOLDS[arm]], plays, losses, begins_s, arms])
        return empty_plan()._replace(params=learned)

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Rank all nodes by completion; own time costs more under load."""
        threshold = plan.params[0] if len(plan.params) > 0 else np.inf
        needs, floats = needs_of(work), memory.floats
        is_crowded = not note_waits(view, needs, floats) <= threshold * work.estimate_s
        factor = 1.0 + memory.params[0] if is_crowded else 1.0
        for j in range(view.context.n_nodes):
            floats[NOTES + j] += factor * own_s(view, needs, j)
        return int(rank_noted(floats, ranking, view.context.n_nodes))
