"""The metric store in Prometheus's text format."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from trimtab.gateway.observe.metric_store import FAMILIES, MetricStore
from trimtab.gateway.observe.summaries import balance, node_use, resource_balance
from trimtab.live.metric_family import Table
from trimtab.live.prometheus_metrics import prometheus_metric
from trimtab.metrics.definitions import RESOURCE_METRIC_NAMES

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
    use, spread = node_use(store), balance(store)
    resources = resource_balance(store)

    def of(figure: str) -> Table:
        return {(name,): [resources[figure.format(name)]] for name in RESOURCE_METRIC_NAMES}

    return {
        "trimtab_resource_utilisation_ratio": of("utilisation_{}_frac"),
        "trimtab_resource_utilisation_variance": of("utilisation_{}_var"),
        "trimtab_resource_idle_ratio": of("idle_{}_frac"),
        "trimtab_node_utilisation_ratio": {(name,): [one.utilisation_frac] for name, one in use.items()},
        "trimtab_node_busy_ratio": {(name,): [one.busy_frac] for name, one in use.items()},
        "trimtab_utilisation_mean_ratio": {(): [spread.mean_frac]},
        "trimtab_utilisation_variance": {(): [spread.variance]},
        "trimtab_utilisation_cv": {(): [spread.cv]},
        "trimtab_idle_ratio": {(): [spread.idle_frac]},
        "trimtab_idle_node_ratio": {(): [spread.idle_node_frac]},
        "trimtab_completion_seconds_variance": {(): [spread.completion_variance_s2]},
    }
