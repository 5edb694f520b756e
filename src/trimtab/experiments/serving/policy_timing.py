"""Computing time of policies: seconds for a decision, and for a plan."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from trimtab.domain.policy import Decider, Policy
from trimtab.engine.simulator import run
from trimtab.experiments.compare.kind import PolicyTiming
from trimtab.experiments.scenario import Scenario
from trimtab.experiments.scenario.build import RunInputs, build, scenario_workload
from trimtab.experiments.serving.decision_time import decision_s
from trimtab.policies import PolicySpec, canonical, find

MOST_ARRIVALS = 20_000  # requests after which the run stands still, at the latest


def time_policies(scenario: Scenario, policies: Sequence[PolicySpec], seed: int) -> list[PolicyTiming]:
    """Time each policy, one after the other, in a run of half the requests. Compiles missing kernels first.

    Raises PolicyError for a policy that fails.
    """
    built = build(scenario, seed)
    return [_timing(scenario, built, spec, seed) for spec in policies]


def _timing(scenario: Scenario, built: RunInputs, spec: PolicySpec, seed: int) -> PolicyTiming:
    decider = find(spec)
    timed, plan_s = _with_stopwatch(decider.dispatch)
    arrival_s = built.requests.work["arrival_s"]
    half_s = float(arrival_s[min(len(arrival_s) // 2, MOST_ARRIVALS)])
    options = replace(built.options, horizon_s=min(built.options.horizon_s, half_s))
    driver = run(
        built.cluster,
        built.requests,
        options,
        Decider.of(timed, None if decider.has_own_order else decider.order),
        seed=seed,
        mode="compiled",
        declared=scenario_workload(decider.dispatch, scenario, seed),
    )
    decision = decision_s(driver)
    mean_s, max_s = (float(np.mean(plan_s)), max(plan_s)) if plan_s else (np.nan, np.nan)
    return PolicyTiming(canonical(spec), built.cluster.n_nodes, decision, len(plan_s), mean_s, max_s)


def _with_stopwatch(policy: Policy) -> tuple[Policy, list[float]]:
    """A copy of the policy, and a list that collects the seconds of each of its plans."""
    timed, seconds, plan = copy.copy(policy), list[float](), policy.plan

    def timed_plan(*args: Any) -> Any:
        begun_s = time.perf_counter()
        try:
            return plan(*args)
        finally:
            seconds.append(time.perf_counter() - begun_s)

    object.__setattr__(timed, "plan", timed_plan)  # policies are frozen
    return timed, seconds
