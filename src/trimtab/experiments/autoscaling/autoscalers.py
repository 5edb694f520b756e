"""Rules that say how many nodes a pool needs: Kubernetes, KEDA, Knative, forecasts, Erlang, and one of ours.

Each is a frozen dataclass of parameters with one function. It gets what a pool showed up to now and answers
with a number of nodes; bounds of the pool, start-up delays and cool-down are the host's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol

import numpy as np

from trimtab.compiled.elementwise import elementwise
from trimtab.domain.cluster import Floats
from trimtab.domain.parameters import Natural, NonNegative, Positive, Range
from trimtab.errors import PolicyNotFound
from trimtab.forecast.queueing.erlang import erlang_c_unchecked
from trimtab.policies.shared.demand_forecast import ForecasterName, forecast_means
from trimtab.validation.named_classes import label_of, made_of

STEPS = 64  # of the past, that forecasts read
SCALE_UP_NODES, SCALE_UP_RATIO = 4, 2.0  # of Kubernetes in 15 s, whichever is more


@dataclass(frozen=True, slots=True)
class PoolState:
    """What a pool showed in the periods up to now; arrays are [periods], the last one last."""

    now_s: float
    period_s: float
    start_s: float  # from the order of a node until it serves
    ready: int  # nodes that serve
    coming: int  # nodes that were ordered and do not serve yet
    slots: int  # of a node
    waiting: int  # requests that no node serves now
    concurrency: Floats  # mean requests in the system
    busy: Floats  # mean slots in use
    arrivals: Floats  # requests
    recent_s: Floats  # [requests] estimated service of the latest ones that it serves
    slo_s: float  # mean objective of those
    attained: Floats  # of requests that ended, the share within their objective; nan = none ended
    answers: Sequence[int]  # what the rule wanted at the ends of the periods before, bounds aside

    def last(self, values: Floats, seconds: float) -> Floats:
        """The values of the last seconds, at least of one period."""
        return values[-max(1, round(seconds / self.period_s)) :]

    @property
    def service_s(self) -> float:
        """Mean estimate of the latest requests; 0 = there were none."""
        return float(self.recent_s.mean()) if len(self.recent_s) else 0.0

    @property
    def nodes(self) -> int:
        """Nodes that serve or will."""
        return self.ready + self.coming


class Autoscaler(Protocol):
    """How many nodes a pool is to have."""

    @property
    def name(self) -> str:
        """Name of the rule."""

    @property
    def down_window_s(self) -> float:
        """Scale-in waits until no answer of this time wanted more; 0 = it waits for nothing."""

    def wanted(self, pool: PoolState) -> int:
        """Nodes from now on, if there are no bounds."""


@dataclass(frozen=True)
class Fixed:
    """Always so many nodes; 0 = as many as the pool may have."""

    name: ClassVar[str] = "fixed"
    down_window_s: ClassVar[float] = 0.0
    nodes: Natural = 0

    def wanted(self, pool: PoolState) -> int:
        """The number."""
        return self.nodes or 1 << 30


def settled(pool: PoolState, rule: Autoscaler, answer: int) -> int:
    """The answer, but no fewer nodes than the most that it wanted within its `down_window_s`."""
    if answer >= pool.nodes or not rule.down_window_s:
        return answer
    steps = max(1, round(rule.down_window_s / pool.period_s))
    return min(pool.nodes, max((*pool.answers[-steps:], answer)))


def _limited(pool: PoolState, answer: int) -> int:
    """Kubernetes' default limit of scale-out: to twice or four more in 15 s, whichever is more."""
    steps = max(1.0, pool.period_s / 15.0)
    most: float = max(pool.nodes * SCALE_UP_RATIO**steps, pool.nodes + SCALE_UP_NODES * steps)
    return min(answer, math.ceil(most))


@dataclass(frozen=True)
class Hpa:
    """Kubernetes' horizontal autoscaler on the share of slots in use.

    wanted = ⌈nodes · utilisation ÷ target⌉, unless the ratio is within the tolerance of 1; scale-in waits
    until no answer of the window was higher; scale-out at most doubles or adds four in 15 s.

    Source: Kubernetes documentation, "Horizontal Pod Autoscaling": algorithm details, and the default
    behaviour of autoscaling/v2. Deviations: nodes that are coming count as ready ones of zero use when it
    would scale out, as there, but utilisation is the mean of one period and not of a metrics window.
    """

    name: ClassVar[str] = "hpa"
    target: Annotated[float, Range(0.05, 1.0)] = 0.7
    tolerance: NonNegative = 0.1
    down_window_s: NonNegative = 300.0

    def wanted(self, pool: PoolState) -> int:
        """By the utilisation of the last period."""
        if pool.nodes == 0:
            return 1
        used = float(pool.busy[-1]) / (pool.slots * max(pool.ready, 1))
        ratio = used / self.target
        if ratio > 1.0 and pool.coming:
            ratio = max(1.0, ratio * pool.ready / pool.nodes)
        raw = pool.nodes if abs(ratio - 1.0) <= self.tolerance else math.ceil(pool.nodes * ratio - 1e-9)
        return _limited(pool, max(raw, 1))


