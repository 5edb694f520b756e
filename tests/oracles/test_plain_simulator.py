"""The loop against a second, independent simulator: equal starts, finishes, nodes and rejections."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.builders import cluster
from support.by_hand import asked
from support.mini_policies import Emptiest, InTurn
from support.plain_simulator import Chooser, PlainNode, PlainSimulator, emptiest, in_turn
from trimtab.domain.options import OnRefusal, Options
from trimtab.domain.policy import Decider, Policy
from trimtab.domain.requests import Status
from trimtab.domain.view import UNLIMITED
from trimtab.engine.simulator import run

whole = st.integers(0, 6).map(float)  # whole seconds: most events coincide with others
real = st.floats(0.0, 6.0, allow_subnormal=False)


@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
@pytest.mark.parametrize(("policy", "chooser"), [(InTurn(), in_turn), (Emptiest(), emptiest)])
@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_two_simulators_agree(
    policy: Policy, chooser: Callable[[], Chooser], mode: str, data: st.DataObject
) -> None:
    times = data.draw(st.sampled_from([whole, real]))
    arrival_s = sorted(data.draw(st.lists(times.map(lambda t: 2 * t), min_size=1, max_size=40)))
    units = data.draw(st.lists(times, min_size=len(arrival_s), max_size=len(arrival_s)))
    slots = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    queue_max = data.draw(st.sampled_from([0, 1, 2, UNLIMITED]))
    options = Options(
        held_max=data.draw(st.sampled_from([0, 1, 5, UNLIMITED])),
        lookahead=data.draw(st.integers(1, 3)),
        on_refusal=data.draw(st.sampled_from(OnRefusal)),
    )
    c = cluster(len(slots), types=2, slots=slots, queue_max=queue_max)
    capacity = data.draw(st.lists(st.integers(1, 4), min_size=len(slots), max_size=len(slots)))
    capacity[0] = 4  # every class fits some node
    class_idx = data.draw(st.lists(st.integers(0, 4), min_size=len(units), max_size=len(units)))
    c = replace(
        c,
        fixed_s=np.zeros((5, 2)),
        unit_s=np.repeat(c.unit_s, 5, axis=0),
        class_names=tuple("abcde"),
        resource_names=("cpu_cores",),
        capacity=np.array(capacity, np.float64)[:, None],
        demand=np.arange(5.0)[:, None],
    )
    r = asked(c, arrival_s, units, class_idx=class_idx)
    rows = run(c, r, options, Decider.of(policy), mode=mode).state.requests
    plain = PlainSimulator(
        [PlainNode(k, queue_max, had) for k, had in zip(slots, capacity, strict=True)],
        arrival_s,
        lambda request, j: float(c.unit_s[0, j % 2]) * units[request],
        chooser(),
        options.held_max,
        options.lookahead,
        options.on_refusal == OnRefusal.REJECT,
        class_idx,  # class k takes k
    )
    for name, expected in (("start_s", plain.start_s), ("finish_s", plain.finish_s)):
        np.testing.assert_array_equal(rows[name], [expected.get(i, np.nan) for i in range(len(rows))], name)
    np.testing.assert_array_equal(rows["node_idx"], [plain.node.get(i, -1) for i in range(len(rows))])
    assert np.flatnonzero(rows["status"] == Status.REJECTED).tolist() == sorted(plain.rejected)
    assert np.flatnonzero(rows["status"] == Status.HELD).tolist() == sorted(plain.held)
