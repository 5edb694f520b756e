"""`experiment: switchback`: the live policy alternates in time, which measures what a shadow only predicts.

Design: blocks of `period_s` in pairs; within each pair both policies are live once, in an order drawn from
the seed. Requests count in the block in which they arrive, but not those of its first `washout_s`, as they
still meet the queues that the other policy left. Source: I. Bojinov, D. Simchi-Levi and J. Zhao, "Design and
analysis of switchback experiments", Management Science 69(7), 2023 (random order, carry-over).

Estimate: difference of the mean completions per request, B − A; its variance by the jackknife over pairs, so
that neither load that comes and goes nor dependence within a pair counts as noise or as information. Source:
B. Efron and C. Stein, "The jackknife estimate of variance", Annals of Statistics 9(3), 1981.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from trimtab.gateway.record.intervals import Interval, student_t95

FEWEST_PAIRS = 5  # for an interval
MOST_PAIRS = 4096  # kept; the oldest are forgotten


@dataclass(slots=True)
class _Pair:
    """Requests and the sum of their completions under A and under B."""

    count: list[int]
    total_s: list[float]


@dataclass(frozen=True, slots=True)
class SwitchbackFigures:
    """What was measured so far."""

    pairs: int
    mean_s: tuple[float, float]  # completion under A and under B; nan where nothing was served
    requests: tuple[int, int]
    difference_s: Interval  # B − A


class Switchback:
    """When which policy is live, and what came of it. Times are of one clock."""

    def __init__(self, *, period_s: float, washout_s: float, seed: int, begun_s: float) -> None:
        if not 0.0 <= washout_s < period_s:
            raise ValueError(
                f"washout_s is {washout_s}; expected at least 0 and less than period_s, {period_s}"
            )
        self._period_s, self._washout_s = period_s, washout_s
        self._seed, self._begun_s = seed, begun_s
        self._pairs: dict[int, _Pair] = {}
        self._drawn: int | None = None  # the pair asked about last
        self._first = 0  # which policy is live first in it

    def arm_at(self, time_s: float) -> int:
        """Which policy is live: 0 = A, 1 = B."""
        block = self._block(time_s)
        if block // 2 != self._drawn:
            self._drawn = block // 2
            self._first = random.Random(f"{self._seed}/{self._drawn}").getrandbits(1)
        return self._first ^ (block & 1)

    def next_switch_s(self, time_s: float) -> float:
        """When the block of this time ends; the policy may stay the same then."""
        return self._begun_s + (self._block(time_s) + 1) * self._period_s

    def note(self, arrived_s: float, completion_s: float) -> None:
        """A request was served."""
        block = self._block(arrived_s)
        if block < 0 or arrived_s - self._begun_s - block * self._period_s < self._washout_s:
            return
        pair = self._pairs.get(block // 2)
        if pair is None:
            pair = self._pairs[block // 2] = _Pair([0, 0], [0.0, 0.0])
            if len(self._pairs) > MOST_PAIRS:
                del self._pairs[min(self._pairs)]
        arm = self.arm_at(arrived_s)
        pair.count[arm] += 1
        pair.total_s[arm] += completion_s

    def figures(self, now_s: float) -> SwitchbackFigures:
        """Of the pairs that ended a whole pair ago: what arrived in them is through, but for the longest."""
        last = self._block(now_s) // 2 - 1
        pairs = [pair for p, pair in self._pairs.items() if p < last and all(pair.count)]
        count, total_s = _sums(pairs)
        mean_s = (_ratio(total_s[0], count[0]), _ratio(total_s[1], count[1]))
        return SwitchbackFigures(len(pairs), mean_s, (count[0], count[1]), _difference(pairs))

    def _block(self, time_s: float) -> int:
        return math.floor((time_s - self._begun_s) / self._period_s)


def _sums(pairs: list[_Pair]) -> tuple[list[int], list[float]]:
    count = [sum(pair.count[arm] for pair in pairs) for arm in (0, 1)]
    return count, [math.fsum(pair.total_s[arm] for pair in pairs) for arm in (0, 1)]


def _ratio(total_s: float, count: int) -> float:
    return total_s / count if count else math.nan


def _difference(pairs: list[_Pair]) -> Interval:
    count, total_s = _sums(pairs)
    whole_s = _ratio(total_s[1], count[1]) - _ratio(total_s[0], count[0])
    n = len(pairs)
    if n < FEWEST_PAIRS:
        return Interval(whole_s, None)
    without_s = [
        (total_s[1] - p.total_s[1]) / (count[1] - p.count[1])
        - (total_s[0] - p.total_s[0]) / (count[0] - p.count[0])
        for p in pairs
    ]
    centre_s = math.fsum(without_s) / n
    variance = (n - 1) / n * math.fsum((value - centre_s) ** 2 for value in without_s)
    return Interval(whole_s, student_t95(n - 1) * math.sqrt(variance))
