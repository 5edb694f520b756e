"""The time of one decision, of every policy of the catalogue, at 100 nodes."""

from __future__ import annotations

from collections.abc import Iterator

from bench.figures import Benchmark, Effort, Measured, at_most, figure
from bench.work import SLOTS_TEXT, slots_scenario
from trimtab.experiments.scenario import Scenario, load_scenario
from trimtab.experiments.serving.policy_timing import time_policies
from trimtab.policies import names

NODES, REQUESTS = 100, 2_400
LIMIT_US = 1.0


def _aigc_images(n_requests: int) -> Scenario:
    """The built-in scenario of 100 nodes, shorter."""
    parts = load_scenario("aigc-images").model_dump(mode="json", exclude_defaults=True)
    parts["workload"]["generate"]["requests"] = n_requests
    return Scenario.model_validate(parts)


def measure(effort: Effort) -> Iterator[Measured]:
    n = effort.requests(REQUESTS)
    policies = names("dispatch")[:: 8 if effort.is_quick else 1]
    for scenario in (_aigc_images(n), slots_scenario(NODES, n)):
        turns = range(3 * effort.repetitions)  # the machine changes its speed within seconds
        rounds = [time_policies(scenario, policies, 0) for _ in turns]
        for of_policy in zip(*rounds, strict=True):
            microseconds = [1e6 * timing.decision_s for timing in of_policy]
            name = of_policy[0].policy
            yield figure(microseconds, "µs", at_most(LIMIT_US), policy=name, scenario=scenario.name)


BENCHMARK = Benchmark(
    "decisions",
    "One decision",
    f"Microseconds for one decision at {NODES} nodes, compiled, as `trimtab compare --timing` measures them: "
    "processor time in a run that stands still, two nodes changed before each decision. aigc-images has 32 "
    f"models, 245 adapters and four kinds of nodes. slots: {SLOTS_TEXT}.",
    measure,
    pivot=("policy", "scenario"),
    profile="Policies that look at every node (all over 0.4 µs) take 3 to 5 ns a node to score it, and "
    "about 0.2 µs to rank the best eight.",
)
