"""The metric store in Prometheus's text format."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from trimtab.gateway.observe.metric_store import BALANCE_FAMILIES, FAMILIES, MetricStore
from trimtab.gateway.observe.summaries import balance, node_use
from trimtab.live.metric_family import Table
from trimtab.live.prometheus_metrics import prometheus_metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class StoreCollector(Collector):
    """Passes a store, with figures of the last minute that are derived from it, to prometheus_client."""

    def __init__(self, read: Callable[[], MetricStore]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Every family of the catalogue. A family without rows has its help text only."""
        store = self._read()
        derived = _derived(store)
        for name, family in FAMILIES.items():
            yield prometheus_metric(family, derived.get(name) or store.tables.get(name, {}))

    def describe(self) -> Iterator[Metric]:
        """The families without values, so that registration reads no sources."""
        return (prometheus_metric(family, {}) for family in FAMILIES.values())


def exposition(store: MetricStore) -> bytes:
    """The text of `/metrics`."""
    registry = CollectorRegistry()
    registry.register(StoreCollector(lambda: store))
    return generate_latest(registry)


def _derived(store: MetricStore) -> dict[str, Table]:
    use = node_use(store)
    return {
        "trimtab_node_utilisation_ratio": {(name,): [one.utilisation_frac] for name, one in use.items()},
        "trimtab_node_busy_ratio": {(name,): [one.busy_frac] for name, one in use.items()},
        **{BALANCE_FAMILIES[name]: {(): [value]} for name, value in balance(store).items()},
    }
