"""The values of all metrics: plain numbers in plain containers.

A row is a list of numbers. Its writer keeps a reference to the row, so that an event needs no look-up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from trimtab.gateway.nodes.resource_use import ResourceUse
from trimtab.gateway.observe.metric_families import FAMILIES
from trimtab.gateway.observe.window import SECONDS_KEPT, Second
from trimtab.live.metric_family import Row, Table

Use = list[float]  # per node: used slot-seconds, seconds with requests in flight, available slot-seconds

ResourceSums = list[float]  # per node and resource: sums of what is used, and of what there is

SAMPLE_S: Final = 5  # between two samples of resources
SPAN_S: Final = 10  # length of the spans of node use
SPANS_KEPT: Final = 6


@dataclass(slots=True)
class MetricStore:
    """Rows by metric family, the latest seconds, and the use of nodes in the last minute."""

    tables: dict[str, Table] = field(default_factory=dict)
    seconds: dict[int, Second] = field(default_factory=dict)  # by second of the clock
    use: dict[int, dict[str, Use]] = field(default_factory=dict)  # by SPAN_S of the clock, then by node

    resources: dict[int, dict[tuple[str, str], ResourceSums]] = field(default_factory=dict)  # as `use`

    def sample(self, span: int, uses: Iterable[ResourceUse]) -> None:
        """Add a sample of the nodes' resources."""
        sums = self.resources.setdefault(span, {})
        for one in uses:
            row = sums.setdefault((one.resource, one.node), [0.0, 0.0])
            row[0] += one.used
            row[1] += one.capacity

    def table(self, name: str) -> Table:
        """The rows of a metric family, by the values of their labels."""
        if name not in FAMILIES:
            raise KeyError(name)
        return self.tables.setdefault(name, {})

    def row(self, name: str, *labels: str) -> Row:
        """The row with these labels; a new one is all zeros."""
        table = self.table(name)
        found = table.get(labels)
        if found is None:
            found = table[labels] = [0.0] * FAMILIES[name].width
        return found

    def set(self, name: str, value: float, *labels: str) -> None:
        """Set a gauge, or a counter that another part maintains."""
        self.row(name, *labels)[0] = value

    def forget(self, now_s: float) -> None:
        """Drop old seconds and spans."""
        for at in [at for at in self.seconds if at <= now_s - SECONDS_KEPT]:
            del self.seconds[at]
        oldest = now_s // SPAN_S - SPANS_KEPT
        for at in [at for at in self.use if at <= oldest]:
            del self.use[at]
        for at in [at for at in self.resources if at <= oldest]:
            del self.resources[at]
