"""Families of metrics with their rows, for prometheus_client."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import accumulate
from math import isnan
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

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


def prometheus_metric(family: Family, table: Table) -> Metric:
    """A family with its rows."""
    if family.type is Type.HISTOGRAM:
        return _histogram(family, table)
    kind = CounterMetricFamily if family.type is Type.COUNTER else GaugeMetricFamily
    metric = kind(family.name, family.help, labels=family.labels)
    for labels, row in table.items():
        if not isnan(row[0]):
            metric.add_metric(labels, row[0])
    return metric


def _histogram(family: Family, table: Table) -> Metric:
    metric = HistogramMetricFamily(family.name, family.help, labels=family.labels)
    for labels, row in table.items():
        metric.add_metric(labels, _cumulative(family, row), sum_value=row[-1])
    return metric


def _cumulative(family: Family, row: Row) -> list[tuple[str, float]]:
    bounds = [*(repr(bound) for bound in family.bounds), "+Inf"]
    return list(zip(bounds, accumulate(row[:-1]), strict=True))
