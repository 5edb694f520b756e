"""The best assignment so far, improved by chains a slice of time at a time."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

import numpy as np

from trimtab.solvers.dual import Dual, spread_of
from trimtab.solvers.exchange import search
from trimtab.solvers.near import Floats, Ints, Near
from trimtab.solvers.sweep import sweep

SLICE_S = 0.04  # of search between two looks at the clock
WEIGHT_OF_PRICE = 1.5  # a unit of overload costs at first this many times its price
WEIGHT_OF_SPREAD = 0.1
SWAP_WIDTH, SWAP_TRIES = 4, 12  # nodes, and tasks on each, that a task may change places with
ALL_ROUNDS = 1_000_000


@dataclass(frozen=True, slots=True)
class Style:
    """How chains are looked for, and how far a turn goes.

    Attributes:
        width: nodes of a task that are tried.
        depth: tasks of a chain.
        kicks: tasks that are moved at random before a descent.
        reach: nodes of a task that a kick may choose from.
        ease: factor on the weights of overload while there is none.
        harden: factor on the weights of what is overloaded.
        tolerance_frac: of the spread of costs that a new position may be worse by.
        rounds: of a descent at most.
    """

    width: int = 20
    depth: int = 5
    kicks: int = 5
    reach: int = 5
    ease: float = 0.99
    harden: float = 1.1
    tolerance_frac: float = 0.02
    rounds: int = ALL_ROUNDS


@dataclass(slots=True)
class Incumbent:
    """A position and the best choice [tasks] of columns without overload that was met.

    Attributes:
        near: the pairs.
        dual: prices, which give the first weights of overload.
        current: [tasks] columns of the present position.
        generator: of the kicks.
        best: [tasks] columns; those of `current` until `cost` is finite.
        cost: of `best`.
        weight: [nodes + 1, resources] of overload.
    """

    near: Near
    dual: Dual
    current: Ints
    generator: np.random.Generator
    best: Ints = field(init=False)
    cost: float = math.inf
    weight: Floats = field(init=False)
    _spread: float = field(init=False)
    _turns: int = 1

    def __post_init__(self) -> None:
        used = np.maximum((self.near.demand > 0).sum(axis=(0, 1)), 1)
        mean = self.near.demand.sum(axis=(0, 1)) / used + 1e-12
        self._spread = spread_of(self.near)
        self.weight = WEIGHT_OF_PRICE * self.dual.prices + WEIGHT_OF_SPREAD * self._spread / mean
        self.best = self.current.copy()

    def improve(self, style: Style, *, turns: int | None = None) -> bool:
        """Search for about a slice of time, or so many turns; returns whether a better choice was found."""
        near, columns = self.near, self.near.node.shape[1]
        draws = self.generator.random((turns or self._turns, 2 * style.kicks))
        begun_s = time.perf_counter()
        cost = search(
            near.node, near.cost, near.demand, near.capacity,
            min(style.width, columns), style.depth, style.kicks, min(style.reach, columns),
            style.ease, style.harden, style.tolerance_frac * self._spread,
            self.current, self.best, self.cost, self.weight, draws, style.rounds,
        )  # fmt: skip
        took_s = time.perf_counter() - begun_s
        if turns is None:
            self._turns = max(1, int(self._turns * min(4.0, SLICE_S / max(took_s, 1e-5))))
        is_better = bool(cost < self.cost)
        self.cost = cost
        return is_better

    def sweep(self) -> None:
        """Shift or swap every task once, in a random order."""
        near, order = self.near, self.generator.permutation(self.current.size)
        _, cost, overload = sweep(
            near.node, near.cost, near.demand, near.capacity, SWAP_WIDTH, SWAP_TRIES,
            self.current, self.weight, order,
        )  # fmt: skip
        if overload == 0.0 and cost < self.cost:
            self.cost = cost
            self.best[:] = self.current

    def offer(self, choice: Ints) -> None:
        """Take a choice without overload that another method found, if it is better."""
        cost = float(self.near.cost[np.arange(choice.size), choice].sum())
        if cost < self.cost:
            self.cost = cost
            self.best[:] = choice
            self.current[:] = choice
