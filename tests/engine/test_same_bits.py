"""Compiled = interpreted, twin = twin, in pieces = in one go: bit for bit, with everything on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.builders import everything_on
from support.mini_policies import ByDeadline, Emptiest, TwoChoices
from support.same_state import differences
from support.scenarios import Case, cases
from trimtab.domain.policy import Decider, Policy
from trimtab.engine.calls import Calls
from trimtab.engine.driver import Driver
from trimtab.engine.loop import DONE, FULL, PAUSED
from trimtab.engine.network_state import enlarged
from trimtab.engine.new_state import new_state
from trimtab.engine.simulator import run
from trimtab.engine.state import State

MAX_EVENTS = 3000
quick = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def state_of(case: Case, mode: str) -> State:
    driver = case.driver(mode)
    driver.advance(max_steps=MAX_EVENTS)
    return driver.state


@quick
@given(cases)
def test_compiled_is_interpreted_is_its_twin(case: Case) -> None:
    asked = case.requests.work.tobytes()
    compiled = state_of(case, "compiled")
    assert not differences(compiled, state_of(case, "interpreted"))
    assert not differences(compiled, state_of(case, "compiled"))
    assert case.requests.work.tobytes() == asked  # runs share these rows


@quick
@given(cases, st.integers(1, 50), st.sampled_from([0.1, 0.5, 1.0]))
def test_pieces_add_up_to_the_whole(case: Case, events: int, seconds: float) -> None:
    whole = state_of(case, "compiled")
    by_events = case.driver("compiled")
    while by_events.advance(max_steps=min(events, _left(by_events))) == PAUSED and _left(by_events):
        pass
    assert not differences(whole, by_events.state)
    by_time = case.driver("compiled")
    until_s = 0.0
    while by_time.advance(until_s, _left(by_time)) != DONE and _left(by_time):
        until_s += seconds
    assert not differences(whole, by_time.state)


def _left(driver: Driver) -> int:
    return MAX_EVENTS - int(driver.state.counts["steps"][0])


@pytest.mark.parametrize("policy", [Emptiest(), TwoChoices()])
def test_a_thousand_requests_with_everything_on(policy: Policy) -> None:
    c, r, options = everything_on(1000)
    runs = [
        run(c, r, options, Decider.of(policy, ByDeadline()), seed=4, mode=m).state
        for m in ("compiled", "interpreted")
    ]
    assert not differences(*runs)
    counts = runs[0].counts[0]
    for name in ("finished", "cancelled", "retries", "evictions", "adapter_loads"):
        assert counts[name] > 0, f"nothing {name}: the scenario does not show what it should"


def test_another_seed_is_another_run() -> None:
    c, r, options = everything_on(300)
    a, b = (
        run(c, r, options, Decider.of(TwoChoices()), seed=seed, mode="interpreted").state for seed in (1, 2)
    )
    assert differences(a, b)


def _in_a_heap_enlarged(times: int) -> State:
    """Three thousand deadlines at once: more than the heap holds at first."""
    c, r, options = everything_on(3000)
    r.work["arrival_s"] = 1.0
    r.work["deadline_s"] = 50.0 + np.arange(len(r)) % 7
    policy = Emptiest()
    state = new_state(c, r, options, Decider.of(policy), 0)
    calls = Calls(state, Decider.of(policy), compiled=True)

    def enlarge() -> None:
        calls.use_arrays(enlarged(calls.state))

    for _ in range(times):
        enlarge()
    calls.begin()
    while calls.advance(np.inf, 1 << 60) == FULL:
        enlarge()
    return state._replace(events=calls.state.events)


def test_the_event_heap_grows_without_leaving_a_trace() -> None:
    tight, roomy = _in_a_heap_enlarged(0), _in_a_heap_enlarged(4)
    assert len(tight.events) < len(roomy.events)
    assert not [name for name in differences(tight, roomy) if not name.startswith("events")]
