"""Which candidate of a composite decides, since when, and what is told of its rollouts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from support.waiting import until
from trimtab.domain.planning import Evidence
from trimtab.domain.policy import Policy
from trimtab.domain.view import Plan, empty_plan
from trimtab.gateway.decide.dispatch_rules import DispatchRules, PolicyChoice
from trimtab.gateway.decide.dispatcher import PolicyDispatcher
from trimtab.gateway.decide.pool import ActiveCandidate, label
from trimtab.gateway.nodes.fleet import Fleet
from trimtab.gateway.nodes.node_state import NodeSpec
from trimtab.policies.load_aware.least_connections import LeastConnections
from trimtab.policies.load_aware.power_of_d import PowerOfD
from trimtab.policies.load_aware.sampled_completion import SampledCompletion

FIRST, SECOND = LeastConnections(), PowerOfD(d=4)


@dataclass(frozen=True)
class Second(Policy):
    """A composite whose every plan lets the second candidate decide."""

    name: ClassVar[str] = "second"
    plan_period_s: float = 0.01

    dispatch = staticmethod(FIRST.dispatch)

    @property
    def candidates(self) -> tuple[Policy, ...]:
        return (FIRST, SECOND)

    def plan(self, view: Any, history: Any, waiting: Any, rollout: Any) -> Plan:
        return to(1)

    def evidence(self, plan: Plan) -> Evidence | None:
        """Of a plan with params: 2 s against 1.5 s."""
        if not plan.params.size:
            return None
        assert plan.params[0] > 0.0, "no such plan"
        apart = np.array([[0.0, -0.5], [0.0, 0.05]])
        return Evidence("mean", np.array([2.0, 1.5]), np.array([0.1, 0.08]), *apart)


def to(candidate: int, *params: float) -> Plan:
    return empty_plan()._replace(active_idx=np.array([candidate]), params=np.array(params))


def summary(candidate: ActiveCandidate, now_s: float) -> dict[str, Any]:
    said = candidate.summary(now_s)
    assert said is not None
    return said


def test_switches_and_their_times() -> None:
    candidate = ActiveCandidate(Second(), 10.0)
    first = summary(candidate, 15.0)
    assert (first["active"], first["since_s"], first["switches"], first["before"]) == (
        "least-connections",
        5.0,
        0,
        None,
    )
    candidate.note(to(1), 20.0)
    candidate.note(to(1), 30.0)
    after = summary(candidate, 32.0)
    assert (after["active"], after["since_s"], after["switches"], after["before"]) == (
        "power-of-d (d 4)",
        12.0,
        1,
        "least-connections",
    )
    candidate.reset(33.0)
    assert summary(candidate, 33.0)["active"] == "least-connections"


def test_evidence_stands_beside_the_candidate_that_it_was_taken_against() -> None:
    candidate = ActiveCandidate(Second(), 0.0)
    assert summary(candidate, 1.0)["rollout_age_s"] is None
    candidate.note(to(1, 1.0), 2.0)
    candidate.note(to(1), 4.0)  # of no rollout: the last one stays
    said = summary(candidate, 5.0)
    assert (said["rollout_age_s"], said["against"], said["objective"]) == (3.0, "least-connections", "mean")
    assert said["each"][1] == {
        "name": "power-of-d (d 4)",
        "value_s": 1.5,
        "error_s": 0.08,
        "apart_s": -0.5,
        "apart_error_s": 0.05,
    }


def test_evidence_that_raises_is_logged_and_the_plan_counts(caplog: pytest.LogCaptureFixture) -> None:
    candidate = ActiveCandidate(Second(), 0.0)
    candidate.note(to(1, -1.0), 2.0)
    assert "no such plan" in caplog.text
    assert summary(candidate, 3.0)["active"] == "power-of-d (d 4)"


def test_others_have_none() -> None:
    assert ActiveCandidate(FIRST, 0.0).summary(1.0) is None
    assert (label(SampledCompletion()), label(SampledCompletion(d=8))) == (
        "sampled-completion",
        "sampled-completion (d 8)",
    )


async def test_a_pool_follows_its_plans_and_begins_anew_with_its_state() -> None:
    loop = asyncio.get_running_loop()
    fleet, policy = Fleet(loop), Second()
    fleet.add(NodeSpec("n0", "http://127.0.0.1:1", ("a",), 4))
    rules = DispatchRules(PolicyChoice("second", policy, policy))
    dispatcher = PolicyDispatcher(loop, fleet, rules, inline_plans=True, mode="interpreted")
    await dispatcher.open()
    candidate = dispatcher.pools["second"].active_candidate
    for switches in (1, 3):  # a new state begins with the first candidate
        await until(lambda n=switches: summary(candidate, dispatcher.now_s())["switches"] >= n)
        fleet.add(NodeSpec(f"n{switches}", f"http://127.0.0.1:{switches + 1}", ("a",), 4))
    assert dispatcher.pools["second"].active_candidate is candidate
    dispatcher.close()
