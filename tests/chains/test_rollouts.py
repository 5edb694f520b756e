"""Rollouts in a host of chains, in virtual time: when runs in flight end."""

from __future__ import annotations

from typing import Any

from support.planning_policies import RUNS_SEEN
from trimtab.chains import Session, State, chain, stage
from trimtab.clusters.simulated_workers import SimulatedWorkers, StandIn
from trimtab.live.stage_backend import StageNode


@stage
def listed(n: int) -> list[int]:
    return [n, n + 1, n + 2]


@stage
def drawn(n: int) -> int:
    return n


@stage
def joined(items: list[int]) -> int:
    return sum(items)


@chain
def film(n: int) -> Any:
    return joined(drawn.map(listed(n)))


def test_a_planner_sees_when_runs_in_flight_end() -> None:
    RUNS_SEEN.clear()
    stand_ins = {
        "film/listed": StandIn(1.0, lambda n: [n, n + 1, n + 2]),
        "film/drawn": StandIn(4.0, lambda n: n),
        "film/joined": StandIn(2.0, lambda items: sum(items)),
    }
    backend = SimulatedWorkers([StageNode("one"), StageNode("two")], stand_ins)
    with Session(film, on=backend, policy="support.planning_policies:LooksAhead", in_flight=3) as session:
        results = session.run(film, range(12)).wait()
    assert [r.state for r in results] == [State.DONE] * 12
    taken_s = [result.elapsed_s for result in results]
    steady = [ends_s for at_s, ends_s in RUNS_SEEN if at_s > 30.0]  # services are measured by then
    assert len(steady) > 5
    for ends_s in steady:
        for entered_s, end_s in ends_s.items():
            assert min(abs(end_s - entered_s - taken) for taken in taken_s) < 1e-3