@dataclass(frozen=True)
class Keda:
    """KEDA on the length of the queue: nodes = ⌈requests in the system ÷ target⌉; none after a quiet time.

    Source: KEDA documentation, "Scaling deployments, StatefulSets & custom resources" (activation,
    cooldownPeriod) and its queue scalers, whose metric is an average value of Kubernetes' autoscaler.
    `target` counts requests for each slot. Deviation: the queue's length is the mean of a period, requests
    in service included.
    """

    name: ClassVar[str] = "keda"
    target: Positive = 1.0
    activation: NonNegative = 0.0
    cooldown_s: NonNegative = 300.0
    down_window_s: NonNegative = 300.0

    def wanted(self, pool: PoolState) -> int:
        """By what is in the system."""
        if (pool.last(pool.concurrency, self.cooldown_s) <= self.activation).all():
            return 0
        wanted = math.ceil(float(pool.concurrency[-1]) / (self.target * pool.slots) - 1e-9)
        return _limited(pool, max(wanted, 1))


@dataclass(frozen=True)
class Knative:
    """Knative's pod autoscaler: mean concurrency of a stable window; a short window in a panic.

    wanted = ⌈concurrency ÷ target⌉ over `stable_s`. If that over the panic window is at least `panic_ratio`
    times the nodes that serve, it panics: nodes never shrink until no panic was seen for a stable window.
    It shrinks at most to half in a step, and to none after a stable window without requests.

    Source: Knative Serving documentation, "Autoscaling", and the description of the KPA's panic mode.
    Deviation: it decides at ends of periods, so that its panic window is at least one of them.
    """

    name: ClassVar[str] = "knative"
    target: Annotated[float, Range(0.05, 10.0)] = 0.7
    stable_s: Positive = 60.0
    panic_frac: Annotated[float, Range(0.01, 1.0)] = 0.1
    panic_ratio: Positive = 2.0
    down_window_s: ClassVar[float] = 0.0

    def wanted(self, pool: PoolState) -> int:
        """By both windows."""
        each = self.target * pool.slots
        stable = math.ceil(float(pool.last(pool.concurrency, self.stable_s).mean()) / each - 1e-9)
        panic_s = self.stable_s * self.panic_frac
        panic = math.ceil(float(pool.last(pool.concurrency, panic_s).mean()) / each - 1e-9)
        if self._has_panicked(pool, each):
            return max(stable, panic, pool.nodes)
        return max(stable, math.floor(pool.nodes / 2))

    def _has_panicked(self, pool: PoolState, each: float) -> bool:
        recent = pool.last(pool.concurrency, self.stable_s)
        return bool((recent / each >= self.panic_ratio * max(pool.ready, 1)).any())


@dataclass(frozen=True)
class Predictive:
    """A forecast of arrivals over the time that a node takes to start, at a target utilisation.

    Source: Gong, Gu and Wilkes, "PRESS: predictive elastic resource scaling for cloud systems", CNSM 2010
    (predict demand, pad it). Deviations: the forecasters are those of this project instead of signatures
    and Markov chains; padding is the target.
    """

    name: ClassVar[str] = "predictive-scaling"
    target: Annotated[float, Range(0.05, 1.0)] = 0.7
    forecaster: ForecasterName = "holt"
    step_s: Positive = 30.0
    down_window_s: NonNegative = 60.0

    def wanted(self, pool: PoolState) -> int:
        """By the expected work."""
        slots = _rate_per_s(pool, self.step_s, self.forecaster) * pool.service_s / self.target
        return max(1, math.ceil(slots / pool.slots - 1e-9))


def _rate_per_s(pool: PoolState, step_s: float, forecaster: str) -> float:
    """Arrivals per second that are expected until a node that is ordered now serves, at least in one step."""
    size = max(1, round(step_s / pool.period_s))
    whole = len(pool.arrivals) // size * size
    if not whole:
        return float(pool.arrivals.mean()) / pool.period_s
    table = pool.arrivals[-whole:].reshape(-1, size).sum(axis=1)[-STEPS:, None]
    ahead = max(1, math.ceil(pool.start_s / (size * pool.period_s)))
    return float(forecast_means(table, ahead, forecaster)[0]) / (size * pool.period_s)


