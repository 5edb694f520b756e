"""Numbers as people read them: as many digits as the confidence interval supports, units in the heading."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from trimtab.metrics import Estimate, Metric

DIGITS: Final = 4  # significant digits where no confidence interval says how many
MOST_DECIMALS: Final = 9

_UNIT_SUFFIXES: Final = {
    "s": ("_s",),
    "s²": ("_s2",),
    "frac": ("_frac",),
    "1/s": ("_per_s",),
    "GiB": ("_gib",),
}
_WORDS: Final = {
    "p50": "median",
    "var": "variance",
    "cv": "CV",
    "slo": "SLO",
    "usd": "cost",
    "jain": "Jain's index,",
    "accelerator_s_per_1k": "accelerator time per 1,000 finished",
    "usd_per_1k": "cost per 1,000 finished",
}
_TIME_UNITS: Final = (
    ("h", 3600.0, 3 * 3600.0),
    ("min", 60.0, 600.0),
    ("s", 1.0, 0.0),
)  # unit, its seconds, from
_SUPERSCRIPT: Final = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, slots=True)
class NumberStyle:
    """How the numbers of one column are written: value · factor with so many decimals."""

    factor: float
    decimals: int
    unit: str  # as the heading shows it, power of ten included; "" for a plain number

    def number(self, value: float) -> str:
        """One value; a dash where it is undefined."""
        return f"{value * self.factor:,.{self.decimals}f}" if math.isfinite(value) else "–"

    def estimate(self, value: Estimate) -> str:
        """Mean ± half-width of its confidence interval, where that is known."""
        if not value.ci95 or not math.isfinite(value.mean):
            return self.number(value.mean)
        return f"{self.number(value.mean)} ± {self.number(value.ci95)}"


def style_of(values: Iterable[Estimate], unit: str) -> NumberStyle:
    """Style that suits all values of a column in this unit of the catalogue; shares become percent."""
    defined = [value for value in values if math.isfinite(value.mean)]
    largest = max((abs(value.mean) for value in defined), default=0.0)
    if unit == "frac":
        return NumberStyle(100.0, _decimals(defined, 100.0, 100.0 * largest), "%")
    power = _power_of_ten(largest)
    factor = 10.0**-power
    return NumberStyle(factor, _decimals(defined, factor, factor * largest), _unit_text(unit, power))


def _power_of_ten(largest: float) -> int:
    """A multiple of three that spares zeros; 0 for numbers that read well as they are."""
    if largest == 0.0 or 0.01 <= largest < 1e5:
        return 0
    return 3 * math.floor(math.log10(largest) / 3)


def _decimals(values: Sequence[Estimate], factor: float, largest: float) -> int:
    """Two digits of the typical half-width, as long as that leaves no more than six digits in all."""
    half_widths = [factor * value.ci95 for value in values if value.ci95]
    magnitude = _magnitude(largest)
    wanted = 1 - _magnitude(median(half_widths)) if half_widths else DIGITS - 1 - magnitude
    if all(value.mean * factor == round(value.mean * factor) for value in values) and not half_widths:
        return 0
    return max(0, min(wanted, DIGITS + 1 - magnitude, MOST_DECIMALS))


def _magnitude(value: float) -> int:
    return math.floor(math.log10(value)) if value > 0.0 else 0


def _unit_text(unit: str, power: int) -> str:
    scale = f"10{str(power).translate(_SUPERSCRIPT)}" if power else ""
    return " ".join(part for part in (scale, "" if unit == "1" else unit) if part)


def title_of(metric: Metric) -> str:
    """Name of a metric in words, its unit left out: `completion_p99_s` is "completion p99"."""
    if metric.name in _WORDS:
        return _WORDS[metric.name]
    stem = metric.name
    for suffix in _UNIT_SUFFIXES.get(metric.unit, ()):
        stem = stem.removesuffix(suffix)
    return " ".join(_WORDS.get(word, word) for word in stem.split("_"))


def time_unit(span_s: float) -> tuple[str, float]:
    """The unit that suits a time axis of this length, and its seconds."""
    return next((unit, unit_s) for unit, unit_s, least_s in _TIME_UNITS if span_s >= least_s)
