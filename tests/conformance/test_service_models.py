"""Every policy on nodes that do not serve one request a slot: processor sharing and language models."""

from __future__ import annotations

from support.conformance_cases import ENGINE_CASES, SPECS, in_turn, pair
from trimtab.engine.simulator import run


@in_turn(SPECS, ENGINE_CASES, each=2)
def test_a_policy_runs_on_engines_and_compiled_is_interpreted(spec: str, case: str) -> None:
    c, r, options = ENGINE_CASES[case]()
    states = [run(c, r, options, pair(spec), seed=5, mode=mode).state for mode in ("compiled", "interpreted")]
    for name in ("requests", "sequences", "nodes", "engine_load"):
        assert getattr(states[0], name).tobytes() == getattr(states[1], name).tobytes(), name
    counts = states[0].counts[0]
    assert counts["finished"] + counts["lost"] + counts["rejected"] == len(r)
    assert counts["in_system"] == 0
