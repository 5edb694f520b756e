"""When allocators decide: fixed rounds, events coalesced to a slot, arrivals, or leases.

rounds(period_s=60)     at multiples of the period (Pollux, Sia, Gavel, Shockwave)
events(slot_s=60)       at arrivals, finishes and wake-ups; what falls into a slot waits for its end
step-rounds(period_s=120)  a round lasts until all have done their whole steps (Gavel, Shockwave)
arrivals(slot_s=60)     at arrivals only, then every slot (Gandiva in ElasticFlow's simulator)
plans(slot_s=60)        as events; at the ends that the allocator plans, not at finishes (ElasticFlow)
leases(term_s=240)      as rounds; jobs that hold a lease keep it to its end (Chronus)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

from trimtab.domain.parameters import NonNegative, Positive
from trimtab.domain.training_jobs import Flags, Ints


class Clock(Protocol):
    """Says when the next decision is due."""

    name: ClassVar[str]
    reads_finish: ClassVar[bool]  # whether the next decision depends on the next finish

    def first_s(self, arrival_s: float, now_s: float = -math.inf) -> float:
        """Time of the decision that first sees a job that arrives at this time in an idle cluster.

        `now_s` is the time of the last decision.
        """

    def next_s(self, now_s: float, arrival_s: float, finish_s: float, wake_s: float) -> float:
        """Time of the next decision, later than `now_s`.

        The arguments are the next arrival, the next finish and the allocator's wish; inf = none.
        """


@dataclass(frozen=True, slots=True)
class Rounds:
    """Decisions at multiples of the period. A job that finishes keeps its GPUs to the end of the round.

    With `from_first` periods count from the first arrival.
    """

    name: ClassVar[str] = "rounds"
    reads_finish: ClassVar[bool] = False
    period_s: Positive = 60.0
    from_first: bool = False

    def first_s(self, arrival_s: float, now_s: float = -math.inf) -> float:
        """The first multiple at or after the arrival, never 0."""
        if not self.from_first:
            return max(math.ceil(arrival_s / self.period_s), 1) * self.period_s
        if now_s == -math.inf:
            return arrival_s
        return now_s + math.ceil((arrival_s - now_s) / self.period_s) * self.period_s

    def next_s(self, now_s: float, arrival_s: float, finish_s: float, wake_s: float) -> float:
        """The next multiple."""
        if self.from_first:
            return now_s + self.period_s
        return (math.floor(now_s / self.period_s) + 1) * self.period_s


@dataclass(frozen=True, slots=True)
class StepRounds:
    """Rounds of whole steps: the next one begins when the last job has done its steps of the period.

    A truth that knows steps (`SteppedTruth`) gives the end of the round as the next finish; with any other
    one a round ends at the first finish.
    """

    name: ClassVar[str] = "step-rounds"
    reads_finish: ClassVar[bool] = True
    period_s: Positive = 120.0

    def first_s(self, arrival_s: float, now_s: float = 0.0) -> float:
        """At the arrival."""
        return arrival_s

    def next_s(self, now_s: float, arrival_s: float, finish_s: float, wake_s: float) -> float:
        """The end of the round, no later than the period."""
        return min(finish_s, now_s + self.period_s)


@dataclass(frozen=True, slots=True)
class Events:
    """Decisions at events. Events within `slot_s` of a decision are served together at the slot's end."""

    name: ClassVar[str] = "events"
    reads_finish: ClassVar[bool] = True
    slot_s: NonNegative = 0.0

    def first_s(self, arrival_s: float, now_s: float = -math.inf) -> float:
        """At the arrival, or at the end of the slot."""
        return max(arrival_s, now_s + self.slot_s)

    def next_s(self, now_s: float, arrival_s: float, finish_s: float, wake_s: float) -> float:
        """The next event, or the end of the slot if that is later."""
        event_s = min(arrival_s, finish_s, wake_s if wake_s > now_s else math.inf)
        return max(event_s, now_s + self.slot_s) if event_s < math.inf else math.inf


@dataclass(frozen=True, slots=True)
class Planned(Events):
    """As events, but at the ends that the allocator plans, with restarts added, instead of real finishes."""

    name: ClassVar[str] = "plans"
    reads_finish: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class Leases:
    """Decisions at the ends of leases, every `term_s` from 0. The allocator keeps what holds a lease."""

    name: ClassVar[str] = "leases"
    reads_finish: ClassVar[bool] = False
    term_s: Positive = 240.0

    def first_s(self, arrival_s: float, now_s: float = -math.inf) -> float:
        """The first end of a lease at or after the arrival."""
        return math.ceil(arrival_s / self.term_s) * self.term_s

    def next_s(self, now_s: float, arrival_s: float, finish_s: float, wake_s: float) -> float:
        """The end of the present lease."""
        return (math.floor(now_s / self.term_s) + 1) * self.term_s


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Decisions at arrivals, a slot apart at least, and after the last arrival at the end of each slot.

    A finish frees GPUs only at the next decision. This is how ElasticFlow's simulator runs Gandiva.
    """

    name: ClassVar[str] = "arrivals"
    reads_finish: ClassVar[bool] = False
    slot_s: NonNegative = 60.0

    def first_s(self, arrival_s: float, now_s: float = -math.inf) -> float:
        """At the arrival, or at the end of the slot."""
        return max(arrival_s, now_s + self.slot_s)

    def next_s(self, now_s: float, arrival_s: float, finish_s: float, wake_s: float) -> float:
        """The next arrival or the end of the slot."""
        return max(arrival_s, now_s + self.slot_s) if arrival_s < math.inf else now_s + self.slot_s


CLOCKS: dict[str, type[Rounds | StepRounds | Events | Arrivals | Planned | Leases]] = {
    c.name: c for c in (Rounds, StepRounds, Events, Arrivals, Planned, Leases)
}


def a_round_later_s(now_s: float, gpus: Ints, scales: Flags) -> float:
    """When an allocator of rounds of a minute wants to decide again, as `wake_s`; inf = no job may grow.

    Clocks of rounds ignore it. Under one of events, jobs that grow from round to round do so too.

    Args:
        gpus: [jobs, nodes] as decided.
        scales: [jobs] whether a job takes several numbers of GPUs.
    """
    return now_s + 60.0 if gpus[scales].any() else math.inf
