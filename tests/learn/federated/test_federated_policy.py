"""Parameters searched over sites: a site's own scores decide, and nothing to gain is told."""

from __future__ import annotations

import json

import numpy as np
import pytest
import yaml

from trimtab.domain.artifact import Artifact
from trimtab.errors import UsageError
from trimtab.experiments.scenario import parse_scenario
from trimtab.learn.federated.aggregation import Update
from trimtab.learn.federated.policy_search import PolicyProblem, PolicySite
from trimtab.learn.federated.rounds import Federation, Terms, learned_together
from trimtab.policies import find

PROBLEM = PolicyProblem(candidates=6)


def ageing_of(policy: str) -> float:
    return float(vars(find(policy).dispatch)["ageing"])


class Likes:
    """A site whose score is how far the parameter `ageing` of a candidate is from a value."""

    def __init__(self, value: float, sign: float = 1.0) -> None:
        self.value, self.sign = value, sign

    def answer(self, ask: Artifact) -> Update:
        policies = yaml.safe_load(ask.meta["policies"])
        far = [abs(ageing_of(each) - self.value) for each in policies]
        here = abs(ageing_of(PROBLEM.policy) - self.value)
        return Update(self.sign * (np.array(far) - here), np.full(len(far), 100.0))


def searched(*sites: Likes) -> dict[str, object]:
    named = {f"s{k}": site for k, site in enumerate(sites)}
    name, content = learned_together(Federation(PROBLEM, Terms(tuple(named))), named).result()
    assert name == "tuned.yaml"
    found: dict[str, object] = yaml.safe_load(content)
    find(str(found["policy"]))
    return found


def test_the_candidate_that_the_sites_like_best_is_found() -> None:
    found = searched(Likes(2.0), Likes(2.0), Likes(2.0))
    assert found["verdict"] == "gain"
    chosen = ageing_of(str(found["policy"]))
    given = ageing_of(PROBLEM.policy)
    assert abs(chosen - 2.0) < abs(given - 2.0)


def test_where_every_candidate_is_worse_the_policy_stays_as_it_was_given() -> None:
    class Worse(Likes):
        def answer(self, ask: Artifact) -> Update:
            made = super().answer(ask)
            return Update(np.full(len(made.values), 0.5), made.weights)

    found = searched(Worse(1.0))
    assert (found["verdict"], found["policy"]) == ("nothing to gain", PROBLEM.policy)


def test_settings_that_cannot_be_searched_are_refused() -> None:
    with pytest.raises(UsageError, match="no parameter to tune"):
        PolicyProblem("random")
    with pytest.raises(UsageError, match="names no metric"):
        PolicyProblem(objective="speed")


def test_a_site_scores_candidates_on_its_own_workload() -> None:
    scenario = parse_scenario(
        {
            "name": "site",
            "cluster": {
                "types": {"a": {"memory_gib": 1, "speed": 2}, "b": {"memory_gib": 1}},
                "nodes": [{"type": "a"}, {"type": "b", "count": 2}],
            },
            "classes": {"work": {"unit_s": 1.0}},
            "workload": {
                "generate": {
                    "requests": 2_000,
                    "arrival": {"process": "poisson", "rate_per_s": 1.0},
                    "mix": {"work": {"share": 1, "size": {"distribution": "lognormal", "mean": 1, "cv": 1}}},
                },
                "load": 0.8,
            },
        }
    )
    site = PolicySite(PROBLEM, scenario)
    ask = PROBLEM.ask([])
    policies = PROBLEM.asked([])
    found = site.answer(ask)
    assert found.values.shape == (len(policies),)
    assert np.isfinite(found.values).all()
    again = site.answer(Artifact("ask", {}, {**ask.meta, "policies": json.dumps([PROBLEM.policy])}))
    np.testing.assert_array_equal(again.values, [0.0], "the policy as given is as good as itself")
