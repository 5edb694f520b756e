"""Families of metrics with their rows, for prometheus_client."""

from __future__ import annotations

from itertools import accumulate
from math import isnan

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from trimtab.live.metric_family import Family, Row, Table, Type


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
