"""The cost of leaving a policy in plain Python."""

from __future__ import annotations

from collections.abc import Iterator

from bench.figures import Benchmark, Effort, Measured, at_least, figure, per_second, ratios
from bench.kernels import (
    ChooseLeast,
    ChooseLeastByMask,
    ChooseTwoChoices,
    CompiledTwoChoices,
    PlainTwoChoices,
)
from bench.work import SLOTS_TEXT, both_s, slots

REQUESTS = 300_000


def measure(effort: Effort) -> Iterator[Measured]:
    for n_nodes in effort.nodes(100, 1_000):
        built = slots(n_nodes, effort.requests(REQUESTS))
        plain_s, compiled_s = both_s(built, PlainTwoChoices(), CompiledTwoChoices(), effort.repetitions)
        n, unit = len(built.requests), "million requests/s"
        yield figure(per_second(n, plain_s), unit, at_least(0.5), nodes=n_nodes, figure="plain Python")
        yield figure(per_second(n, compiled_s), unit, nodes=n_nodes, figure="compiled")
        two_s, _ = both_s(built, ChooseTwoChoices(), CompiledTwoChoices(), effort.repetitions)
        least_s, mask_s = both_s(built, ChooseLeast(), ChooseLeastByMask(), effort.repetitions)
        target = at_least(0.2) if n_nodes == 100 else None
        yield figure(per_second(n, two_s), unit, nodes=n_nodes, figure="choose, power of two")
        yield figure(per_second(n, least_s), unit, target, nodes=n_nodes, figure="choose, least connections")
        yield figure(per_second(n, mask_s), unit, nodes=n_nodes, figure="choose, least connections by mask")
        yield figure(ratios(plain_s, compiled_s), "× the time", nodes=n_nodes, figure="plain over compiled")


BENCHMARK = Benchmark(
    "python-policy",
    "A policy in plain Python",
    f"Power of two, the same three lines plain and compiled, in the same compiled loop, with equal results. "
    f"{SLOTS_TEXT}; {REQUESTS:,} requests.",
    measure,
    pivot=("figure", "nodes"),
    profile="What plain takes beyond compiled is one callback into Python, two draws read, two columns read.",
)
