"""A policy that raises or answers nonsense stops the run, with policy, request and time in the message."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.builders import cluster
from support.by_hand import asked, fault_table, once
from support.mini_policies import Scripted
from trimtab.compiled.kernel import kernel
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Options
from trimtab.domain.policy import Decider, Policy
from trimtab.domain.view import Memory, memory
from trimtab.engine.simulator import run
from trimtab.errors import PolicyError


def raising(view: Any, plan: Any, work: Any, memory: Any, draws: Any, ranking: Any) -> int:
    if work.serial == 2:
        raise ValueError("no idea")
    ranking[0] = 0
    return 1


def raising_order(view: Any, plan: Any, work: Any, memory: Any) -> float:
    if work.serial == 2:
        raise ValueError("no idea")
    return 0.0


class RaisesCompiled(Policy):
    dispatch = staticmethod(kernel(raising))


class RaisesPlain(Policy):
    dispatch = staticmethod(raising)


class OrderRaisesCompiled(Policy):
    order = staticmethod(kernel(raising_order))


class OrderRaisesPlain(Policy):
    order = staticmethod(raising_order)


class OrderIsNan(Policy):
    @staticmethod
    @kernel
    def order(view: Any, plan: Any, work: Any, memory: Any) -> float:
        return float("nan") if work.serial == 2 else 0.0


class Answers(Policy):
    """Answers units as the count and names node `key`."""

    @staticmethod
    @kernel
    def dispatch(view: Any, plan: Any, work: Any, memory: Any, draws: Any, ranking: Any) -> int:
        ranking[0] = work.key
        return int(work.units)


class Interrupted(Policy):
    @staticmethod
    def dispatch(view: Any, plan: Any, work: Any, memory: Any, draws: Any, ranking: Any) -> int:
        raise KeyboardInterrupt


BOTH = pytest.mark.parametrize("mode", ["compiled", "interpreted"])
ONE = cluster(1)
FIVE = asked(ONE, [0.0, 1.0, 2.5, 3.0, 4.0], 10.0)


@BOTH
@pytest.mark.parametrize(
    ("policy", "order", "name"),
    [
        (RaisesCompiled(), None, "RaisesCompiled"),
        (RaisesPlain(), None, "RaisesPlain"),
        (Scripted(), OrderRaisesCompiled(), "Scripted+OrderRaisesCompiled"),
        (Scripted(), OrderRaisesPlain(), "Scripted+OrderRaisesPlain"),
    ],
)
def test_a_policy_that_raises_is_named_with_request_and_time(
    policy: Policy, order: Policy | None, name: str, mode: str
) -> None:
    with pytest.raises(PolicyError) as raised:
        run(ONE, FIVE, Options(), Decider.of(policy, order), mode=mode)
    text = str(raised.value)
    assert repr(name) in text
    assert "ValueError('no idea')" in text
    assert "request 2 at 2.500000 s" in text


@BOTH
def test_an_order_that_is_not_a_number_is_refused(mode: str) -> None:
    with pytest.raises(PolicyError, match=r"OrderIsNan.*request 2 at 2\.500000 s"):
        run(ONE, FIVE, Options(), Decider.of(Scripted(), OrderIsNan()), mode=mode)


@BOTH
@pytest.mark.parametrize(("units", "key"), [(1.0, 1), (1.0, -1), (9.0, 0), (-32.0, 0)])
def test_a_decision_that_is_none_is_named(units: float, key: int, mode: str) -> None:
    r = asked(ONE, [0.5], units, key=key)
    with pytest.raises(PolicyError, match=rf"'Answers' answered {int(units)} .*request 0 at 0\.500000 s"):
        run(ONE, r, Options(), Decider.of(Answers()), mode=mode)


@BOTH
def test_a_retry_names_the_time_of_the_retry(mode: str) -> None:
    r = asked(ONE, [0.0], 1.0, key=0)
    options = Options(faults=fault_table(once(0, 0.25, 0.5)))
    with pytest.raises(PolicyError, match=r"request 0 at 0\.250000 s"):
        run(ONE, r, options, Decider.of(RaisesOnRetry()), mode=mode)


class RaisesOnRetry(Policy):
    @staticmethod
    def dispatch(view: Any, plan: Any, work: Any, memory: Any, draws: Any, ranking: Any) -> int:
        if view.context.retries > 0:
            raise RuntimeError
        ranking[0] = 0
        return 1


@BOTH
def test_an_interruption_stays_an_interruption(mode: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(ONE, FIVE, Options(), Decider.of(Interrupted()), mode=mode)


class InitRaises(Scripted):
    def init(self, cluster: Cluster) -> Memory:
        raise KeyError("no such thing")


class InitMakesNone(Scripted):
    def init(self, cluster: Cluster) -> Memory:
        return None  # type: ignore[return-value]


class InitMakesOtherTypes(Scripted):
    def init(self, cluster: Cluster) -> Memory:
        return memory()._replace(ints=np.zeros(2, np.int32))


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (InitRaises(), "raised KeyError.* in init"),
        (InitMakesNone(), r"init\(\) made None"),
        (InitMakesOtherTypes(), r"init\(\) made Memory.*expected what trimtab.memory"),
    ],
)
def test_a_memory_that_cannot_be_made(policy: Policy, said: str) -> None:
    c = cluster(2)
    with pytest.raises(PolicyError, match=said):
        run(c, asked(c, [0.0]), Options(), Decider.of(policy))
