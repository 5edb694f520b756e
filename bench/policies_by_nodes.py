"""Speed of every policy of the catalogue by the number of nodes."""

from __future__ import annotations

from collections.abc import Iterator

from bench.figures import Benchmark, Effort, Figure, Measured, Target, at_least, figure, per_second
from bench.kernels import BareLoop
from bench.work import SLOTS_TEXT, head, loop_s, slots
from trimtab.domain.policy import Policy
from trimtab.experiments.scenario.build import RunInputs
from trimtab.policies import find, names

REQUESTS, LONGEST_S = 500_000, 1.0
TARGETS = {
    ("round-robin", 100): at_least(3),
    ("round-robin", 10_000): at_least(1.5),
    ("power-of-d", 100): at_least(3),
    ("power-of-d", 10_000): at_least(1.5),
    ("least-expected-wait", 1_000): at_least(2),
    ("least-expected-wait", 10_000): at_least(1),
}
BARE = "(bare loop)"


def contestants() -> dict[str, str | Policy]:
    """The bare loop, then the catalogue: every dispatcher, and every other order under one of them.

    Planners are left out: `trimtab compare --timing` tells what their plans take.
    """
    dispatchers = [name for name in names("dispatch") if find(name)[0].plan_period_s == 0.0]
    orders = [f"least-expected-wait+{name}" for name in names("order") if name != "fcfs"]
    return {BARE: BareLoop(), **{name: name for name in (*dispatchers, *orders)}}


def _speed(
    inputs: RunInputs, spec: str | Policy, repetitions: int, target: Target | None, name: str
) -> Figure:
    """Requests per second; fewer requests where the first tenth shows that all would take too long."""
    n_nodes, n = inputs.cluster.n_nodes, len(inputs.requests)
    tenth = head(inputs, n // 10)
    least_s = 10 * loop_s(tenth, spec)
    work = tenth if least_s > LONGEST_S and target is None else inputs
    speeds = per_second(len(work.requests), [loop_s(work, spec) for _ in range(repetitions)])
    return figure(speeds, "million requests/s", target, policy=name, nodes=n_nodes)


def measure(effort: Effort) -> Iterator[Measured]:
    for n_nodes in effort.nodes(10, 100, 1_000, 10_000):
        built = slots(n_nodes, effort.requests(REQUESTS))
        for name, spec in contestants().items():
            yield _speed(built, spec, effort.repetitions, TARGETS.get((name, n_nodes)), name)


BENCHMARK = Benchmark(
    "policies",
    "Policies by number of nodes",
    f"Million requests/s on one core, the loop and its draws only. {SLOTS_TEXT}; {REQUESTS:,} requests, a "
    f"tenth of them where these would take more than {LONGEST_S:g} s.",
    measure,
    pivot=("policy", "nodes"),
    profile=f"The row {BARE} is the loop with a policy that reads and remembers nothing: what a row takes "
    "beyond it is its policy. From 1,000 to 10,000 nodes the loop itself slows, as nodes, slots and requests "
    "in flight leave the caches.",
)
