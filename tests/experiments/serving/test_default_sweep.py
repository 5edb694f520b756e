"""The default comparison runs policies that simulate for every plan at the scenario's own load only."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from trimtab.experiments.compare.run_comparison import run_comparison
from trimtab.experiments.scenario import Scenario, load_scenario
from trimtab.experiments.serving.serving_kind import Serving

TINY = load_scenario("tiny").model_copy(update={"policies": ()})


@dataclass(frozen=True)
class TwoByDefault(Serving):
    def default_policies(self, settings: Scenario) -> tuple[str, ...]:
        return "random", "auto"


@pytest.mark.parametrize(
    ("policies", "swept"), [(None, {"random"}), (["random", "auto"], {"random", "auto"})]
)
def test_costly_policies_are_swept_when_they_are_asked_for(
    policies: list[str] | None, swept: set[str]
) -> None:
    comparison = run_comparison(TwoByDefault(), TINY, policies, 1, jobs=1)
    own, loads = TINY.workload.load, TINY.sweep.loads
    points = {(p.policy, p.load) for p in comparison.sweep}
    assert [r.policy for r in comparison.results] == ["random", "auto"]
    assert points == {(p, x) for p in ("random", "auto") for x in loads if p in swept or x == own}


def test_chains_have_no_default_policy_that_needs_rollouts() -> None:
    kind = Serving()
    assert "auto" in kind.default_policies(TINY)
    chained = kind.default_policies(load_scenario("multimodal"))
    assert "auto" not in chained
    assert "late-binding" in chained
