"""The best assignment so far, improved by ejection chains in slices of time."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

import numpy as np

from trimtab.solvers.candidate_pairs import CandidatePairs, Floats, Ints, reduced
from trimtab.solvers.dual import Dual, mean_demand, spread_of
from trimtab.solvers.ejection_chains import LEAST_GAIN, search
from trimtab.solvers.ejection_search import (
    Beam,
    EjectionProblem,
    EjectionState,
    beam_of,
    crowded_tasks,
    eject_chains,
    ejection_state_of,
)
from trimtab.solvers.problem import AssignmentProblem, IntArray

SLICE_S = 0.04  # of search between two looks at the clock
PART_S = 0.2  # of chains, likewise: each part begins with a walk over all tasks
WEIGHT_OF_PRICE = 1.5  # a unit of overload costs at first this many times its price
WEIGHT_OF_SPREAD = 0.1
REACH_FRAC = 0.005  # of the spread of costs: regret that a chain hopes to save at its end
ALL_ROUNDS = 1_000_000
SHAKEN_FRAC, SHAKEN_REACH = 0.02, 3  # of the tasks, to so many columns
FIRST_PART, LEAST_PART = 200, 20  # tasks that chains begin at between two looks at the clock
HARDEN = 3.0  # factor on the weights of what is overloaded, once chains have begun at all tasks
MENDING_ROUNDS = 12  # of chains from overloaded nodes alone


@dataclass(frozen=True, slots=True)
class Style:
    """Parameters of the search.

    Attributes:
        width: candidate nodes of a task.
        depth: longest chain, in tasks.
        kicks: tasks moved at random before a descent.
        reach: nodes that a random move may choose from.
        ease: factor on the weights of overload while the solution is feasible.
        harden: factor on the weights of overloaded resources.
        tolerance_frac: of the spread of costs that a new position may be worse by.
        rounds: of a descent at most.
    """

    width: int = 4
    depth: int = 8
    kicks: int = 5
    reach: int = 3
    ease: float = 0.99
    harden: float = 1.1
    tolerance_frac: float = 0.02
    rounds: int = ALL_ROUNDS


@dataclass(slots=True)
class Incumbent:
    """The current solution, and the best feasible choice [tasks] of columns so far.

    Attributes:
        candidates: the pairs.
        dual: prices, which give the first weights of overload.
        current: [tasks] columns of the current solution.
        generator: of the kicks.
        best: [tasks] columns; those of `current` until `cost` is finite.
        cost: of `best`.
        weight: [nodes + 1, resources] of overload.
    """

    candidates: CandidatePairs
    dual: Dual
    current: Ints
    generator: np.random.Generator
    best: Ints = field(init=False)
    cost: float = math.inf
    weight: Floats = field(init=False)
    _spread: float = field(init=False)
    _ejection_problem: EjectionProblem = field(init=False)
    _at: EjectionState = field(init=False)
    _order: Ints = field(init=False)
    _rank: Ints = field(init=False)
    _ordered: CandidatePairs = field(init=False)
    _turns: int = 1
    _part: int = FIRST_PART

    def __post_init__(self) -> None:
        candidates, prices = self.candidates, self.dual.prices
        self._spread = spread_of(candidates)
        self.weight = WEIGHT_OF_PRICE * prices + WEIGHT_OF_SPREAD * self._spread / mean_demand(candidates)
        self._ejection_problem = EjectionProblem(
            candidates.node, candidates.cost, reduced(candidates, prices), candidates.demand,
            candidates.capacity, prices, REACH_FRAC * self._spread,
        )  # fmt: skip
        self._order = self._rank = np.broadcast_to(
            np.arange(candidates.node.shape[1], dtype=np.int32), candidates.node.shape
        )
        self._ordered = candidates
        self._at = ejection_state_of(self.current, self.weight)
        self.best = self.current.copy()

    def order_by(self, keys: Floats) -> None:
        """Let `improve` try columns in order of key [tasks, width]."""
        self._order = np.asarray(keys.argsort(axis=1, kind="stable"), np.int32)
        self._rank = np.asarray(self._order.argsort(axis=1), np.int32)
        self._ordered = self.candidates.ordered(self._order)

    def improve(self, style: Style, *, turns: int | None = None) -> bool:
        """Search for a slice of time or a number of turns; returns whether it found a better choice."""
        candidates, columns, rows = self._ordered, self.candidates.node.shape[1], np.arange(self.current.size)
        current, best = self._rank[rows, self.current], self._rank[rows, self.best]
        draws = self.generator.random((turns or self._turns, 2 * style.kicks))
        begun_s = time.perf_counter()
        cost = search(
            candidates.node, candidates.cost, candidates.demand, candidates.capacity,
            min(style.width, columns), style.depth, style.kicks, min(style.reach, columns),
            style.ease, style.harden, style.tolerance_frac * self._spread,
            current, best, self.cost, self.weight, draws, style.rounds,
        )  # fmt: skip
        took_s = time.perf_counter() - begun_s
        if turns is None:
            self._turns = max(1, int(self._turns * min(4.0, SLICE_S / max(took_s, 1e-5))))
        self.current[:], self.best[:] = self._order[rows, current], self._order[rows, best]
        is_better = bool(cost < self.cost)
        self.cost = cost
        return is_better

    def eject_chains(
        self, depth: int, breadth: int, until_s: float = math.inf, *, least_frac: float = 0.0
    ) -> None:
        """Apply a gaining chain from each task, in random order; then repair remaining overload.

        Skips tasks whose regret, with that of their node, is below this fraction of the spread of costs.
        """
        beam, least = beam_of(depth, breadth), max(LEAST_GAIN, least_frac * self._spread)
        self._chains(beam, np.arange(self.current.size), least, until_s)
        for _ in range(MENDING_ROUNDS):
            crowded = crowded_tasks(self.candidates.node, self.candidates.capacity, self._at)
            if not crowded.size or time.perf_counter() > until_s:
                break
            self._chains(beam, crowded, least, until_s)

    def shake(self, depth: int, breadth: int, until_s: float) -> None:
        """Move some tasks of the best choice at random, then apply chains; undone without improvement."""
        before = self.cost
        tasks = self.generator.choice(
            self.current.size, max(1, int(SHAKEN_FRAC * self.current.size)), replace=False
        )
        columns = self.generator.integers(0, min(SHAKEN_REACH, self.candidates.node.shape[1]), tasks.size)
        is_pair = self.candidates.node[tasks, columns] >= 0
        self.current[tasks[is_pair]] = columns[is_pair]
        self.eject_chains(depth, breadth, until_s)
        if math.isfinite(self.cost) and self.cost >= before:
            self.current[:] = self.best

    def _chains(self, beam: Beam, tasks: IntArray, least: float, until_s: float) -> None:
        """Apply chains from these tasks; raise the weights of remaining overload."""
        order, begin = self.generator.permutation(tasks).astype(np.int32), 0
        while begin < order.size:
            begun_s = time.perf_counter()
            part = order[begin : begin + self._part]
            cost, overload = eject_chains(
                self._ejection_problem, self._at, beam, part, least, HARDEN ** (part.size / order.size)
            )
            if overload == 0.0 and cost < self.cost:
                self.cost = cost
                self.best[:] = self.current
            begin, now_s = begin + part.size, time.perf_counter()
            if part.size == self._part:
                growth = min(4.0, PART_S / max(now_s - begun_s, 1e-5))
                self._part = max(LEAST_PART, int(self._part * growth))
            if now_s > until_s:
                break

    def admit(self, nodes: Ints, problem: AssignmentProblem) -> Ints:
        """Columns [tasks] of a given node for each task; a missing node becomes a candidate.

        Invalidates `current` and `best`: the replaced candidate may be theirs.
        """
        choice, new = self.candidates.give(nodes, problem, self.dual.prices)
        paid = (self.dual.prices[nodes[new]] * self.candidates.demand[new, -1]).sum(axis=1)
        self._ejection_problem.reduced[new, -1] = self.candidates.cost[new, -1] + paid
        self._ordered = self.candidates.ordered(self._order)
        return choice

    def offer(self, choice: Ints) -> None:
        """Accept a feasible choice of another method, if it is better."""
        cost = float(self.candidates.cost[np.arange(choice.size), choice].sum())
        if cost < self.cost:
            self.cost = cost
            self.best[:] = choice
            self.current[:] = choice
