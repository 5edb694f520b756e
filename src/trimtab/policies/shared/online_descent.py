"""Numbers of a policy that it learns while it runs, within bounds, from rollouts: simulation optimisation.

Each number has a place from 0 to 1 within its bounds. A step simulates the recent past from the present
state three times with the same errors of estimates: at the start, which is the policy without learning, and
on both sides of the present places, all of which move at once. It then moves the places down the difference.

James Spall: "Multivariate stochastic approximation using a simultaneous perturbation gradient approximation",
IEEE Transactions on Automatic Control 37(3), 1992; directions from a Hadamard matrix: Shalabh Bhatnagar,
Michael Fu, Steven Marcus, I-Jeng Wang: "Two-timescale simultaneous perturbation stochastic approximation
using deterministic perturbation sequences", ACM Transactions on Modeling and Computer Simulation 13(2), 2003;
common random numbers: Nathan Kleinman, James Spall, Daniel Naiman: "Simulation-based optimization with
stochastic approximation using common random numbers", Management Science 45(11), 1999. Unlike there, gains
stay constant, because traffic changes, a step is bounded, and places that do worse than the start are left.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import numpy as np

from trimtab.domain.needs import Need
from trimtab.domain.parameters import Count, Fraction, NonNegative
from trimtab.domain.planning import History, Rollout, Variant
from trimtab.domain.policy import Policy
from trimtab.domain.view import View
from trimtab.policies.shared.portfolio import (
    SERVICE_CV,
    TAIL_FRAC,
    UNSERVED,
    Floats,
    last_serial_of,
    recent_work,
)

WIDTH = 0.15  # between the present place and the ones that are tried
RATE = 0.1  # places moved for each unit by which the loss falls over a whole range
MOST_STEP = 0.1  # places


class Learned(NamedTuple):
    """What has been learned; the end of `plan.params`."""

    steps: float
    last_serial: float  # of the arrivals that were simulated; -1 = none yet
    regret: float  # smoothed loss at the places less that at the start; inf before the first step
    places: Floats  # [numbers], 0 to 1

    @classmethod
    def read(cls, params: Floats, start: Floats) -> Learned:
        """From the last plan of a policy of so many numbers; the start where there is none."""
        if len(params) < len(start) + 3:
            return cls(0.0, -1.0, math.inf, start)
        steps, last_serial, regret = params[-len(start) - 3 : -len(start)].tolist()
        return cls(steps, last_serial, regret, params[-len(start) :])

    def written(self) -> Floats:
        """As the end of `plan.params`."""
        return np.array([self.steps, self.last_serial, self.regret, *self.places])


def signs(step: int, numbers: int) -> Floats:
    """Directions of a step, each 1 or -1, [numbers]: a row of the Hadamard matrix of Sylvester.

    The first column is left out. Over as many steps as the matrix has rows all pairs of numbers are
    orthogonal.
    """
    rows = 1 << numbers.bit_length()
    row = step % rows
    return np.array([1.0 - 2.0 * ((row & column).bit_count() % 2) for column in range(1, numbers + 1)])


def losses(completion_s: Floats, w_tail: float) -> Floats:
    """Log of the mean, and `w_tail` times that of the longest 2 %, of each variant [variants].

    `completion_s`: [variants, requests]; nan = not served, which counts as `UNSERVED` times the longest.
    """
    known = np.isfinite(completion_s)
    filled = np.where(known, completion_s, UNSERVED * completion_s[known].max(initial=1e-12))
    longest = np.sort(filled, axis=1)[:, -max(1, round(TAIL_FRAC * filled.shape[1])) :]
    pairs = zip(filled.mean(axis=1).tolist(), longest.mean(axis=1).tolist(), strict=True)
    return np.array([math.log(max(m, 1e-12)) + w_tail * math.log(max(t, 1e-12)) for m, t in pairs])


def counted(completion_s: Floats) -> Floats:
    """The middle of what was simulated, [variants, requests].

    What others have placed stands in the way of the first ones, and nothing that comes later of the last.
    """
    n = completion_s.shape[1]
    return completion_s[:, n // 3 : n - n // 4]


class DescendingPolicy(Policy):
    """Base of policies with numbers that are learned in rollouts, within bounds."""

    needs: ClassVar[frozenset[Need]] = frozenset({Need.ROLLOUT})
    window: Count
    w_tail: NonNegative
    margin_frac: NonNegative
    kept: Fraction

    def learned(
        self,
        told: tuple[View, History],
        rollout: Rollout | None,
        start: Floats,
        variant_at: Callable[[Floats | None], Variant],
    ) -> Learned | None:
        """What is learned after a step; None where there is nothing new to learn from.

        `variant_at`: the variant at places [numbers]; of None the one without learning.
        """
        view, history = told
        before = Learned.read(history.plan.params, start)
        work = recent_work(view, history, rollout, self.window, before.last_serial)
        if rollout is None or work is None:
            return None
        ahead = WIDTH * signs(int(before.steps), len(start))
        up, down = np.clip([before.places + ahead, before.places - ahead], 0.0, 1.0)
        completion_s = rollout([variant_at(at) for at in (None, up, down)], work, SERVICE_CV)
        plain, above, below = losses(counted(completion_s), self.w_tail).tolist()
        step = np.clip(RATE * (above - below) / (up - down), -MOST_STEP, MOST_STEP)
        now = 0.5 * (above + below) - plain
        regret = now if before.regret == math.inf else self.kept * before.regret + (1.0 - self.kept) * now
        places = np.clip(before.places - step, 0.0, 1.0)
        return Learned(before.steps + 1.0, last_serial_of(history), regret, places)

    def in_force(self, learned: Learned) -> Floats | None:
        """The places that are used; None = what is learned does not do better than the start."""
        return learned.places if learned.regret < -math.log1p(self.margin_frac) else None
