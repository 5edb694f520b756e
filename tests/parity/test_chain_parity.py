"""Runs of chains in the simulator and on the live host: the same run, to the bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_host_parity import assert_same, both

from support.builders import cluster, requests
from support.chains import Stage, after, chained
from trimtab.domain.chains import Flow, OnStageFailure
from trimtab.domain.options import Cancel, Options
from trimtab.policies import find

STAGES = {
    "a": Stage(0.6, output_gib=0.2, error_frac=0.1),
    "b": Stage([0.5, 1.0, 0.7], after("a"), output_gib=0.1, on_failure=OnStageFailure.SKIP),
    "c": Stage([0.2, 0.3, 0.2], {"b": Flow.EACH, "a": Flow.ALL}),
    "maybe": Stage(0.4, after("a"), is_skipped=True),
    "d": Stage(0.5, after("c", "b", "maybe")),
}
CASES = {
    "plain": Options(),
    "deadlines": Options(cancel=Cancel.ALWAYS),
    "stale": Options(telemetry_period_s=0.4, telemetry_delay_s=0.1, dispatchers=2),
    "held": Options(held_max=5, lookahead=3),
}
POLICIES = (
    "least-connections",
    "least-expected-completion",
    "late-binding",
    "congestion-aware+least-laxity",
    "downstream-aware",
)
AUTO = "auto(window=64,plan_period_s=1)"  # by rollouts
PAIRS = [(case, policy) for case in CASES for policy in POLICIES]


@pytest.mark.parametrize(("case", "policy"), PAIRS)
def test_both_hosts_run_chains_alike(case: str, policy: str) -> None:
    c = cluster(5, types=2, slots=2, zones=2, queue_max=1, nic_gib_per_s=1.0)
    r = requests(c, 40, load=0.3, seed=3, tenants=2, deadline_s=9.0)
    r = chained(c, replace(r, work=r.work.copy()), STAGES)
    decider = find(policy)
    simulated, live = both(c, r, CASES[case], decider.dispatch, decider.order, mode="interpreted")
    assert_same(simulated, live)
    for name in ("groups", "stages", "runs"):
        np.testing.assert_array_equal(getattr(simulated.state, name), getattr(live.state, name))
    assert simulated.state.counts["finished"][0] > 5


@pytest.mark.parametrize("case", ["deadlines", "stale"])
def test_both_hosts_choose_alike_by_rollouts(case: str) -> None:
    c = cluster(5, types=2, slots=2, zones=2, queue_max=1, nic_gib_per_s=1.0)
    r = requests(c, 160, load=0.2, seed=3, tenants=2, deadline_s=9.0)
    r = chained(c, replace(r, work=r.work.copy()), STAGES)
    decider = find(AUTO)
    simulated, live = both(c, r, CASES[case], decider.dispatch, decider.order, mode="compiled")
    assert_same(simulated, live)
    assert simulated.planning.made == live.planning.made > 2
    assert list(simulated.switches) == list(live.switches)
