"""Late binding against its score, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.builders import cluster
from support.dispatch_by_hand import Desk
from trimtab.errors import UsageError
from trimtab.policies import find

UNRELATED = cluster(3, types=3, speeds=[1, 2, 4], models=1, load_s=8.0)  # loads take 8, 4, 2 s


def at_work(busy_s: list[float], held: int = 0, spec: str = "late-binding", units: float = 4.0) -> Desk:
    """Nodes with so many seconds of work each; none holds the model that is asked for but node 0."""
    desk = Desk(UNRELATED, find(spec)[0])
    desk.work["units"], desk.work["model_idx"], desk.work["estimate_s"] = units, 0, units / 4
    desk.state.resident[:, 0] = [1, 0, 0]
    desk.work["arrival_s"], desk.state.contexts["n_held"] = 0.0, held
    for j, seconds in enumerate(busy_s):
        if seconds:
            desk.set(j, in_flight=1, running=1, backlog_s=seconds)
    return desk


def test_idle_nodes_by_load_and_service() -> None:
    assert at_work([0, 0, 0]).decide() == [2, 0, 1]  # 3, 4, 6
    assert at_work([0, 0, 5]).decide() == [0, 1]


def test_nothing_idle_means_held() -> None:
    assert at_work([1, 1, 1]).decide() == []


def test_waste_is_priced_by_how_many_are_held_per_slot() -> None:
    desk = at_work([0, 0, 0], held=6, spec="late-binding(patient=0)")  # q = 2
    own, load, service = [4.0, 6.0, 3.0], [0.0, 4.0, 2.0], [4.0, 2.0, 1.0]
    scores = [
        o + 2.0 * (3.0 * el + 1.0 * (s - 1.0)) for o, el, s in zip(own, load, service, strict=True)
    ]  # 10, 32, 15
    assert desk.decide() == sorted(range(3), key=scores.__getitem__) == [0, 2, 1]
    assert desk.score() == scores[0]


def test_a_second_of_waiting_is_worth_ageing_seconds() -> None:
    desk = at_work([0, 0, 0], spec="late-binding(ageing=0.5)")
    desk.at(10.0)  # the request has come at 0
    assert desk.decide()[0] == 2
    assert desk.score() == 3.0 - 0.5 * 10.0


@pytest.mark.parametrize(("wait_s", "held", "is_held"), [(0.9, 0, True), (1.1, 0, False), (0.9, 1, False)])
def test_a_busy_node_that_completes_sooner_is_waited_for(wait_s: float, held: int, is_held: bool) -> None:
    """Node 0 alone is idle and takes 4 s; node 2 takes 3 s after its wait, and with the one held two such."""
    assert at_work([0, 9, wait_s], held).decide() == ([] if is_held else [0])


def test_with_many_held_nobody_is_patient() -> None:
    assert at_work([0, 9, 0.01], held=15).decide() == []
    assert at_work([0, 9, 0.01], held=16).decide() == [0]


CHANGE = st.fixed_dictionaries(
    {"j": st.integers(0, 5), "in_flight": st.integers(0, 2)},
    optional={"up": st.integers(0, 1), "room": st.integers(0, 1)},
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.lists(CHANGE, max_size=4), min_size=1, max_size=8))
def test_it_finds_every_idle_node_after_any_history(history: list[list[dict[str, int]]]) -> None:
    desk = Desk(cluster(6, slots=[1, 2, 1, 2, 1, 2]), find("late-binding(patient=0)")[0])
    desk.work["units"] = desk.work["estimate_s"] = 1.0
    for changes in history:
        for change in changes:
            desk.set(**change)
        idle = (desk.nodes["in_flight"] < desk.nodes["slots"]) & (desk.nodes["up"] == 1)
        assert desk.decide() == np.flatnonzero(idle & (desk.nodes["room"] > 0)).tolist()


def test_parameters_are_checked() -> None:
    with pytest.raises(UsageError, match="ageing"):
        find("late-binding(ageing=-1.0)")
