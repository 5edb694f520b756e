"""Adapters for policies in plain Python: the loop calls `choose`, `dispatch`, `order` on NumPy columns."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

from trimtab.domain.cluster_state import ClusterState, Node, Request, read_only
from trimtab.domain.policy import Policy
from trimtab.domain.requests import HOLD, Reject
from trimtab.domain.view import MAX_RANKED, Plan
from trimtab.engine.bound_state import Columns, Ranking, numpy_ranking, numpy_view, record_of
from trimtab.engine.policy_errors import BadDecision
from trimtab.engine.state import State

Decide = Callable[[Plan, int], int]  # the plan in force, the request's row → what `dispatch` returns
Key = Callable[[Plan, int], float]

LONGEST_QUOTE = 60  # characters of a wrong answer in a message
COUNT_OF_NODES = (
    f"how many nodes `dispatch` wrote to `ranking` (1 to {MAX_RANKED}), 0 to hold, or -reason to reject"
)


class Chooser:
    """A policy with `choose`. Each dispatcher calls its own copy, so attributes serve as memory."""

    def __init__(self, policy: Policy, dispatchers: int) -> None:
        self._policy = policy
        self.copies = [copy.deepcopy(policy) for _ in range(dispatchers)]

    def start_anew(self) -> None:
        """Replace the copies by fresh copies of the original policy."""
        self.copies[:] = [copy.deepcopy(self._policy) for _ in self.copies]


def dispatch_of(policy: Policy, dispatchers: int) -> Any:
    """The deciding function of a policy: its `dispatch`, or a Chooser for its `choose`."""
    return Chooser(policy, dispatchers) if type(policy).chooses() else policy.dispatch


def bound_dispatch(function: Any, state: State, first: int) -> Decide:
    """Bind a plain `dispatch` or a Chooser to a state. `first`: the dispatcher that decides about row 0."""
    many = 1 if first else len(state.order_memories)
    if isinstance(function, Chooser):
        return _bound_choose(function, state, first, many)
    views, work = [numpy_view(view) for view in state.views], record_of(Columns(state.work))
    memories, draws, ranking = state.memories, read_only(state.draws), numpy_ranking(state.ranking)

    def decide(plan: Plan, row: int) -> int:
        work.row, d = row, first + row % many
        count = function(views[d], plan, work, memories[d], draws, ranking)
        return count if count.__class__ is int else _as_count(count)

    return decide


def bound_order(function: Any, state: State) -> Key:
    """Bind a plain `order` to a state."""
    views, work = [numpy_view(view) for view in state.views], record_of(Columns(state.work))
    memories = state.order_memories

    def key(plan: Plan, row: int) -> float:
        work.row, d = row, row % len(memories)
        return _as_key(function(views[d], plan, work, memories[d]))

    return key


def _as_count(count: Any) -> int:
    if isinstance(count, bool | np.bool_ | np.integer):
        return int(count)
    raise BadDecision(f"returned {_shown(count)} from dispatch()", COUNT_OF_NODES)


def _as_key(key: Any) -> float:
    try:
        return float(key)
    except (TypeError, ValueError):
        raise BadDecision(f"returned {_shown(key)} from order()", "a number: least is served first") from None


def _bound_choose(chooser: Chooser, state: State, first: int, many: int) -> Decide:
    dispatcher_idxs = range(first, first + many)
    clusters = [ClusterState.over(state.views[d], state.memories[d]) for d in dispatcher_idxs]
    requests = [Request.over(state.work, state.views[d][0], state.draws) for d in dispatcher_idxs]
    copies, ranking, n_nodes = chooser.copies, Ranking(state.ranking), len(state.nodes)

    nodes = ranking.node_idx

    def decide(plan: Plan, row: int) -> int:
        i = row % many
        cluster, request = clusters[i], requests[i]
        cluster.plan, request.row = plan, row
        answer: Any = copies[i].choose(cluster, request)
        kind = answer.__class__
        if (kind is int or kind is np.int64) and 0 <= answer < n_nodes:
            nodes[0] = answer
            return 1
        return _as_decision(answer, ranking, n_nodes)

    return decide


def _as_decision(answer: Any, ranking: Ranking, n_nodes: int) -> int:
    """Convert any choice to the return value of `dispatch`. Raises BadDecision for an invalid choice.

    An entry (node, score) of a list sets the score of that candidate.
    """
    if answer is HOLD:
        return 0
    if isinstance(answer, Reject):
        return -answer.reason
    if isinstance(answer, np.ndarray) and answer.ndim == 1:
        answer = answer.tolist()
    nodes = answer if isinstance(answer, list | tuple) else (answer,)
    scored = [node if _is_scored(node) else (node, None) for node in nodes]
    indices = [_node_idx(node) for node, _ in scored]
    if len(indices) > MAX_RANKED or not all(0 <= j < n_nodes for j in indices):
        raise BadDecision(f"returned {_shown(answer)} from choose()", _choices(n_nodes))
    for i, (j, (_, score)) in enumerate(zip(indices, scored, strict=True)):
        ranking.node_idx[i] = j
        if score is not None:
            ranking.score[i] = score
    return len(indices)


def _is_scored(entry: Any) -> bool:
    return isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[1], float | int)


def _node_idx(node: Any) -> int:
    """Index of a node or an index itself; -1 for any other value."""
    if isinstance(node, Node):
        return node.idx
    is_number = isinstance(node, int | np.integer) and not isinstance(node, bool)
    return int(node) if is_number else -1


def _choices(n_nodes: int) -> str:
    ranking = f"a list of at most {MAX_RANKED} nodes, best first"
    return f"a node (0 to {n_nodes - 1}), {ranking}, tt.HOLD or tt.reject(reason)"


def _shown(answer: Any) -> str:
    """An answer in the form that messages quote, shortened if it is long."""
    text = repr(answer)
    if len(text) <= LONGEST_QUOTE:
        return text
    size = f" of {len(answer)}" if isinstance(answer, list | tuple) else ""
    return f"{text[:LONGEST_QUOTE]}… ({type(answer).__name__}{size})"
