"""`choose`: what a policy in plain Python may return, what it sees, and that it decides as a kernel does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import trimtab as tt
from support.builders import cluster, requests
from support.builders import run as final_state
from support.by_hand import asked
from support.choosing_policies import MaskedEmptiest, PlainCompletion, PlainEmptiest, PlainRandom
from support.conformance_cases import CASES
from support.mini_policies import Emptiest, Scripted
from trimtab.domain.cluster_state import ClusterState, Node, Request
from trimtab.domain.options import Options
from trimtab.domain.policy import Decider, Policy
from trimtab.domain.requests import Reason, Status
from trimtab.domain.view import CONTEXT, NODE, WORK, View
from trimtab.engine.simulator import run
from trimtab.errors import PolicyError
from trimtab.policies import find

MODES = ["compiled", "interpreted"]
BOTH = pytest.mark.parametrize("mode", MODES)
TWO = cluster(2)


class Returns(Policy):
    """Returns what it was given, or what that returns for the cluster."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def choose(self, cluster: ClusterState, request: Request) -> Any:
        return self.answer(cluster) if callable(self.answer) else self.answer


def answered(answer: Any, mode: str = "interpreted") -> np.void:
    row: np.void = run(
        TWO, asked(TWO, [0.5]), Options(), Decider.of(Returns(answer)), mode=mode
    ).state.requests[0]
    return row


@BOTH
@pytest.mark.parametrize(
    ("answer", "node"),
    [
        (0, 0),
        (1, 1),
        (np.int64(1), 1),
        (np.int32(1), 1),
        (lambda c: c.nodes[1], 1),
        ([1, 0], 1),
        ((1,), 1),
        (np.array([1, 0]), 1),
        (lambda c: [c.nodes[1], 0], 1),
        (lambda c: c.in_flight.argmin(), 0),
    ],
)
def test_a_node_or_a_ranking(answer: Any, node: int, mode: str) -> None:
    row = answered(answer, mode)
    assert (row["status"], row["node_idx"]) == (Status.FINISHED, node)


@BOTH
@pytest.mark.parametrize("answer", [tt.HOLD, []])
def test_hold(answer: Any, mode: str) -> None:
    assert answered(answer, mode)["status"] == Status.HELD


@BOTH
def test_reject(mode: str) -> None:
    row = answered(tt.reject(9), mode)
    assert (row["status"], row["reason"]) == (Status.REJECTED, 9)
    assert answered(tt.reject(), mode)["reason"] == Reason.POLICY


@BOTH
@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        (2, "2"),
        (-1, "-1"),
        (None, "None"),
        (0.0, "0.0"),
        (float("nan"), "nan"),
        (True, "True"),
        ("0", "'0'"),
        ([0, 2], r"\[0, 2\]"),
        ([0] * 9, r"\[0, 0, 0, 0, 0, 0, 0, 0, 0\]"),
        (np.array([0.0]), r"\[0.0\]"),
        (np.zeros((1, 1), int), r"array\(\[\[0\]\]\)"),
        ({0}, r"\{0\}"),
    ],
)
def test_garbage_is_named_with_policy_request_time_and_what_was_expected(
    answer: Any, shown: str, mode: str
) -> None:
    expected = r"a node \(0 to 1\), a list of at most 8 nodes, best first, tt.HOLD or tt.reject\(reason\)"
    text = rf"'Returns' returned {shown} from choose\(\) for request 0 at 0\.500000 s; expected {expected}"
    with pytest.raises(PolicyError, match=text):
        answered(answer, mode)


@pytest.mark.parametrize("reason", [0, 5, 32, "full"])
def test_a_reason_must_be_a_policy_s_own(reason: Any) -> None:
    with pytest.raises(ValueError, match="expected a reason from 6 to 31"):
        tt.reject(reason)


class Raises(Policy):
    def choose(self, cluster: Any, request: Any) -> Any:
        return _helper(request.serial)


def _helper(serial: int) -> int:
    return 1 // (2 - serial)  # the line


class InitRaises(Scripted):
    def init(self, cluster: Any) -> Any:
        return {"a": 1}["nothing"]  # the line


