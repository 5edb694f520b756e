"""Compiled against interpreted: the same results, and how much slower."""

from __future__ import annotations

from collections.abc import Iterator

from bench.figures import Benchmark, Effort, Measured, figure, per_second, ratios
from bench.work import SLOTS_TEXT, both_s, slots

POLICIES, REQUESTS = ("power-of-d", "least-expected-wait"), 5_000


def measure(effort: Effort) -> Iterator[Measured]:
    for n_nodes in effort.nodes(100):
        built = slots(n_nodes, effort.requests(REQUESTS))
        for name in POLICIES:
            modes = ("compiled", "interpreted")
            compiled_s, plain_s = both_s(built, name, name, effort.repetitions, modes)
            n, labels = len(built.requests), {"policy": name, "nodes": n_nodes}
            for what, seconds in zip(modes, (compiled_s, plain_s), strict=True):
                yield figure(per_second(n, seconds), "million requests/s", **labels, figure=what)
            yield figure(
                ratios(plain_s, compiled_s), "× the time", **labels, figure="interpreted over compiled"
            )


BENCHMARK = Benchmark(
    "interpreted",
    "Compiled and interpreted",
    "The same loop as machine code and as plain Python over memoryviews; finish times are equal, bit for "
    f"bit. {SLOTS_TEXT}; {REQUESTS:,} requests.",
    measure,
)
