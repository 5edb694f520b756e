"""A bound that rises by one with every question that is answered with no (`branching`)."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from trimtab.solvers.branching import NO, OPEN, YES, Pairs, Scratch, Tree, explore
from trimtab.solvers.knapsack import Knapsacks
from trimtab.solvers.near import Floats, Ints

WHOLE = 1e-6  # rounding in bounds of whole costs
SLICE_S = 0.04  # of search between two looks at the clock
MOST_CELLS = 2_000_000  # of the tables of a first step of prices, about 2 ms: beyond, points take too long


@dataclass(slots=True)
class Question:
    """Whether a solution costs at most `most`, a whole number; `search` until it is answered.

    Attributes:
        most: what is asked for.
        answer: `OPEN`, `NO` or `YES`.
    """

    most: float
    answer: int
    pairs: Pairs
    _tree: Tree
    _scratch: Scratch
    _points: int = 1

    def search(self) -> None:
        """Go on for about a slice of time."""
        begun_s = time.perf_counter()
        self.answer = explore(self.pairs, self._tree, self._scratch, self.most + WHOLE, self._points)
        took_s = time.perf_counter() - begun_s
        self._points = max(1, int(self._points * min(4.0, SLICE_S / max(took_s, 1e-5))))

    @property
    def cells(self) -> int:
        """Cells of the tables of a step of prices at the beginning."""
        pairs = np.bincount(self.pairs.owner, minlength=self._tree.room.size)
        return int((pairs * np.maximum(self._tree.room, 0)).sum())

    @property
    def nodes(self) -> Ints:
        """[tasks] node of each task (the last number for being left out) where the answer is yes."""
        return np.asarray(self.pairs.owner[self._tree.chosen], np.int32)


def ask(knapsacks: Knapsacks, floors: Floats, most: float) -> Question:
    """The question at its beginning.

    Args:
        knapsacks: with the prices to begin from.
        floors: [nodes + 1, tasks] the least that a solution costs which uses a pair.
        most: the cost that is asked for.
    """
    pairs = _pairs(knapsacks, floors, most)
    nodes, tasks, size = knapsacks.room.size, floors.shape[1], pairs.task.size
    count = np.diff(pairs.first)
    room, is_settled = knapsacks.room.copy(), count[pairs.task] == 1
    np.subtract.at(room, pairs.owner[is_settled], pairs.size[is_settled])
    levels = tasks + 2
    price = np.zeros((levels, tasks))
    price[0] = knapsacks.best
    tree = Tree(
        np.ones(size, np.bool_), count, room, np.zeros(size + 1, np.int32), price, np.zeros(levels, np.int32),
        np.zeros(levels, np.int32), np.zeros(1, np.int32), np.zeros(tasks, np.int32),
    )  # fmt: skip
    items, widest = int(np.bincount(pairs.owner, minlength=nodes).max()) + 1, int(knapsacks.room.max()) + 1
    scratch = Scratch(
        np.zeros((items, widest)), np.zeros((items, widest)), np.zeros((items, widest), np.bool_),
        np.zeros(items, np.int32), np.zeros(size), np.zeros(size), np.zeros(tasks), np.zeros(tasks),
        np.zeros(tasks, np.int32),
    )  # fmt: skip
    is_refuted = bool((count == 0).any() or (room < 0).any())
    return Question(most, NO if is_refuted else OPEN, pairs, tree, scratch)


def _pairs(knapsacks: Knapsacks, floors: Floats, most: float) -> Pairs:
    """The pairs that a solution of the cost `most` may use."""
    node, task = np.nonzero(floors <= most + WHOLE)
    nodes, tasks = floors.shape
    count = np.bincount(task, minlength=tasks)
    return Pairs(
        np.searchsorted(node, np.arange(nodes + 1)).astype(np.int32),
        task.astype(np.int32),
        node.astype(np.int32),
        knapsacks.size[node, task],
        knapsacks.cost[node, task],
        np.append(0, np.cumsum(count)).astype(np.int32),
        np.argsort(task, kind="stable").astype(np.int32),
    )


@dataclass(slots=True)
class Ladder:
    """One question after the other, each about the cost that the bound allows.

    Attributes:
        knapsacks: the relaxation, climbed.
        floors: [nodes + 1, tasks] of its pairs.
        is_over: whether the next question would take too long.
    """

    knapsacks: Knapsacks
    floors: Floats
    is_over: bool = False
    _question: Question | None = field(default=None)

    def search(self, bound: float) -> tuple[float, Ints | None]:
        """About a slice of time; returns (bound, the nodes [tasks] of an optimum, once one is found)."""
        question = self._question
        if question is None or question.most < bound - WHOLE:
            self._question = question = ask(self.knapsacks, self.floors, bound)
            self.is_over = question.cells > MOST_CELLS
        if question.answer == OPEN and not self.is_over:
            question.search()
        if question.answer == NO:
            return bound + 1.0, None
        return bound, question.nodes if question.answer == YES else None