class OrderRaises(Policy):
    @staticmethod
    def order(view: Any, plan: Any, work: Any, memory: Any) -> float:
        return 1 / 0  # the line


class DispatchRaises(Policy):
    @staticmethod
    def dispatch(view: Any, plan: Any, work: Any, memory: Any, draws: Any, ranking: Any) -> int:
        return view.nodes.nothing  # type: ignore[no-any-return] # the line


class PlanRaises(Scripted):
    plan_period_s = 1.0

    def plan(self, view: Any, history: Any, waiting: Any, rollout: Any) -> Any:
        raise RuntimeError  # the line


@BOTH
@pytest.mark.parametrize(
    ("policy", "order", "function"),
    [
        (Raises(), None, "_helper"),
        (InitRaises(), None, "init"),
        (Scripted(), OrderRaises(), "order"),
        (DispatchRaises(), None, "dispatch"),
        (PlanRaises(), None, "plan"),
    ],
)
def test_an_error_shows_the_line_of_the_policy(
    policy: Policy, order: Policy | None, function: str, mode: str
) -> None:
    with pytest.raises(PolicyError) as raised:
        run(TWO, asked(TWO, [0.0, 0.1, 0.2]), Options(), Decider.of(policy, order), mode=mode)
    assert f"test_choose.py:{_line_in(function)}, in {function}: " in str(raised.value)
    assert "# the line" in str(raised.value)
    assert raised.value.__cause__ is not None
    traceback = raised.value.__cause__.__traceback__
    assert traceback is not None
    assert traceback.tb_frame.f_code.co_filename == __file__


def _line_in(function: str) -> int:
    with open(__file__, encoding="utf-8") as file:
        lines = file.read().splitlines()
    start = next(i for i, text in enumerate(lines) if text.lstrip().startswith(f"def {function}("))
    return next(i for i in range(start, len(lines)) if lines[i].endswith("# the line")) + 1


class ReturnsNode(Policy):
    """The natural mistake: a node instead of how many were written."""

    @staticmethod
    def dispatch(view: Any, plan: Any, work: Any, memory: Any, draws: Any, ranking: Any) -> Any:
        return int(work.units)


class ReturnsFloat(Policy):
    @staticmethod
    def dispatch(view: Any, plan: Any, work: Any, memory: Any, draws: Any, ranking: Any) -> Any:
        return 1.0


@BOTH
def test_a_dispatch_that_returns_a_node_is_told_what_was_expected(mode: str) -> None:
    text = r"'ReturnsNode' answered 1 with candidates \[-1\] for request 0 .*how many nodes `dispatch` wrote"
    with pytest.raises(PolicyError, match=text):
        run(TWO, asked(TWO, [0.0]), Options(), Decider.of(ReturnsNode()), mode=mode)
    with pytest.raises(PolicyError, match=r"returned 1\.0 from dispatch\(\) for request 0 .*how many nodes"):
        run(TWO, asked(TWO, [0.0]), Options(), Decider.of(ReturnsFloat()), mode=mode)


class Columns(Policy):
    """Uses what only NumPy columns have."""

    @staticmethod
    def dispatch(view: Any, plan: Any, work: Any, memory: Any, draws: Any, ranking: Any) -> int:
        assert isinstance(view.nodes.in_flight, np.ndarray)
        assert isinstance(view.resident, np.ndarray)
        best = view.nodes.in_flight.argsort()[:2]
        ranking[: len(best)] = best.tolist()
        return len(best)


@BOTH
def test_columns_of_dispatch_are_numpy_arrays_that_cannot_be_written_to(mode: str) -> None:
    done = run(TWO, asked(TWO, [0.0, 0.1]), Options(), Decider.of(Columns()), mode=mode)
    assert done.state.requests["node_idx"].tolist() == [0, 1]
    with pytest.raises(PolicyError, match="read-only"):
        run(TWO, asked(TWO, [0.0]), Options(), Decider.of(Writes()), mode=mode)


class Writes(Policy):
    def choose(self, cluster: ClusterState, request: Request) -> Any:
        cluster.in_flight[0] = 3


