"""Number formats: as many digits as the confidence interval supports, with units in the heading."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final

from trimtab.metrics import Estimate, Metric
from trimtab.metrics.definitions import TOKEN_HEADLINE

if TYPE_CHECKING:
    from trimtab.experiments.compare import PolicyResult

DIGITS: Final = 4  # significant digits where no confidence interval says how many
MOST_DECIMALS: Final = 9
LEAST_FRAC: Final = 5e-5  # smaller ones are 0.00 %

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
    "ttft": "TTFT",
    "tpot": "TPOT",
    "itl": "ITL",
    "kv": "KV",
    "usd": "cost",
    "jain": "Jain's index,",
    "accelerator_s_per_1k": "accelerator time per 1,000 finished",
    "usd_per_hour": "cost per hour",
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
    """Format of the numbers of one column: value · factor, with a number of decimals."""

    factor: float
    decimals: int
    unit: str  # as the heading shows it, power of ten included; "" for a plain number

    def number(self, value: float) -> str:
        """One value; a dash where it is undefined."""
        if self.unit == "%" and 0.0 < abs(value * self.factor) < 100.0 * LEAST_FRAC:
            return "0.00"
        return f"{value * self.factor:,.{self.decimals}f}" if math.isfinite(value) else "–"

    def estimate(self, value: Estimate) -> str:
        """Mean ± half-width of its confidence interval, if known."""
        if not value.ci95 or not math.isfinite(value.mean):
            return self.number(value.mean)
        half_width = self.factor * value.ci95
        # Two digits of this interval, not of the column's: each row by what it supports.
        decimals = max(0, min(1 - _magnitude(half_width), self.decimals + 2, MOST_DECIMALS))
        own = NumberStyle(1.0, decimals, self.unit)
        shown = own.number(half_width)
        mean = own.number(self.factor * value.mean)
        is_shown = any(digit in shown for digit in "123456789")  # else it rounds to 0
        return f"{mean} ± {shown}" if is_shown else self.number(value.mean)


def style_of(values: Iterable[Estimate], unit: str) -> NumberStyle:
    """Format for all values of a column in this unit; fractions become percent."""
    defined = [value for value in values if math.isfinite(value.mean)]
    power = 0 if unit == "frac" else _power_of_ten(_sizes(defined))
    factor = 100.0 if unit == "frac" else 10.0**-power
    scaled = [Estimate(factor * mean, None if ci95 is None else factor * ci95) for mean, ci95 in defined]
    return NumberStyle(factor, _decimals(scaled), "%" if unit == "frac" else _unit_text(unit, power))


def _sizes(values: Iterable[Estimate]) -> list[float]:
    return [abs(value.mean) for value in values if value.mean]


def _power_of_ten(sizes: Sequence[float]) -> int:
    """Power of ten, a multiple of 3, for short numbers: by the largest if all are small, else the least."""
    if not sizes or 0.01 <= max(sizes) < 1e5:
        return 0
    if max(sizes) < 0.01:
        return 3 * math.floor(math.log10(max(sizes)) / 3)
    return max(0, 3 * math.floor(math.log10(min(sizes)) / 3))


def _decimals(values: Sequence[Estimate]) -> int:
    """Decimals for two digits of the typical half-width and of the smallest mean, limited for the largest."""
    half_widths = [value.ci95 for value in values if value.ci95]
    if not half_widths and all(value.mean == round(value.mean) for value in values):
        return 0
    sizes = _sizes(values) or [0.0]
    magnitude = _magnitude(max(sizes))
    if not half_widths:
        return max(0, min(DIGITS - 1 - magnitude, MOST_DECIMALS))
    for_half_width = min(1 - _magnitude(median(half_widths)), DIGITS - 1 - magnitude)
    for_smallest = min(1 - _magnitude(min(sizes)), DIGITS + 1 - magnitude)
    return max(0, min(max(for_half_width, for_smallest), MOST_DECIMALS))


def _magnitude(value: float) -> int:
    return math.floor(math.log10(value)) if value > 0.0 else 0


def _unit_text(unit: str, power: int) -> str:
    scale = f"10{str(power).translate(_SUPERSCRIPT)}" if power else ""
    return " ".join(part for part in (scale, "" if unit == "1" else unit) if part)


def rounded(value: float, digits: int = 3, *, signed: bool = False) -> str:
    """A number in a sentence: so many digits, those before the point always in full."""
    if not math.isfinite(value):
        return "–"
    short = float(f"{value:.{digits}g}")
    if 0.0 < abs(short) < 1e-4:
        return f"{short:{'+' if signed else ''}g}"
    decimals = max(0, digits - 1 - _magnitude(abs(short)))
    text = f"{short:{'+' if signed else ''},.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent_text(frac: float, digits: int = 3, *, signed: bool = False) -> str:
    """A fraction as percent in a sentence, such as "12.5 %"; hundredths of a percent are the least."""
    if 0.0 < abs(frac) < LEAST_FRAC:
        return "0.00 %"
    return f"{rounded(100 * frac, digits, signed=signed)} %"


def title_of(metric: Metric) -> str:
    """Name of a metric in words, without its unit: `completion_p99_s` is "completion p99"."""
    if metric.name in _WORDS:
        return _WORDS[metric.name]
    stem = metric.name
    for suffix in _UNIT_SUFFIXES.get(metric.unit, ()):
        stem = stem.removesuffix(suffix)
    return " ".join(_WORDS.get(word, word) for word in stem.split("_"))


def with_unit(title: str, unit: str) -> str:
    """A heading: the title, and the unit in brackets if there is one."""
    return f"{title} ({unit})" if unit not in ("", "1") else title


def capital(text: str) -> str:
    """The text with its first letter as a capital."""
    return text[:1].upper() + text[1:]


def time_unit(span_s: float) -> tuple[str, float]:
    """The unit for a time axis of this length, and its length in seconds."""
    return next((unit, unit_s) for unit, unit_s, least_s in _TIME_UNITS if span_s >= least_s)


def load_text(offered_load: float) -> str:
    """An offered load, for a table."""
    return percent_text(offered_load) if math.isfinite(offered_load) else "all at once"


_PREFIXES: Final[dict[str, tuple[str, ...]]] = {
    "Latency": ("completion_", "slowdown_"),
    "Queueing": ("queueing_",),
    "Tokens": ("ttft_", "tpot_", "itl_", "kv_", "preemptions"),
    "Network": ("utilisation_links_", "fetched_", "returned_"),
    "Balance": ("utilisation_", "idle_", "jain_nodes"),
    "Outcome": ("finished_", "rejected_", "cancelled_", "lost_", "unfinished_", "retries"),
    "Targets": ("slo_", "deadline_", "jain_tenants", "starvation_"),
    "Cost": ("throughput_", "goodput_", "makespan_", "model_", "adapter_", "moved_", "accelerator_", "usd"),
    "Caching": ("prefix_", "result_"),
    "Queues": ("preempted", "queue_short_", "jain_queues"),
    "Chains": ("stretch_", "first_output_", "stage_", "recomputed_"),
}
OTHER: Final = "Other"


def metric_groups(metrics: Mapping[str, Metric]) -> dict[str, tuple[Metric, ...]]:
    """These metrics, each in one group; metrics without a group come last, as `OTHER`."""
    groups: dict[str, list[Metric]] = {name: [] for name in (*_PREFIXES, OTHER)}
    for metric in metrics.values():
        groups[_group_of(metric.name)].append(metric)
    return {name: tuple(members) for name, members in groups.items() if members}


def headline_metrics(
    metrics: Mapping[str, Metric], results: Sequence[PolicyResult] = ()
) -> tuple[Metric, ...]:
    """The metrics that a comparison shows by default, those of tokens among them where results have some."""
    tokens = [metrics[name] for name in TOKEN_HEADLINE if name in metrics]
    defined = [m for m in tokens if any(math.isfinite(result.metrics[m.name].mean) for result in results)]
    return (*defined, *(metric for metric in metrics.values() if metric.headline))


def _group_of(name: str) -> str:
    return next((group for group, prefixes in _PREFIXES.items() if name.startswith(prefixes)), OTHER)
