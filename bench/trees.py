"""Where tournament trees pay over looking at every node."""

from __future__ import annotations

from collections.abc import Iterator

from bench.figures import Benchmark, Effort, Measured, figure, per_second, ratios
from bench.kernels import ScanLeastConnections, ScanLeastExpectedWait
from bench.work import SLOTS_TEXT, both_s, slots
from trimtab.domain.policy import Policy
from trimtab.experiments.scenario.build import RunInputs

SCANS: dict[str, Policy] = {
    "least-connections": ScanLeastConnections(),
    "least-expected-wait(aged=false)": ScanLeastExpectedWait(),
}
REQUESTS, LOOKS = 150_000, 200_000_000


def _compare(built: RunInputs, name: str, repetitions: int) -> Iterator[Measured]:
    n, n_nodes = len(built.requests), built.cluster.n_nodes
    tree_s, scan_s = both_s(built, name, SCANS[name], repetitions)
    for what, seconds in (("tree", tree_s), ("scan", scan_s)):
        row = f"{name} by {what}, million requests/s"
        yield figure(per_second(n, seconds), "million requests/s", figure=row, nodes=n_nodes)
    yield figure(ratios(scan_s, tree_s), "× as fast", figure=f"{name}, tree over scan", nodes=n_nodes)


def measure(effort: Effort) -> Iterator[Measured]:
    for n_nodes in effort.nodes(10, 30, 100, 300, 1_000, 10_000):
        built = slots(n_nodes, effort.requests(min(REQUESTS, LOOKS // n_nodes)))
        for name in SCANS:
            yield from _compare(built, name, effort.repetitions)


BENCHMARK = Benchmark(
    "trees",
    "Trees against scans",
    "The same decisions, found by tournament trees kept up to date from the change log, or by looking at "
    f"every node. {SLOTS_TEXT}; {REQUESTS:,} requests, fewer at 10,000 nodes.",
    measure,
    pivot=("figure", "nodes"),
)
