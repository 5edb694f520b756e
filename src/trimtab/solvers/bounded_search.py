"""Bounded searches with `branching`: raise the lower bound by one if infeasible, and dive for solutions."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

import numpy as np

from trimtab.solvers.branching import NO, OPEN, YES, Pairs, Scratch, Tree, explore
from trimtab.solvers.candidate_pairs import Floats, Ints
from trimtab.solvers.knapsack import Knapsacks

WHOLE = 1e-6  # rounding in bounds of whole costs
SLICE_S = 0.04  # of search between two looks at the clock
FIRST_HEIGHT, LAST_HEIGHT = 0.4, 0.9  # of a dive's question between bound and cost
FIRST_PATIENCE_S = 0.2  # of a dive
FIRST_SLICES = 5.0  # that it has at least, each as long as its first one, which is the longest
DIVE_SHARE = 0.2  # of the open tasks that a dive settles at a point at first; less with more patience
NO_COST_FRAC = 0.05  # of the bound above it: where dives look at the highest
MOST_CELLS = 2_000_000  # of the tables of a first step of prices, about 2 ms: beyond, points take too long
MOST_DIVE_CELLS = 8_000_000  # the same of a dive over all pairs; where there are more,
DIVE_WIDTH = 3  # it looks at so many pairs of each task, those of least floor,
MOST_CUT_CELLS = 25_000_000  # and there is none beyond this


@dataclass(slots=True)
class BoundQuery:
    """The query whether a solution costs at most `most`, a whole number; `search` until it is answered.

    Attributes:
        most: the largest cost of interest.
        share: fraction of the open tasks assigned at each tree node; 0 = one task at a time, the hardest.
        answer: `OPEN`, `NO` or `YES`.
    """

    most: float
    share: float
    answer: int
    pairs: Pairs
    _tree: Tree
    _scratch: Scratch
    _points: int = 1

    def search(self) -> None:
        """Continue for about one slice of time."""
        begun_s = time.perf_counter()
        self.answer = explore(
            self.pairs, self._tree, self._scratch, self.most + WHOLE, self._points, self.share
        )
        took_s = time.perf_counter() - begun_s
        self._points = max(1, int(self._points * min(4.0, SLICE_S / max(took_s, 1e-5))))

    @property
    def cells(self) -> int:
        """Table cells of the first price step, a measure of its time."""
        pairs = np.bincount(self.pairs.owner, minlength=self._tree.room.size)
        return int((pairs * np.maximum(self._tree.room, 0)).sum())

    @property
    def nodes(self) -> Ints:
        """[tasks] node of each task (the last number = left out) if the answer is yes."""
        return np.asarray(self.pairs.owner[self._tree.chosen], np.int32)


def ask(knapsacks: Knapsacks, floors: Floats, most: float, share: float = 0.0) -> BoundQuery:
    """A new query.

    Args:
        knapsacks: the relaxation with the initial prices.
        floors: [nodes + 1, tasks] lower bound of the cost of a solution that uses a pair.
        most: the largest cost of interest.
        share: as of `BoundQuery`.
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
        np.zeros(tasks, np.int32), np.zeros(tasks, np.int32), np.zeros(tasks),
    )  # fmt: skip
    is_refuted = bool((count == 0).any() or (room < 0).any())
    return BoundQuery(most, share, NO if is_refuted else OPEN, pairs, tree, scratch)


def _pairs(knapsacks: Knapsacks, floors: Floats, most: float) -> Pairs:
    """The pairs that a solution of cost `most` may use."""
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
class BoundSearch:
    """Successive queries, each for the cost that the bound allows.

    Attributes:
        knapsacks: the relaxation, climbed.
        floors: [nodes + 1, tasks] of its pairs.
        is_over: whether the next query would take too long.
    """

    knapsacks: Knapsacks
    floors: Floats
    is_over: bool = False
    _question: BoundQuery | None = field(default=None)

    def search(self, bound: float) -> tuple[float, Ints | None]:
        """Search for about one slice of time; returns (bound, the nodes [tasks] of an optimum or None)."""
        question = self._question
        if question is None or question.most < bound - WHOLE:
            self._question = question = ask(self.knapsacks, self.floors, bound)
            self.is_over = question.cells > MOST_CELLS
        if question.answer == OPEN and not self.is_over:
            question.search()
        if question.answer == NO:
            return bound + 1.0, None
        return bound, question.nodes if question.answer == YES else None


@dataclass(slots=True)
class Dives:
    """Queries for costs between the bound and the best cost, each with a time limit.

    A yes is a better solution, and the next query is closer to the bound; after a timeout the next query
    has a higher cost; close to the best cost the sequence starts again with longer time limits.

    Attributes:
        knapsacks: the relaxation, climbed.
        floors: [nodes + 1, tasks] of its pairs.
        longest_s: the longest that `search` took.
        is_over: whether a question would take too long.
    """

    knapsacks: Knapsacks
    floors: Floats
    longest_s: float = 0.0
    is_over: bool = False
    _is_cut: bool = False
    _height: float = FIRST_HEIGHT
    _patience_s: float = FIRST_PATIENCE_S
    _left_s: float = 0.0
    _question: BoundQuery | None = None

    def search(self, bound: float, cost: float) -> tuple[float, Ints | None]:
        """Search for about one slice of time; returns (bound, nodes [tasks] of a solution below `cost`)."""
        question, begun_s = self._question, time.perf_counter()
        is_new = question is None or question.most >= cost or question.most < bound - WHOLE
        if is_new or question is None:
            self._question = question = self._next(bound, cost)
        if question.answer == OPEN and not self.is_over:
            question.search()
        took_s = time.perf_counter() - begun_s
        self.longest_s = max(self.longest_s, took_s)
        self._left_s = max(self._patience_s, FIRST_SLICES * took_s) if is_new else self._left_s - took_s
        if question.answer == OPEN and self._left_s > 0:
            return bound, None
        self._question = None
        if question.answer == OPEN or (question.answer == NO and self._is_cut):
            self._give_up()
        elif question.answer == NO:
            return question.most + 1.0, None
        return bound, question.nodes if question.answer == YES else None

    def _next(self, bound: float, cost: float) -> BoundQuery:
        """The next query, on fewer pairs if all of them would take too long."""
        high = min(cost, bound + NO_COST_FRAC * abs(bound) + 1.0)
        most = min(max(math.floor(bound + self._height * (high - bound)), bound), cost - 1.0)
        share = DIVE_SHARE * FIRST_PATIENCE_S / self._patience_s
        question = ask(self.knapsacks, self.floors, most, share)
        if question.cells > MOST_DIVE_CELLS and not self._is_cut:
            rank = self.floors.argsort(axis=0, kind="stable").argsort(axis=0, kind="stable")
            self.floors, self._is_cut = np.where(rank < DIVE_WIDTH, self.floors, np.inf), True
            question = ask(self.knapsacks, self.floors, most, share)
        self.is_over = question.cells > MOST_CUT_CELLS
        return question

    def _give_up(self) -> None:
        self._height = (1.0 + self._height) / 2.0
        if self._height > LAST_HEIGHT:
            self._height = FIRST_HEIGHT
            self._patience_s *= 2.0
