"""Finite Markov decision processes of queues, and their exact solution for the average cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import spsolve

from trimtab.errors import UsageError

RESTART = 1e-9  # chance a step of starting anew, with which every policy has one stationary distribution


@dataclass(frozen=True, eq=False)
class DecisionProcess:
    """A queueing system in uniformised time: at each step an action, its cost, then one event.

    Uniformisation (Lippman, Operations Research 23(4), 1975): the events (arrivals, services) have fixed
    chances, and an event that cannot happen in a state, as a service in an empty queue, leaves it as it is.
    Steps are then equally long, so cost per step and cost per time differ by a factor only.

    An action is the number of a node that gets the request, or `nodes`, the last one: none gets it.
    """

    name: str
    names: tuple[str, ...]  # of the columns of `states`
    states: NDArray[np.int64]  # (states, columns) what can be seen; row 0 is the empty system
    successors: NDArray[np.int64]  # (states, actions, events) row of the state after action and event
    chances: NDArray[np.float64]  # (events,) their sum is 1
    costs: NDArray[np.float64]  # (states, actions) of one step
    allowed: NDArray[np.bool_]  # (states, actions) at least one in each state
    rows: NDArray[np.float32]  # (states, nodes, features) what a dispatcher sees of each node, scaled

    def optimum(self, tolerance: float = 1e-9, max_sweeps: int = 200_000) -> Optimum:
        """The least average cost, by relative value iteration.

        Source: Puterman, Markov Decision Processes, 1994, section 8.5.5; its stopping rule is the span of
        the change, which bounds the error of the average cost. A step of a uniformised queue may leave the
        state as it is, so the iteration has no period.

        Raises UsageError where it does not converge within `max_sweeps`.
        """
        values = np.zeros(len(self.states))
        for _ in range(max_sweeps):
            action_values = self._action_values(values)
            new = action_values.min(axis=1)
            change = new - values
            if np.ptp(change) < tolerance:
                cost = float(change.max() + change.min()) / 2
                return Optimum(cost, action_values.argmin(axis=1), new - new[0])
            values = new - new[0]
        raise UsageError(f"{self.name}: value iteration did not converge in {max_sweeps} sweeps")

    def _action_values(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """(states, actions) cost of an action, then `values` at its successor; infinite where forbidden."""
        expected = values[self.successors] @ self.chances
        return np.where(self.allowed, self.costs + expected, np.inf)

    def average_cost(self, actions: NDArray[np.int64]) -> float:
        """Cost per step of the policy that takes `actions` (states,), in the long run from the empty system.

        Computed from the stationary distribution, not simulated. The chain starts anew with chance `RESTART`
        a step, so that there is one such distribution whatever the policy; this moves the cost by less than
        1e-6 of itself.

        Raises UsageError where an action is not allowed.
        """
        every = np.arange(len(self.states))
        forbidden = np.flatnonzero(~self.allowed[every, actions])
        if len(forbidden):
            state = dict(zip(self.names, self.states[forbidden[0]].tolist(), strict=True))
            raise UsageError(
                f"{self.name}: action {actions[forbidden[0]]} in state {state}",
                expected=f"one of {np.flatnonzero(self.allowed[forbidden[0]]).tolist()}",
            )
        to = self.successors[every, actions]
        chances = np.broadcast_to(self.chances, to.shape).ravel()
        of = np.repeat(every, to.shape[1])
        moves = sparse.coo_array((chances, (to.ravel(), of)), shape=(len(every),) * 2)
        start = np.zeros(len(every))
        start[0] = RESTART
        matrix = sparse.eye_array(len(every)) - (1 - RESTART) * moves
        shares = spsolve(sparse.csc_array(matrix), start)
        return float(shares @ self.costs[every, actions] / shares.sum())


@dataclass(frozen=True, eq=False)
class Optimum:
    """The solution of a decision process."""

    average_cost: float  # per step
    actions: NDArray[np.int64]  # (states,) an optimal policy
    values: NDArray[np.float64]  # (states,) cost to come, relative to the empty system
