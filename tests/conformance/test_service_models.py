"""Every policy on nodes that do not serve one request a slot: processor sharing and language models."""

from __future__ import annotations

import numpy as np
import pytest

from support.conformance_cases import ENGINE_CASES, SPECS, in_turn, pair
from support.engines import engine_cluster, measured_type, model_type, shared_type, token_requests
from trimtab.domain.needs import Need
from trimtab.domain.options import Options
from trimtab.engine.provided import provided_by
from trimtab.engine.simulator import run
from trimtab.errors import UsageError
from trimtab.policies import find, names

PACK = "packs one node full while others idle"
EXCLUDED = {
    "best-fit": PACK,
    "fragmentation-gradient": PACK,
}  # where nodes serve each slower the more there are
RUN = [spec for spec in SPECS if spec not in EXCLUDED]
HERD = 1.5  # times the mean completion of `least-connections`; chance is at 1.3, packing at 3.4


@in_turn(RUN, ENGINE_CASES, each=2)
def test_a_policy_runs_on_engines_and_compiled_is_interpreted(spec: str, case: str) -> None:
    c, r, options = ENGINE_CASES[case]()
    states = [run(c, r, options, pair(spec), seed=5, mode=mode).state for mode in ("compiled", "interpreted")]
    for name in ("requests", "sequences", "nodes", "engine_load"):
        assert getattr(states[0], name).tobytes() == getattr(states[1], name).tobytes(), name
    counts = states[0].counts[0]
    assert counts["finished"] + counts["lost"] + counts["rejected"] == len(r)
    assert counts["in_system"] == 0


def test_the_excluded_are_those_that_need_full_speed() -> None:
    needing = {
        spec for spec in SPECS if Need.FULL_SPEED in frozenset().union(*(p.all_needs for p in pair(spec)))
    }
    assert needing == EXCLUDED.keys()


@pytest.mark.parametrize("spec", EXCLUDED)
@pytest.mark.parametrize("case", ENGINE_CASES)
def test_a_policy_that_packs_is_refused_with_the_reason(spec: str, case: str) -> None:
    c, r, options = ENGINE_CASES[case]()
    with pytest.raises(UsageError) as refused:
        run(c, r, options, pair(spec), seed=5, mode="interpreted")
    assert refused.value.value == spec
    assert "needs full speed" in str(refused.value)
    assert "`service: {kind: llm}`" in str(refused.value.expected)
    assert "packs fills one node while others idle" in str(refused.value.expected)


@pytest.mark.parametrize(("slots", "is_met"), [(2, True), (3, False)])
def test_shared_nodes_serve_as_many_as_their_processors_at_full_speed(slots: int, is_met: bool) -> None:
    two_processors = shared_type(np.maximum(1.0, np.arange(17) / 2))
    c = engine_cluster([two_processors], [0, 0], slots=slots)
    r = token_requests(c, [0.0], [1], [1])
    assert (Need.FULL_SPEED in provided_by(c, r, ENGINE_CASES["mixed"]()[2])) == is_met


def test_measured_nodes_are_full_speed_if_as_many_as_slots_are_served_as_fast_as_one() -> None:
    for seconds, is_met in (((1.0, 1.0, 1.0), True), ((1.0, 1.0, 1.5), False)):
        c = engine_cluster([measured_type((1.0,), np.reshape(seconds, (3, 1)))], [0], slots=2)
        c.engines.slowdown[0, :3] = np.array(seconds) / seconds[2]  # type: ignore[union-attr]  # as built
        r = token_requests(c, [0.0], [1], [1])
        assert (Need.FULL_SPEED in provided_by(c, r, Options())) == is_met


@pytest.mark.parametrize("spec", [name for name in names("dispatch") if name not in EXCLUDED])
def test_no_other_policy_herds_on_replicas(spec: str) -> None:
    """Eight replicas, half full: a policy that sends to one as long as a slot is free takes twice as long."""
    g, n = np.random.default_rng(3), 400
    kind = model_type(row_s=0.004, batch_max=64, token_budget=256, kv_tokens=20_000)
    c = engine_cluster([kind], [0] * 8, slots=32)
    tokens = g.integers(20, 200, n), g.integers(20, 80, n)
    r = token_requests(c, np.cumsum(g.exponential(0.05, n)), *tokens, key=np.arange(n))
    mean_s = {}
    for policy in ("least-connections", spec):
        state = run(c, r, Options(), find(policy), seed=5).state
        mean_s[policy] = (state.requests["finish_s"][:n] - r.work["arrival_s"]).mean()
    assert mean_s[spec] < HERD * mean_s["least-connections"]
