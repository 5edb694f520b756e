"""The health of a node as a state machine: each phase and event, what always holds, and the guide's table."""

import asyncio
import re
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.gateway.node_world import VirtualLoop, fleet_of
from trimtab.gateway.model import Node
from trimtab.gateway.nodes.health_rule import SlowStart, SlowStartOptions
from trimtab.gateway.nodes.node_state import TRANSITIONS, Effect, HealthEvent, Hold, NodeState, Phase

_GUIDE = Path(__file__).parents[3] / "docs/guides/serve.md"
_FAULTS = [Hold.CHECKS, Hold.BREAKER, Hold.OUTLIER]
_ROAD = {  # events that lead to each phase
    Phase.FULL: [],
    Phase.FAULTY: [HealthEvent.FAULT],
    Phase.TRIAL: [HealthEvent.FAULT, HealthEvent.CLEARED],
    Phase.RAMP: [HealthEvent.FAULT, HealthEvent.CLEARED, HealthEvent.ANSWERED],
    Phase.GONE: [HealthEvent.REMOVED],
}


@pytest.mark.parametrize(("phase", "event"), list(product(Phase, HealthEvent)))
async def test_every_event_in_every_phase_has_the_effect_of_the_table(
    phase: Phase, event: HealthEvent
) -> None:
    fleet, told = fleet_of(1), list[Node]()
    node, state = fleet.nodes[0], fleet.state(fleet.nodes[0])
    slow_start = SlowStart(fleet.loop, SlowStartOptions(), told.append)
    for earlier in _ROAD[phase]:
        slow_start.happened(earlier, node, state)
    assert state.phase is phase
    told.clear()
    timer = state.ramp_timer
    slow_start.happened(event, node, state)
    expected, effect = TRANSITIONS[phase][event]
    assert state.phase is expected
    assert len(told) == (effect in (Effect.BEGIN_TRIAL, Effect.BEGIN_RAMP, Effect.STOP_AND_TELL))
    if effect is Effect.NONE:
        assert state.ramp_timer is timer
    else:
        assert (state.ramp_timer is not None) is (effect in (Effect.BEGIN_TRIAL, Effect.BEGIN_RAMP))
        assert timer is None or timer.cancelled()
    assert slow_start.on_trial == ({node.idx} if expected is Phase.TRIAL else set())


_STEP = st.one_of(
    st.tuples(st.just("hold"), st.sampled_from([hold for hold in Hold if hold is not Hold.REMOVED])),
    st.tuples(st.just("release"), st.sampled_from([hold for hold in Hold if hold is not Hold.REMOVED])),
    st.tuples(st.sampled_from(["end_trial", "skip", "wait"]), st.none()),
)


def _check(state: NodeState, allowed: int, is_open: bool) -> None:
    assert (state.phase is Phase.FAULTY) is any(hold in state.holds for hold in _FAULTS)
    assert is_open is not bool(state.holds)
    assert (state.ramp_timer is not None) is (state.phase in (Phase.TRIAL, Phase.RAMP))
    assert 1 <= allowed <= 20
    assert allowed == {Phase.FULL: 20, Phase.TRIAL: 1}.get(state.phase, allowed)


@given(st.lists(_STEP, max_size=30))
def test_whatever_happens_phase_holds_and_capacity_agree(steps: list[tuple[str, Hold | None]]) -> None:
    async def main() -> None:
        fleet = fleet_of(1, max_requests=20)
        node = fleet.nodes[0]
        for step, hold in steps:
            if step == "wait":
                await asyncio.sleep(3)
            elif hold is None:
                (fleet.end_trial if step == "end_trial" else fleet.skip_slow_start)(node)
            elif step == "hold":
                fleet.hold(node, hold, "a reason")
            else:
                fleet.release(node, hold)
            allowed = fleet.allowed_requests(node, fleet.loop.time())
            _check(fleet.state(node), allowed, fleet.gets_work(node))
        fleet.close()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main())


def test_the_guide_has_the_table_and_the_figure_of_the_code() -> None:
    text = _GUIDE.read_text()
    section = text[text.index("### Health of a node") : text.index("\n## Adapters")]
    rows = [
        [cell.strip(" *") for cell in line.split("|")[1:-1]]
        for line in re.findall(r"^\|.*\|$", section, re.M)
    ]
    assert rows[0] == ["phase", *(event.value for event in HealthEvent)]
    assert {row[0]: row[1:] for row in rows[2:]} == {
        phase.value: [_cell(phase, *TRANSITIONS[phase][event]) for event in HealthEvent] for phase in Phase
    }
    drawn = re.findall(r"(\w+) --> (\w+): (\w+)", section)
    assert sorted(drawn) == sorted(
        (phase.value, to.value, event.value)
        for phase in Phase
        for event, (to, _) in TRANSITIONS[phase].items()
        if to is not phase
    )


def _cell(phase: Phase, to: Phase, effect: Effect) -> str:
    if effect is Effect.NONE:
        return "–" if to is phase else to.value
    return f"{to.value}: {effect.value}"
