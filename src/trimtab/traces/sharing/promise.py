"""What a shared trace promises, what of the budget goes to which statistic, and what can't be promised."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import polars as pl

from trimtab.errors import TraceError, UsageError
from trimtab.privacy.accounting import epsilon_of, rho_of, rho_of_sigma, sigma_of
from trimtab.traces.read import Trace
from trimtab.words import counted

NAMED: Final = ("class", "model", "adapter", "tenant")
NUMBERS: Final = (
    *("prompt_tokens", "output_tokens", "images", "steps", "size", "deadline_s", "priority", "payload_gib"),
)
PARENTS: Final = {  # number → number that it goes with, the first that there is
    "output_tokens": ("prompt_tokens",),
    "steps": ("images",),
    "size": ("output_tokens", "steps"),
    "deadline_s": ("output_tokens", "steps", "size"),
}
ROW: Final = "row"
WEIGHTS: Final = {  # shares of the budget; those of statistics that a trace lacks go to the others
    "span": 0.03,
    "rate": 0.24,
    "bursts": 0.10,
    "volumes": 0.08,
    "names": 0.16,  # of all named columns together
    "sizes": 0.25,  # of all columns of numbers together
    "pairs": 0.12,
    "times": 0.16,  # of the classes and all columns of numbers together
}
RATE_CLEAR: Final = 15.0  # standard deviations of noise, of the mean count of a bin of the rate
BINS_MIN: Final = 8  # of the rate


@dataclass(frozen=True)
class Promise:
    """What a release promises: (ε, δ) for each unit of privacy, of which at most `bound` rows count.

    `public` are the names of a column that may be told: column → names.
    """

    epsilon: float
    delta: float = 1e-6
    unit: str = ROW
    bound: int = 1
    public: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def columns_of(table: pl.DataFrame, size_rule: str | None, unit: str) -> tuple[list[str], list[str]]:
    """Columns of names and of numbers that are shared; a size that follows from others is made anew."""
    named: list[str] = [name for name in NAMED if name in table.columns and name != unit]
    is_made = size_rule is not None and not size_rule.startswith("column ") and follows(table, size_rule)
    numbers: list[str] = [n for n in NUMBERS if n in table.columns and not (n == "size" and is_made)]
    return named, numbers


def follows(table: pl.DataFrame, size_rule: str) -> bool:
    """Whether the size of a request follows from other columns by a rule that trimtab knows."""
    if size_rule.startswith("output tokens"):
        return "output_tokens" in table.columns
    return size_rule == "denoising steps × images" and {"steps", "images"} <= set(table.columns)


def budget(named: list[str], numbers: list[str], promise: Promise) -> dict[str, float]:
    """Statistic → share of the budget; they sum to 1."""
    pairs = [name for name in numbers if parent_of(name, numbers) is not None]
    parts = {name: WEIGHTS[name] for name in ("span", "rate", "bursts")}
    if promise.unit == "tenant":
        parts["volumes"] = WEIGHTS["volumes"]
    timed = [name for name in named if name == "class"] + numbers
    for kind, columns in (("names", named), ("sizes", numbers), ("pairs", pairs), ("times", timed)):
        parts |= {f"{kind} {column}": WEIGHTS[kind] / len(columns) for column in columns}
    total = sum(parts.values())
    return {name: weight / total for name, weight in parts.items()}


def least_epsilon(rows: int, promise: Promise, rate_share: float) -> float:
    """The least ε at which the rate of so many rows shows above the noise."""
    sigma = rows / (RATE_CLEAR * BINS_MIN)
    return epsilon_of(rho_of_sigma(sigma, sensitivity=promise.bound) / rate_share, promise.delta / 2.0)


def parent_of(column: str, numbers: list[str]) -> str | None:
    """The number that a number goes with; None where it is drawn by itself."""
    return next((name for name in PARENTS.get(column, ()) if name in numbers), None)


def cost(promise: Promise) -> tuple[float, float]:
    """ρ of all statistics, and the part of δ that is for names which only one unit has.

    Half of δ is for names, whether there are columns of names or not.
    """
    delta_of_names = promise.delta / 2.0
    return rho_of(promise.epsilon, promise.delta - delta_of_names), delta_of_names


def check(trace: Trace, promise: Promise) -> None:
    """Refuse a promise that makes no sense, or can't be kept with this trace. Raises UsageError."""
    table = trace.table
    if trace.stages is not None:
        raise TraceError("holds runs of chains", file=trace.file, expected="requests")
    if not 0.0 < promise.epsilon < math.inf:
        raise _refused("--epsilon", promise.epsilon, "a number above 0")
    if promise.unit != ROW and promise.unit not in table.columns:
        raise _refused(
            "--unit", promise.unit, f"{ROW}, or one of the trace's columns: {', '.join(table.columns)}"
        )
    if promise.bound < 1 or (promise.unit == ROW and promise.bound != 1):
        raise _refused("--bound", promise.bound, "1 with --unit row" if promise.unit == ROW else "at least 1")
    named, numbers = columns_of(table, trace.size_rule, promise.unit)
    for column in promise.public:
        if column not in named:
            raise _refused(
                "--public", column, f"one of the columns of names: {', '.join(named) or 'there is none'}"
            )
    units = table.height if promise.unit == ROW else table[promise.unit].n_unique()
    if not 0.0 < promise.delta < 1.0 / units:
        raise _refused("--delta", promise.delta, f"above 0 and below 1/{units}, one over the number of units")
    rows = table.height
    if promise.unit != ROW:
        volumes = table[promise.unit].value_counts()["count"]
        rows = int(volumes.clip(upper_bound=promise.bound).sum())
    share = budget(named, numbers, promise)["rate"]
    rho = share * cost(promise)[0]
    if rows < RATE_CLEAR * BINS_MIN * sigma_of(rho, sensitivity=promise.bound):
        least = math.ceil(100.0 * least_epsilon(rows, promise, share)) / 100.0
        problem = f"too small a table for this privacy: {counted(rows, 'row')} count"
        expected = f"at least {least:g}, where the rate stands out from the noise"
        raise UsageError(
            problem, file=trace.file, field="--epsilon", value=promise.epsilon, expected=expected
        )


def _refused(option: str, value: object, expected: str) -> UsageError:
    return UsageError("cannot be used", field=option, value=value, expected=expected)
