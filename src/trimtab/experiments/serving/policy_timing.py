"""Computing time of policies: seconds for a decision, and for a plan."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numba
import numpy as np
from numba import types

from trimtab.compiled.compiling import compile_kernel
from trimtab.compiled.kernel import helper, kernel
from trimtab.domain.policy import Decider, Policy
from trimtab.domain.view import View
from trimtab.engine.calls import dispatch_at, plan_at, state_at
from trimtab.engine.driver import Driver
from trimtab.engine.held_work import decide
from trimtab.engine.simulator import run
from trimtab.engine.state import State
from trimtab.experiments.compare.kind import PolicyTiming
from trimtab.experiments.scenario import Scenario
from trimtab.experiments.scenario.build import RunInputs, build, scenario_workload
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


REPETITIONS, LONG_ENOUGH_S = 5, 0.01
_STRIDE, _LEAP = 7919, 31  # primes: requests and nodes take their turns in no order that caches would like
_REPEATED = types.void(numba.types.Array(types.int64, 1, "C"), types.int64)


@helper(inline=True)
def _swap(view: View, a: int, b: int) -> None:
    """Exchange the in-flight counts of two nodes, so that a policy has changes to process."""
    nodes = view.nodes
    in_flight, running, room = nodes.in_flight[a], nodes.running[a], nodes.room[a]
    outstanding_s, backlog_s, anchor_s = nodes.outstanding_s[a], nodes.backlog_s[a], nodes.anchor_s[a]
    nodes.in_flight[a], nodes.running[a], nodes.room[a] = nodes.in_flight[b], nodes.running[b], nodes.room[b]
    nodes.outstanding_s[a], nodes.backlog_s[a] = nodes.outstanding_s[b], nodes.backlog_s[b]
    nodes.anchor_s[a] = nodes.anchor_s[b]
    nodes.in_flight[b], nodes.running[b], nodes.room[b] = in_flight, running, room
    nodes.outstanding_s[b], nodes.backlog_s[b], nodes.anchor_s[b] = outstanding_s, backlog_s, anchor_s


@helper(inline=True)
def _change_two_nodes(s: State, d: int, i: int) -> None:
    n = len(s.nodes.up)
    a = i * _LEAP % n
    b = (a + 1 + i % max(1, n - 1)) % n
    _swap(s.views[d], a, b)
    s.changed[d][0] = a
    s.contexts.n_changed[d] = 1
    if a != b:
        s.changed[d][1] = b
        s.contexts.n_changed[d] = 2


@kernel
def decide_repeatedly(bound: Any, count: int) -> None:
    """Decide `count` times about requests that have arrived; two nodes change before each decision.

    A run changes as many, because each request starts and ends on a node.
    """
    s, plan, dispatch = state_at(bound[0]), plan_at(bound[1]), dispatch_at(bound[2], bound[3])
    for i in range(count):
        r = i * _STRIDE % s.counts.arrived[0]
        _change_two_nodes(s, r % s.config.dispatchers[0], i)
        decide(s, plan, dispatch, r, s.counts.now_s[0])


def decision_s(driver: Driver) -> float:
    """Seconds for one decision of a compiled run in which requests have arrived; this spoils the run.

    Least processor time of several measurements with warm caches; random draws and the change of two nodes
    are included.
    """
    repeat = compile_kernel(decide_repeatedly, _REPEATED)
    count = 1
    while (taken_s := _seconds(repeat, driver.addresses, count)) < LONG_ENOUGH_S:
        count *= 2
    return min(taken_s, *(_seconds(repeat, driver.addresses, count) for _ in range(REPETITIONS))) / count


def _seconds(repeat: Any, bound: np.ndarray, count: int) -> float:
    begun_s = time.thread_time()
    repeat(bound, count)
    return time.thread_time() - begun_s