class Counts(Policy):
    """Keeps its memory in attributes: a copy for each dispatcher of each run."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def choose(self, cluster: ClusterState, request: Request) -> int:
        assert len(self.seen) == request.serial // 2
        self.seen.append(request.serial)
        return 0


@BOTH
def test_attributes_are_memory_by_dispatcher_and_run(mode: str) -> None:
    policy = Counts()
    for _ in range(2):
        run(TWO, asked(TWO, [0.0, 1.0, 2.0, 3.0]), Options(dispatchers=2), Decider.of(policy), mode=mode)
    assert policy.seen == []


class Looks(Policy):
    """Looks at all there is to see."""

    draws = 2

    def init(self, cluster: Any) -> Any:
        return tt.memory(floats=[7.0])

    def choose(self, cluster: ClusterState, request: Request) -> Node:
        columns = [getattr(cluster, name) for name in NODE.names or ()]
        assert all(isinstance(column, np.ndarray) and len(column) == 2 for column in columns)
        assert isinstance(cluster.now_s, float)
        assert (cluster.n_nodes, cluster.memory.floats[0], len(cluster.plan.weights)) == (2, 7.0, 0)
        assert request.units == 1.0
        assert (request.attempt, request.retries, request.class_idx) == (0, 0, 0)
        assert request.deadline_s == np.inf
        assert len(request.draws) == 2
        assert cluster.can_take(request).tolist() == [True, True]
        np.testing.assert_array_equal(cluster.estimate_s(request), [1.0, 1.0])
        np.testing.assert_array_equal(cluster.missing_load_s(request), [0.0, 0.0])
        assert set(cluster.changed) <= {0, 1}
        assert [node.idx for node in cluster.nodes] == [0, 1]
        return min(cluster.nodes, key=lambda node: node.in_flight)


@BOTH
def test_everything_has_a_name(mode: str) -> None:
    done = run(TWO, asked(TWO, [0.0, 0.1]), Options(), Decider.of(Looks()), mode=mode)
    assert done.state.requests["node_idx"].tolist() == [0, 1]


def test_every_field_is_declared() -> None:
    of_request = {*Request.__annotations__} - {"draws", "row"}
    of_cluster = {*ClusterState.__annotations__} - {"memory", "plan", "_view"}
    of_view = {name for name in View._fields if name not in ("context", "nodes", "changed")}
    assert of_request | of_cluster == {*WORK.names, *CONTEXT.names, *NODE.names, *of_view}  # type: ignore[misc]
    assert {*Node.__annotations__} - {"row"} == {*NODE.names}  # type: ignore[misc]


class CompiledRandom(Policy):
    draws = 1

    @staticmethod
    @tt.kernel
    def dispatch(view: Any, plan: Any, work: Any, memory: Any, draws: Any, ranking: Any) -> int:
        ranking[0] = int(draws[0] * view.context.n_nodes)
        return 1


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("plain", "compiled"),
    [
        (PlainEmptiest(), Emptiest()),
        (MaskedEmptiest(), Emptiest()),
        (PlainRandom(), CompiledRandom()),
        (PlainCompletion(), find("least-expected-completion")[0]),
    ],
    ids=lambda policy: type(policy).__name__,
)
def test_the_same_decisions_as_a_compiled_policy(plain: Policy, compiled: Policy, case: str) -> None:
    one, other = (final_state(*CASES[case](), policy, seed=5) for policy in (plain, compiled))
    for name in one.requests.dtype.names:
        np.testing.assert_array_equal(one.requests[name], other.requests[name], err_msg=name)


class Above(Emptiest):
    """`choose` of a class counts before `dispatch` of its base."""

    def choose(self, cluster: ClusterState, request: Request) -> int:
        return 1


@dataclass(frozen=True)
class Below(Above):
    """And the other way round."""

    node: int = 0

    @staticmethod
    def dispatch(view: Any, plan: Any, work: Any, memory: Any, draws: Any, ranking: Any) -> int:
        ranking[0] = 0
        return 1


def test_the_nearest_of_choose_and_dispatch_decides() -> None:
    r = requests(TWO, 20, load=0.5)
    assert set(final_state(TWO, r, Options(), Above()).requests["node_idx"]) == {1}
    assert set(final_state(TWO, r, Options(), Below()).requests["node_idx"]) == {0}
