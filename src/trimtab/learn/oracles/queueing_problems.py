"""Three problems of control of queues with known forms of their optimal policies."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from trimtab.learn.oracles.decision_process import DecisionProcess

QUEUE_SCALE = 4.0  # requests; queue lengths are divided by it where agents see them

State = tuple[int, ...]


def unequal_servers(
    arrival: float = 0.8, fast: float = 1.0, slow: float = 0.15, longest: int = 20
) -> DecisionProcess:
    """One queue before a fast and a slow server; costs are requests in the system.

    A request that has started is not moved. The optimal policy keeps the fast server busy and uses the slow
    one only while the queue is longer than a threshold.
    Source: Lin and Kumar, IEEE Transactions on Automatic Control 29(8), 1984.

    Arguments are rates (1/s); arrivals at a queue of `longest` are lost. State: queue, fast, slow (busy).
    Actions: 0 starts a request on the fast server, 1 on the slow one, 2 waits; at most one starts in a step.
    """
    total = arrival + fast + slow

    def act(state: State, action: int) -> tuple[State, float] | None:
        queue, *busy = state
        if action < 2:
            if queue == 0 or busy[action]:
                return None
            queue, busy[action] = queue - 1, 1
        return (queue, *busy), float(queue + sum(busy))

    def arrive(state: State) -> State:
        return (min(state[0] + 1, longest), *state[1:])

    return _process(
        "unequal servers",
        {"queue": longest + 1, "fast": 2, "slow": 2},
        act,
        [arrive, lambda s: (s[0], 0, s[2]), lambda s: (s[0], s[1], 0)],
        np.array([arrival, fast, slow]) / total,
        rows=lambda s: [
            [s[0] / QUEUE_SCALE, s[1], fast / (fast + slow)],
            [s[0] / QUEUE_SCALE, s[2], slow / (fast + slow)],
        ],
    )


def two_class_admission(
    arrivals: tuple[float, float] = (1.0, 3.0),
    losses: tuple[float, float] = (8.0, 1.0),
    slots: int = 4,
) -> DecisionProcess:
    """Requests of two classes at one node with `slots`; a refused request costs its class's loss.

    Services last a mean of one second in both classes. The optimal policy takes the dear class whenever a
    slot is free, and the cheap one only while more than a number of slots are free (trunk reservation).
    Source: Miller, Management Science 16(3), 1969.

    Arguments are rates (1/s), costs of a refusal, and a count. State: busy slots, class that has just arrived
    (0: none). Actions: 0 takes the request, 1 refuses it.
    """
    total = sum(arrivals) + slots

    def act(state: State, action: int) -> tuple[State, float] | None:
        busy, of_class = state
        if action == 0:
            return ((busy + 1, 0), 0.0) if of_class and busy < slots else None
        return (busy, 0), losses[of_class - 1] if of_class else 0.0

    def service(slot: int) -> Callable[[State], State]:
        return lambda s: (s[0] - 1, 0) if slot < s[0] else s

    return _process(
        "two-class admission",
        {"busy": slots + 1, "class": 3},
        act,
        [lambda s: (s[0], 1), lambda s: (s[0], 2), *(service(slot) for slot in range(slots))],
        np.array([*arrivals, *[1.0] * slots]) / total,
        rows=lambda s: [[s[0] / slots, float(s[1] == 1), float(s[1] == 2)]],
    )


def two_queues(
    arrival: float = 0.9, rates: tuple[float, float] = (1.0, 0.3), longest: int = 10
) -> DecisionProcess:
    """Arrivals are sent to one of two nodes, each with its own queue; costs are requests in the system.

    The optimal policy is a switching curve; it joins the shorter queue where both nodes are equally fast.
    Source: Hajek, IEEE Transactions on Automatic Control 29(6), 1984; Winston, Journal of Applied
    Probability 14(1), 1977, for equal nodes.

    Arguments are rates (1/s); a node takes no more than `longest` requests. State: requests at each node, and
    whether one has just arrived. Actions: 0 and 1 send it there, 2: there is none to send, or no room.
    """
    total = arrival + sum(rates)

    def act(state: State, action: int) -> tuple[State, float] | None:
        at, arrived = list(state[:2]), state[2]
        has_room = arrived and min(at) < longest
        if action == 2:
            return None if has_room else ((*at, 0), float(sum(at)))
        if not arrived or at[action] == longest:
            return None
        at[action] += 1
        return (*at, 0), float(sum(at))

    return _process(
        "two queues",
        {"first": longest + 1, "second": longest + 1, "arrived": 2},
        act,
        [
            lambda s: (*s[:2], 1),
            lambda s: (max(s[0] - 1, 0), s[1], 0),
            lambda s: (s[0], max(s[1] - 1, 0), 0),
        ],
        np.array([arrival, *rates]) / total,
        rows=lambda s: [[s[j] / QUEUE_SCALE, float(s[2]), rates[j] / sum(rates)] for j in (0, 1)],
    )


def _process(
    name: str,
    columns: dict[str, int],
    act: Callable[[State, int], tuple[State, float] | None],
    events: Sequence[Callable[[State], State]],
    chances: np.ndarray,
    rows: Callable[[State], list[list[float]]],
) -> DecisionProcess:
    """The tables of a process.

    Args:
        name: of the problem.
        columns: number of values of each column of a state.
        act: the state after an action and the cost of the step; None where the action is not allowed.
        events: what each makes of a state.
        chances: (events,) of each.
        rows: features of each node in a state.
    """
    states = list(itertools.product(*(range(size) for size in columns.values())))
    number = {state: row for row, state in enumerate(states)}
    seen = np.array([rows(state) for state in states], np.float32)
    n_actions = seen.shape[1] + 1
    shape = (len(states), n_actions)
    successors, costs = np.zeros((*shape, len(events)), np.int64), np.zeros(shape)
    allowed = np.zeros(shape, np.bool_)
    for (row, state), action in itertools.product(enumerate(states), range(n_actions)):
        done = act(state, action)
        if done is not None:
            successors[row, action] = [number[event(done[0])] for event in events]
            costs[row, action], allowed[row, action] = done[1], True
    return DecisionProcess(name, tuple(columns), np.array(states), successors, chances, costs, allowed, seen)
