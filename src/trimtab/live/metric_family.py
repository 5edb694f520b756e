"""Families of metrics as Prometheus knows them, and their rows of values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

Row = list[float]
Table = dict[tuple[str, ...], Row]
"""The rows of a family, by the values of its labels."""

DURATION_BOUNDS_S: Final = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0,
)  # fmt: skip


class Type(Enum):
    """The type of a metric in Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Family:
    """One metric. A row holds one number; for a histogram the counts by bound, the rest and the sum."""

    name: str
    help: str
    type: Type = Type.COUNTER
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()  # increasing upper bounds; for histograms only

    @property
    def width(self) -> int:
        """The number of values in a row."""
        return len(self.bounds) + 2 if self.bounds else 1


def histogram(name: str, text: str, *labels: str, bounds: tuple[float, ...] = DURATION_BOUNDS_S) -> Family:
    """A histogram."""
    return Family(name, text, Type.HISTOGRAM, labels, bounds)


def gauge(name: str, text: str, *labels: str) -> Family:
    """A gauge."""
    return Family(name, text, Type.GAUGE, labels)


def counter(name: str, text: str, *labels: str) -> Family:
    """A counter."""
    return Family(name, text, Type.COUNTER, labels)
