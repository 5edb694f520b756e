"""The results of a benchmark: measured figures, each with its unit, its spread and, where set, its target."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import comb
from typing import Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class Target:
    """A bound that a figure has to keep."""

    kind: Literal["at least", "at most"]
    bound: float

    def is_met(self, value: float) -> bool:
        return value >= self.bound if self.kind == "at least" else value <= self.bound

    def __str__(self) -> str:
        return f"{'≥' if self.kind == 'at least' else '≤'} {self.bound:g}"


def at_least(bound: float) -> Target:
    return Target("at least", bound)


def at_most(bound: float) -> Target:
    return Target("at most", bound)


@dataclass(frozen=True, slots=True)
class Figure:
    """Median, least and most of some repetitions."""

    labels: dict[str, str]  # what was measured: column → value of the tables
    unit: str
    median: float
    least: float
    most: float
    repetitions: int
    target: Target | None = None

    @property
    def is_met(self) -> bool | None:
        """Whether the median keeps the target; None where there is none."""
        return None if self.target is None else self.target.is_met(self.median)


@dataclass(frozen=True, slots=True)
class Skipped:
    """The figures that could not be measured here, and why."""

    labels: dict[str, str]
    reason: str


Measured: TypeAlias = Figure | Skipped


@dataclass(frozen=True, slots=True)
class Effort:
    """How much to measure. A quick run only shows that everything works: its figures mean nothing."""

    is_quick: bool = False
    repetitions: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "repetitions", 1 if self.is_quick else 3)

    def requests(self, full: int) -> int:
        return min(full, 1_000) if self.is_quick else full

    def nodes(self, *full: int) -> tuple[int, ...]:
        """Node counts; a quick run takes a few small ones."""
        return (4, 12) if self.is_quick else full


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One file of this folder."""

    name: str
    title: str
    about: str  # what is measured, and on what
    measure: Callable[[Effort], Iterator[Measured]]
    pivot: tuple[str, str] | None = None  # labels that make rows and columns of a table of the page
    profile: str = ""  # where to read why a target is missed


def figure(values: Sequence[float], unit: str, target: Target | None = None, **labels: object) -> Figure:
    """A figure from its repetitions; `nodes=100` is labelled "100 nodes"."""
    texts = {
        name: f"{label:,} {name}" if isinstance(label, int) else str(label) for name, label in labels.items()
    }
    return Figure(texts, unit, statistics.median(values), min(values), max(values), len(values), target)


def median_of(values: Sequence[float], unit: str, target: Target | None = None, **labels: object) -> Figure:
    """A figure of many noisy repetitions: in place of least and most the 95 % interval of their median.

    By order statistics: between the k-th least and the k-th most, k from the binomial distribution (David and
    Nagaraja, Order Statistics, 2003, §7.1).
    """
    n, inside = len(values), sorted(values)
    outside, k = 0.5**n, 0
    while outside + comb(n, k + 1) * 0.5**n <= 0.025:
        k += 1
        outside += comb(n, k) * 0.5**n
    return replace(figure(inside, unit, target, **labels), least=inside[k], most=inside[n - 1 - k])


def per_second(count: int, seconds: Sequence[float]) -> list[float]:
    """Millions a second."""
    return [count / s / 1e6 for s in seconds]


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """Ratios of what was measured in turns, pair by pair."""
    return [a / b for a, b in zip(over, under, strict=True)]


def in_turns(repetitions: int, *contestants: Callable[[], float]) -> list[list[float]]:
    """The measurements of each contestant, taking turns so that all meet the same machine."""
    rounds = [[contestant() for contestant in contestants] for _ in range(repetitions)]
    return [list(values) for values in zip(*rounds, strict=True)]
