"""How many nodes does this work need? The least fleet whose SLO attainment reaches the target."""

import trimtab as tt

TARGET_FRAC = 0.99


def with_nodes(scenario: tt.Scenario, count: int) -> tt.Scenario:
    """The scenario with `count` nodes of its first type, and arrivals as they come."""
    only = scenario.cluster.nodes[0].model_copy(update={"count": count})
    cluster = scenario.cluster.model_copy(update={"nodes": (only,)})
    workload = scenario.workload.model_copy(update={"load": None})
    return scenario.model_copy(update={"cluster": cluster, "workload": workload})


base = tt.scenario("tiny")
for count in range(1, 33):
    run = tt.simulate(with_nodes(base, count), "least-expected-completion")
    attained_frac, usd = run.metrics["slo_attained_frac"], run.metrics["usd_per_1k"]
    print(f"{count:2} nodes: {attained_frac:6.1%} within their SLO, {usd:.2f} USD per 1,000 requests")
    if attained_frac >= TARGET_FRAC:
        break