@dataclass(frozen=True)
class Erlang:
    """The fewest slots at which Erlang's formula promises a mean wait, for the arrivals of a window.

    Source: A. K. Erlang (1917), the waiting formula of M/M/c; Kleinrock, Queueing Systems vol. 1, 1975, ch.
    3: W = C(c, a) · E[S] ÷ (c − a). The rate is that of the last `window_s`.
    """

    name: ClassVar[str] = "erlang"
    wait_s: Positive = 5.0
    window_s: Positive = 120.0
    down_window_s: NonNegative = 60.0

    def wanted(self, pool: PoolState) -> int:
        """By the waiting formula."""
        rate = float(pool.last(pool.arrivals, self.window_s).mean()) / pool.period_s
        offered = rate * pool.service_s
        slots = math.floor(offered) + 1
        while erlang_c_unchecked(slots, offered) * pool.service_s / (slots - offered) > self.wait_s:
            slots += 1
        return math.ceil(slots / pool.slots)


@dataclass(frozen=True)
class SloStaffing:
    """Fewest slots at which the forecast and the backlog meet the objective for the goal's share of requests.

    Idea: a request is in time if its wait is at most its slack, the objective less its service. By M/M/c
    the share that waits longer is C(c, a) · exp(−(c − a) · slack ÷ E[S]), taken over the latest requests
    that have any slack; c is the least with no more than 1 − goal of them late. The rate is the larger of
    the forecast and the mean of the last start-up time, times a margin that follows what was attained: up
    where the share in time of the last `judged_s` is below the goal, slowly down where it is above. What
    waits is worked off within the slack.

    Source: own. Staffing by a tail of waits: Borst, Mandelbaum and Reiman, "Dimensioning large call centers",
    Operations Research 52(1), 2004; the margin by feedback is additive increase and multiplicative decrease.
    """

    name: ClassVar[str] = "slo-staffing"
    goal: Annotated[float, Range(0.5, 0.9999)] = 0.95
    forecaster: ForecasterName = "holt"
    step_s: Positive = 30.0
    judged_s: Positive = 600.0
    down_window_s: NonNegative = 60.0
    most_margin: Annotated[float, Range(1.0, 3.0)] = 1.5

    def wanted(self, pool: PoolState) -> int:
        """By forecast, backlog and what was attained."""
        if pool.service_s == 0.0:
            return 1
        recent = float(pool.last(pool.arrivals, max(pool.start_s, self.step_s)).mean()) / pool.period_s
        rate = max(_rate_per_s(pool, self.step_s, self.forecaster), recent) * self._margin(pool)
        slack_s = pool.slo_s - pool.recent_s[pool.recent_s < pool.slo_s]
        if not len(slack_s):
            slack_s = np.array([0.1 * pool.service_s])
        offered = rate * pool.service_s
        slots = math.floor(offered) + 1
        while self._late_frac(slots, offered, slack_s / pool.service_s) > 1.0 - self.goal:
            slots += 1
        mean_s = float(slack_s.mean())
        backlog = max(0.0, pool.waiting - pool.ready * pool.slots * mean_s / pool.service_s)
        return math.ceil((slots + backlog * pool.service_s / (mean_s + pool.start_s)) / pool.slots)

    @staticmethod
    def _late_frac(slots: int, offered: float, slack: Floats) -> float:
        late = elementwise(math.exp, -(slots - offered) * slack).mean()
        return float(erlang_c_unchecked(slots, offered)) * float(late)

    def _margin(self, pool: PoolState) -> float:
        """From 1 at the goal to the most at an eighth of all beyond it late."""
        seen = pool.last(pool.attained, self.judged_s)
        seen = seen[~np.isnan(seen)]
        if not len(seen):
            return 1.0
        lacks = max(0.0, self.goal - float(seen.mean()))
        return 1.0 + (self.most_margin - 1.0) * min(1.0, 8.0 * lacks)


AUTOSCALERS: dict[str, Any] = {
    cls.name: cls for cls in (Fixed, Hpa, Keda, Knative, Predictive, Erlang, SloStaffing)
}


def find_autoscaler(spec: str | Autoscaler) -> Autoscaler:
    """The rule of a text such as "hpa(target=0.6)". Raises UsageError."""
    if not isinstance(spec, str):
        return spec
    made: Autoscaler = made_of(spec, AUTOSCALERS, "autoscaler", "policy", PolicyNotFound)
    return made


def canonical_autoscaler(spec: str | Autoscaler) -> str:
    """The shortest name of the same rule."""
    made = find_autoscaler(spec)
    return label_of(made.name, made)
