"""What becomes of a policy whose needs are not met: it is refused by name, or runs and a note says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

from support.builders import cluster, requests, with_resources
from support.chains import Stage, chained
from support.engines import engine_cluster, model_type, shared_type
from trimtab.domain.chains import Flow
from trimtab.domain.cluster import Cluster
from trimtab.domain.needs import Need
from trimtab.domain.options import Options
from trimtab.domain.policy import Decider, Policy
from trimtab.engine.provided import SIMULATOR, degraded, provided_by
from trimtab.errors import UsageError
from trimtab.experiments.compare_policies import compare
from trimtab.experiments.scenario import load_scenario
from trimtab.experiments.serving.run import run_on_clock, simulate
from trimtab.policies import find, names


class First(Policy):
    """Sends each request to the first node, for its zone's sake."""

    name: ClassVar[str] = "first"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.ZONES})

    def choose(self, cluster: Any, request: Any) -> Any:
        return cluster.least(np.arange(cluster.n_nodes), request)


class FirstAnyway(First):
    """The same, without zones too."""

    name: ClassVar[str] = "first-anyway"
    degrades: ClassVar[Mapping[Need, str]] = {Need.ZONES: "The first node is near enough."}


def test_an_unmet_need_is_refused_by_name_with_the_remedy() -> None:
    for start in (
        lambda: simulate("tiny", First),
        lambda: run_on_clock(load_scenario("tiny"), First),
        lambda: compare("tiny", policies=[First], seeds=1, jobs=1),
    ):
        with pytest.raises(UsageError) as refused:
            start()
        assert refused.value.field == "policy"
        assert refused.value.value == "first"
        assert "needs zones" in str(refused.value)
        assert refused.value.expected == "`cluster.rtt_s` between zones, or delays of `cluster.network`"


def test_what_can_do_without_runs_with_a_note() -> None:
    note = "no zones, for first-anyway: The first node is near enough."
    assert note in simulate("tiny", FirstAnyway).notes()
    compared = compare("tiny", policies=[FirstAnyway, "least-connections"], seeds=2, jobs=1)
    assert compared.notes().count(note) == 1


def test_met_needs_need_no_note() -> None:
    assert simulate("edge-cloud", FirstAnyway).notes() == simulate("edge-cloud", "least-connections").notes()


def test_policies_with_the_same_effect_share_a_note() -> None:
    compared = compare("tiny", policies=["best-fit", "most-free"], seeds=1, jobs=1)
    assert "no resources, for most-free, best-fit: Slots are the only resource." in compared.notes()


PLAIN = cluster(3, types=2)
TWO_ZONES = replace(PLAIN, zone_names=("a", "b"), rtt_s=np.array([[0.0, 0.1], [0.1, 0.0]]))
ONE_LINK = replace(PLAIN, nic_gib_per_s=np.array([1.0, np.inf, np.inf]))


def met(c: Cluster = PLAIN, options: Options | None = None, **changed: Any) -> frozenset[Need]:
    """What is provided beyond what always is."""
    r = requests(c, 20, load=0.5)
    for field, values in changed.items():
        r.work[field] = values
    return provided_by(c, r, options or Options()) - SIMULATOR.always()


def test_a_plain_cluster_provides_nothing_but_the_loop() -> None:
    c = replace(PLAIN, load_s=np.zeros_like(PLAIN.load_s), usd_per_hour=np.zeros(2))
    assert met(c, deadline_s=np.inf, priority=0, payload_gib=0.0) == frozenset({Need.FULL_SPEED})


def test_chains_have_rollouts_and_what_a_candidate_needs_of_them() -> None:
    r = chained(PLAIN, requests(PLAIN, 4), {"a": Stage(), "b": Stage(after={"a": Flow.ALL})})
    assert {Need.CHAINS, Need.ROLLOUT} <= provided_by(PLAIN, r, Options())
    for workload in (r, requests(PLAIN, 4)):
        told = degraded(Decider.of(find("what-if").dispatch), PLAIN, workload, Options())
        assert not {Need.CHAINS, Need.LINKS} & {effect.need for effect in told}


