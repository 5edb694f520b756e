"""What tuning is for: a metric to improve, and others that may change by so much, as `mean s.t. p99<=+0%`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from trimtab.errors import UsageError
from trimtab.experiments.tuning.request_values import FAMILIES, measured_names
from trimtab.metrics import METRICS
from trimtab.validation.names import nearest

MEAN, TAIL = "completion_mean_s", "completion_p99_s"  # the two that pull apart, told of every candidate
_PENALTY: Final = 5.0  # of a bound that is missed, against what the objective gains
_BOUND: Final = re.compile(r"(?P<metric>\w+)\s*(?P<sign><=|>=)\s*(?P<percent>[+-]?[0-9.]+)\s*%")
_EXPECTED: Final = "METRIC [s.t. METRIC<=+X%, METRIC>=-X%], such as mean s.t. p99<=+0%"
_FIELD: Final = "--objective"
_LEAST: Final = 1e-9  # of a metric: a share of 0 has no relative change


@dataclass(frozen=True, slots=True)
class Bound:
    """A metric that may get worse by at most `worse_frac`, relative to the policy as it was given."""

    metric: str
    worse_frac: float

    def __str__(self) -> str:
        """As it is written."""
        is_higher = METRICS[self.metric].better == "higher"
        change = -self.worse_frac if is_higher else self.worse_frac
        return f"{self.metric}{'>=' if is_higher else '<='}{100 * change:+g}%"


@dataclass(frozen=True, slots=True)
class Goal:
    """A metric to improve, within bounds on others."""

    metric: str
    bounds: tuple[Bound, ...]

    @classmethod
    def parsed(cls, text: str) -> Goal:
        """From `mean s.t. p99<=+0%`. Raises UsageError."""
        metric, is_bounded, rest = text.partition("s.t.")
        bounds = tuple(_bound(part, text) for part in rest.split(",")) if is_bounded else ()
        return cls(_metric(metric.strip(), text), bounds)

    @property
    def metrics(self) -> tuple[str, ...]:
        """All that are told: of the goal, of its bounds, and mean and p99 of completion."""
        return tuple(dict.fromkeys((self.metric, *(b.metric for b in self.bounds), MEAN, TAIL)))

    def score(self, found: Mapping[str, float], base: Mapping[str, float]) -> float:
        """How much worse a run is than that of the policy as given, as a logarithm; below 0 is better."""
        missed = (max(0.0, _worse(b.metric, found, base) - math.log1p(b.worse_frac)) for b in self.bounds)
        score = _worse(self.metric, found, base) + _PENALTY * sum(missed)
        return score if score == score else math.inf

    def __str__(self) -> str:
        """As it is written."""
        within = f" s.t. {', '.join(map(str, self.bounds))}" if self.bounds else ""
        return f"{self.metric}{within}"


def worse_frac(metric: str, change_frac: float) -> float:
    """A relative change in the direction in which the metric is worse."""
    return -change_frac if METRICS[metric].better == "higher" else change_frac


def change_frac(now: float, before: float) -> float:
    """The relative change of a metric; nan where it is undefined."""
    return max(now, _LEAST) / max(before, _LEAST) - 1.0 if now == now and before == before else math.nan


def _worse(metric: str, found: Mapping[str, float], base: Mapping[str, float]) -> float:
    change = change_frac(found[metric], base[metric])
    return math.log1p(change) * worse_frac(metric, 1.0)


def _bound(text: str, whole: str) -> Bound:
    found = _BOUND.fullmatch(text.strip())
    if found is None:
        raise UsageError("no bound", field=_FIELD, value=text.strip(), expected=_EXPECTED)
    metric = _metric(found["metric"], whole)
    sign = ">=" if METRICS[metric].better == "higher" else "<="
    if found["sign"] != sign:
        raise UsageError("the wrong way round", field=_FIELD, value=text.strip(), expected=f"{metric}{sign}…")
    try:
        worse = worse_frac(metric, float(found["percent"]) / 100.0)
    except ValueError as error:
        raise UsageError("no number", field=_FIELD, value=found["percent"], expected=_EXPECTED) from error
    if not -1.0 < worse < math.inf:
        raise UsageError("out of range", field=_FIELD, value=text.strip(), expected="a change above -100 %")
    return Bound(metric, worse)


def _metric(name: str, text: str) -> str:
    """The metric of a short name: `mean` and `p99` are of completion, `wait` is queueing."""
    full = re.sub(r"^wait(?=_)", "queueing", {"goodput": "slo_attained"}.get(name, name))
    known = measured_names()
    for each in (full, f"{full}_s", f"{full}_frac", f"completion_{full}_s"):
        if each in known:
            return each
    expected = (
        f"{_EXPECTED}; metrics of single requests: {nearest(full, known)}; families: {', '.join(FAMILIES)}"
    )
    raise UsageError("names no metric", field=_FIELD, value=name or text, expected=expected)
