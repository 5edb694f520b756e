"""All benchmarks, in the order in which they run."""

from __future__ import annotations

from bench import (
    choices,
    decisions,
    everything_on,
    interpreted,
    peers,
    policies_by_nodes,
    python_policy,
    scaling,
    stages,
    startup,
    trees,
)

BENCHMARKS = {
    module.BENCHMARK.name: module.BENCHMARK
    for module in (
        policies_by_nodes,
        decisions,
        peers,
        everything_on,
        python_policy,
        trees,
        interpreted,
        scaling,
        stages,
        startup,
        choices,
    )
}