@pytest.mark.parametrize(
    ("need", "provided"),
    [
        (Need.RESOURCES, lambda: met(with_resources(PLAIN))),
        (Need.REPORTED_LOAD, lambda: met(with_resources(PLAIN))),
        (Need.DOMINANT_SHARES, lambda: met(with_resources(PLAIN))),
        (Need.ZONES, lambda: met(TWO_ZONES)),
        (Need.LINKS, lambda: met(ONE_LINK, payload_gib=0.1)),
        (Need.PRICES, lambda: met(replace(PLAIN, usd_per_hour=np.array([0.0, 2.0])))),
        (Need.PREFIX, lambda: met(options=Options(prefix_blocks=8))),
        (Need.TOKENS, lambda: met(input_tokens=7)),
        (Need.ENGINE_LOAD, lambda: met(engine_cluster([model_type(), {}], [0, 1]))),
        (Need.DEADLINES, lambda: met(deadline_s=100.0)),
        (Need.PRIORITIES, lambda: met(priority=np.arange(20) % 2)),
        (Need.SHARES_HELD, lambda: provided_by(PLAIN, requests(PLAIN, 4, tenants=2), Options())),
        (Need.CENTRAL_QUEUE, lambda: met(replace(PLAIN, queue_max=np.array([4, 4, 4])))),
        (Need.SPLITTING, lambda: met(options=Options(join_s=np.zeros(1)))),
        (Need.BATCHING, lambda: met(options=Options(batch_marginal_frac=np.array([0.2])))),
        (Need.STALE_REPORTS, lambda: met(options=Options(telemetry_period_s=1.0, dispatchers=2))),
        (Need.RESULT_CACHE, lambda: met(options=Options(results_max=4))),
    ],
)  # fmt: skip
def test_a_scenario_provides_what_it_declares(need: Need, provided: Any) -> None:
    assert need in provided()


@pytest.mark.parametrize(
    ("need", "provided"),
    [
        (Need.LINKS, lambda: met(ONE_LINK)),  # nothing to move
        (Need.STALE_REPORTS, lambda: met(options=Options(telemetry_period_s=1.0))),  # nobody else sends
        (Need.STALE_REPORTS, lambda: met(options=Options(dispatchers=2))),
        (Need.PRIORITIES, lambda: met(priority=3)),  # all alike
        (Need.ENGINE_LOAD, lambda: met(engine_cluster([shared_type(np.ones(3)), {}], [0, 1]))),
        (Need.FULL_SPEED, lambda: met(engine_cluster([model_type(), {}], [0, 1]))),
        (Need.BATCHING, lambda: met(options=Options(batch_marginal_frac=np.array([-1.0])))),
    ],
)  # fmt: skip
def test_what_changes_nothing_is_not_provided(need: Need, provided: Any) -> None:
    assert need not in provided()


def test_work_waits_centrally_where_the_policy_itself_holds_it() -> None:
    r = requests(PLAIN, 20, load=0.5)
    r.work["deadline_s"] = np.inf

    def lacking(spec: str) -> set[Need]:
        return {each.need for each in degraded(find(spec), PLAIN, r, Options()) if each.policy == "vtc"}

    assert Need.CENTRAL_QUEUE in lacking("least-connections+vtc")
    assert Need.CENTRAL_QUEUE not in lacking("late-binding+vtc")


def test_a_composite_needs_what_its_candidates_need_and_does_as_they_do_without() -> None:
    class Either(Policy):
        """Two candidates."""

        @property
        def candidates(self) -> tuple[Policy, ...]:
            return (find("best-fit").dispatch, find("edge-first").dispatch)

    class Neither(Either):
        """One of them can't do without zones."""

        @property
        def candidates(self) -> tuple[Policy, ...]:
            return (*super().candidates, First())

    either, neither = Either(), Neither()
    best_fit = {Need.RESOURCES, Need.RESIDENCY, Need.HOLDING, Need.FULL_SPEED}
    assert either.all_needs == best_fit | {Need.ZONES, Need.LINKS}
    assert either.without(Need.RESOURCES) == find("best-fit").dispatch.without(Need.RESOURCES)
    assert neither.without(Need.ZONES) is None
    assert neither.without(Need.LINKS) is not None


def test_a_parameter_may_bring_a_need() -> None:
    plain, urgent = find("downstream-aware"), find("downstream-aware(urgent_s=60,priority_s=1)")
    r = requests(PLAIN, 20, load=0.5)
    r.work["deadline_s"] = np.inf
    more = {each.need for each in degraded(urgent, PLAIN, r, Options())}
    more -= {each.need for each in degraded(plain, PLAIN, r, Options())}
    assert more == {Need.PRIORITIES, Need.DEADLINES}


@pytest.mark.parametrize("name", names())
def test_each_sentence_is_about_a_need_of_the_policy(name: str) -> None:
    policy = find(name if name in names("dispatch") else f"random+{name}")[name not in names("dispatch")]
    assert policy.degrades.keys() <= policy.needs
    assert all(text.endswith(".") and text[0].isupper() for text in policy.degrades.values())


@pytest.mark.parametrize("scenario", ["tiny", "aigc-images", "edge-cloud", "llm-chat", "regime-change"])
def test_what_packs_is_refused_on_replicas_and_nothing_else_on_a_built_in_scenario(scenario: str) -> None:
    from trimtab.experiments.scenario.build import build

    built = build(load_scenario(scenario).with_overrides(seeds=1), 0)
    refused = set()
    for spec in (*names("dispatch"), *(f"random+{name}" for name in names("order"))):
        try:
            degraded(find(spec), built.cluster, built.requests, built.options)
        except UsageError:
            refused.add(spec)
    assert refused == ({"best-fit", "fragmentation-gradient"} if scenario == "llm-chat" else set())
