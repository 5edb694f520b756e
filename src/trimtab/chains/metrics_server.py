"""The metrics of running chains in Prometheus's text format, on a port of their own."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Thread
from wsgiref.simple_server import WSGIServer

from trimtab.chains.run_metrics import STAGE_FAMILIES, StageMetrics
from trimtab.errors import MissingExtra, UsageError

try:
    from prometheus_client import CollectorRegistry, generate_latest, start_http_server
    from prometheus_client.core import Metric
    from prometheus_client.registry import Collector

    from trimtab.live.prometheus_metrics import prometheus_metric
except ImportError as missing:
    raise MissingExtra(
        "metrics of chains need prometheus-client", expected="pip install 'trimtab[chains]'"
    ) from missing

DEFAULT_HOST = "127.0.0.1"


class StageCollector(Collector):
    """Passes the metrics of a host to prometheus_client."""

    def __init__(self, metrics: StageMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """Every family, with its rows."""
        tables = self._metrics.tables()
        return (prometheus_metric(family, tables[family.name]) for family in STAGE_FAMILIES)

    def describe(self) -> Iterator[Metric]:
        """The families without values."""
        return (prometheus_metric(family, {}) for family in STAGE_FAMILIES)


def registry_of(metrics: StageMetrics) -> CollectorRegistry:
    """A registry of these metrics only."""
    registry = CollectorRegistry()
    registry.register(StageCollector(metrics))
    return registry


def exposition(metrics: StageMetrics) -> bytes:
    """The text of `/metrics`."""
    return generate_latest(registry_of(metrics))


class MetricsServer:
    """Serves `/metrics` in a thread. Raises UsageError if the port is taken."""

    def __init__(self, metrics: StageMetrics, port: int, host: str = DEFAULT_HOST) -> None:
        self._server: WSGIServer
        self._thread: Thread
        try:
            self._server, self._thread = start_http_server(port, host, registry_of(metrics))
        except (OSError, OverflowError) as error:
            raise UsageError(
                f"metrics cannot be served there: {error}", field="metrics_port", value=f"{host}:{port}",
                expected="a free port",
            ) from error  # fmt: skip

    @property
    def port(self) -> int:
        """The port; chosen by the system where 0 was asked for."""
        return int(self._server.server_port)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
