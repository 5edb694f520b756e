"""Fragmentation gradient: its score against the definition written out, and decisions by hand."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.builders import cluster, everything_on, with_resources
from support.dispatch_by_hand import Desk
from trimtab.compiled.kernel import interpreted
from trimtab.domain.cluster import Cluster, ResourceName
from trimtab.domain.policy import Decider
from trimtab.domain.view import Memory, Plan, View
from trimtab.engine.simulator import run
from trimtab.errors import UsageError
from trimtab.policies.resource_aware.fragmentation_gradient import (
    FragmentationGradient,
    fragment_memory,
    fragments,
)

INF = float("inf")


def machines(
    capacity: list[list[float]],
    demand: list[list[float]],
    *names: ResourceName,
    types: int = 1,
    unserved: tuple[tuple[int, int], ...] = (),
) -> Cluster:
    """Nodes of eight slots with these resources, and one class for each row of the demand."""
    return replace(
        cluster(len(capacity), slots=8, classes=len(demand), types=types, unserved=unserved),
        resource_names=names,
        capacity=np.array(capacity, float),
        demand=np.array(demand, float),
    )


def by_definition(
    rest: list[int], devices: list[int], kinds: list[dict[str, list[int]]], can_serve: list[bool]
) -> Fraction:
    """Weng et al. 2023, §3: Σ p(m) · F(m), task by task and device by device."""
    total = Fraction(0)
    shares = sum(kind["weight"][0] for kind in kinds)
    for kind, served in zip(kinds, can_serve, strict=True):
        ask, many = kind["ask"][0], kind["many"][0]
        with_room = [left for left in devices if left >= ask]
        runs = (
            served and len(with_room) >= many and all(r >= d for r, d in zip(rest, kind["rest"], strict=True))
        )
        if many == 0 or not runs:
            lost = sum(devices)
        else:
            lost = sum(left for left in devices if left < min(ask, 1000))
        total += Fraction(kind["weight"][0], shares) * lost
    return total


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.integers(0, 1 << 30))
def test_fragments_are_what_the_definition_says(seed: int) -> None:
    pick = np.random.default_rng(seed)
    devices = pick.choice([0, 100, 250, 500, 640, 1000], pick.integers(1, 9)).tolist()
    rest = pick.integers(0, 9, 2).tolist()
    kinds = []
    for _ in range(pick.integers(1, 6)):
        many = int(pick.integers(0, 4))
        ask = int(pick.choice([100, 300, 500, 1000])) if many == 1 else 1000 * (many > 0)
        weight, needs = [int(pick.integers(0, 9)) + 1], pick.integers(0, 9, 2).tolist()
        kinds.append({"ask": [ask], "many": [many], "rest": needs, "weight": weight})
    can_serve = (pick.random(len(kinds)) < 0.8).tolist()
    memory = fragment_memory(
        2, [k["many"][0] for k in kinds], [k["weight"][0] for k in kinds], 3, len(devices)
    )
    first = len(kinds)
    memory.floats[first : first + 2] = rest
    memory.floats[first + 3 :] = devices
    demand = np.array([[*k["rest"], *k["ask"]] for k in kinds], float)
    fixed_s = np.array([[0.0 if served else INF] for served in can_serve])
    got = fragments(demand, fixed_s, 0, len(devices), memory)
    assert got == pytest.approx(float(by_definition(rest, devices, kinds, can_serve)), rel=1e-12, abs=1e-9)


def test_a_small_request_goes_where_a_large_one_has_no_room_any_more() -> None:
    """Classes: 300 of an accelerator, or all of one. Node 0 is empty, node 1 has 500 left.

    By then two small ones have come and one large one was given at the start. On node 0 the large class loses
    its node: 700 of it are stranded by a third, +233. On node 1 500 are stranded already, and 200 after:
    for the large class 300 less, for the small class all of the 200; (2 · 200 − 300) / 3 = +33.
    """
    desk = Desk(machines([[1000], [1000]], [[300], [1000]], "gpu_milli"), FragmentationGradient())
    desk.state.used[1] = 500.0
    desk.set(1, running=1, in_flight=1)
    desk.work["class_idx"][0] = 0
    assert desk.decide() == [1, 0]


def test_cores_that_are_gone_strand_an_accelerator() -> None:
    """On nodes 1 and 2 no fragment is added, and node 1 has less left over; node 0 would lose all it has."""
    c = machines([[4, 1000], [4, 0], [4, 1000]], [[2, 0], [4, 1000]], "cpu_cores", "gpu_milli")
    desk = Desk(c, FragmentationGradient())
    desk.state.used[2] = [1.0, 0.0]
    desk.set(2, running=1, in_flight=1)
    assert desk.decide() == [1, 2, 0]


def test_what_a_type_may_not_serve_is_stranded_there_anyway() -> None:
    """Class 1 runs on type 0 only, so class 0 leaves it to class 1."""
    c = machines([[1000], [1000]], [[600], [600]], "gpu_milli", types=2, unserved=((1, 1),))
    assert Desk(c, FragmentationGradient()).decide() == [1, 0]


def test_a_request_counts_once_however_often_it_is_offered() -> None:
    desk = Desk(machines([[1000]], [[300], [1000]], "gpu_milli"), FragmentationGradient())
    desk.decide()
    desk.state.contexts["attempt"] = 1
    desk.decide()
    assert list(desk.memory.floats[:2]) == [2.0, 1.0]


class Forgetful(FragmentationGradient):
    """Works out every score at every decision."""

    @staticmethod
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        kept = len(view.fixed_s) * view.context.n_nodes
        for i in range(len(memory.floats) - kept, len(memory.floats)):
            memory.floats[i] = np.nan
        count = interpreted(FragmentationGradient.dispatch)(view, plan, work, memory, draws, ranking)
        return int(count)


@pytest.mark.parametrize("telemetry_period_s", [0.0, 0.4])
def test_kept_scores_are_those_worked_out_anew(telemetry_period_s: float) -> None:
    """Nodes that fail, requests that wait, two dispatchers, and reports that are fresh or old."""
    c, work, options = everything_on()
    c = replace(with_resources(c), resource_names=("cpu_cores", "gpu_milli"))
    options = replace(options, telemetry_period_s=telemetry_period_s)
    kept = run(c, work, options, Decider.of(FragmentationGradient()), mode="interpreted").state
    anew = run(c, work, options, Decider.of(Forgetful()), mode="interpreted").state
    for field in ("node_idx", "start_s", "finish_s", "status"):
        np.testing.assert_array_equal(kept.requests[field], anew.requests[field])
    assert len(np.unique(kept.requests["node_idx"])) > 3


def test_without_accelerators_the_resource_that_runs_out_first_counts() -> None:
    c = machines([[8, 8], [8, 8]], [[1, 4], [2, 4]], "cpu_cores", "ram_gib")
    assert FragmentationGradient().init(c).ints[0] == 1


def test_a_step_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match=r"fragmentation-gradient\.step_frac"):
        FragmentationGradient(step_frac=0.0)
    with pytest.raises(UsageError, match=r"fragmentation-gradient\.step_frac"):
        FragmentationGradient(step_frac=float("nan"))
