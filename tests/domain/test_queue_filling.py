"""Work granted down the tree: published examples of DRF and H-DRF, properties, limits, gangs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from trimtab.compiled.kernel import interpreted
from trimtab.domain.queue_claims import claimed, noted, take_back
from trimtab.domain.queue_filling import Filling, Rules, Units, empty_filling, fill, hold, rules_of, units_of
from trimtab.domain.queue_tree import Ints, Queue, QueueOrder, QueueTree, fair_shares


def tree_of(*queues: Queue, resources: int = 1, is_dominant: bool = False) -> QueueTree:
    made = QueueTree.of(queues, [f"resource {k}" for k in range(resources)])
    return replace(made, is_dominant=is_dominant)


def problem(
    tree: QueueTree, capacity: list[float], work: list[list[float]], counts: list[int]
) -> tuple[Rules, Filling, Units]:
    """Each leaf has a tenant with so many units of this amount."""
    first = np.append(0, np.cumsum(counts))
    rules = rules_of(tree, np.array(capacity, np.float64), np.arange(len(counts)))
    amount = np.repeat(np.array(work, np.float64), counts, axis=0)
    return rules, empty_filling(rules), units_of(first, amount, np.repeat(np.arange(len(counts)), counts))


def filled(rules: Rules, filling: Filling, units: Units) -> list[int]:
    """Units granted in each leaf; the interpreted kernel grants the same."""
    before = filling._make(column.copy() for column in filling)
    again = units._replace(granted=units.granted.copy(), pool=units.pool.copy())
    set_aside = np.zeros((len(units.first) - 1, len(filling.pool_free)))
    fill(rules, filling, units, set_aside)
    interpreted(fill)(rules, before, again, np.zeros_like(set_aside))
    np.testing.assert_array_equal(units.granted, again.granted)
    np.testing.assert_array_equal(filling.used, before.used)
    return granted(units)


def granted(units: Units) -> list[int]:
    spans = zip(units.first[:-1], units.first[1:], strict=True)
    return [int(units.granted[begin:end].sum()) for begin, end in spans]


def hdrf(*queues: Queue, capacity: list[float], work: list[list[float]], counts: int = 100) -> list[int]:
    tree = tree_of(*queues, resources=len(capacity), is_dominant=True)
    return filled(*problem(tree, capacity, work, [counts] * len(work)))


def test_dominant_resource_fairness_of_its_paper() -> None:
    # Ghodsi et al., NSDI 2011, figure 3: 9 CPUs and 18 GB; A 1 CPU and 4 GB, B 3 CPUs and 1 GB
    assert hdrf(Queue("a"), Queue("b"), capacity=[9, 18], work=[[1, 4], [3, 1]]) == [3, 2]


def test_complementary_resources_starve_nobody() -> None:
    # H-DRF, section 4: naive hierarchical DRF lets n2's CPUs take n2,2's GPUs away; rescaling does not
    queues = Queue("n1"), Queue("n2", children=(Queue("n2,1"), Queue("n2,2")))
    assert hdrf(*queues, capacity=[10, 10], work=[[0, 1], [1, 0], [0, 1]]) == [5, 10, 5]
    assert hdrf(*queues, capacity=[10, 10], work=[[1, 1], [1, 0], [0, 1]]) == [5, 5, 5]


def test_blocked_nodes_are_ignored() -> None:
    # H-DRF, section 4: n4 and n3,2 share what n1, n2 and n3,1 cannot use; without it n3,2 gets two thirds
    inner = Queue("n3", children=(Queue("n3,1"), Queue("n3,2")))
    queues = Queue("n1"), Queue("n2"), inner, Queue("n4")
    work = [[1.0, 0], [1, 0], [1, 0], [0, 1], [0, 1]]
    assert hdrf(*queues, capacity=[30, 30], work=work) == [10, 10, 10, 15, 15]


def random_queues(rng: np.random.Generator, *, weighted: bool = True) -> tuple[Queue, ...]:
    def queue(name: str, children: tuple[Queue, ...] = ()) -> Queue:
        return Queue(name, weight=float(rng.integers(1, 4)) if weighted else 1.0, children=children)

    return tuple(
        queue(f"q{k}", tuple(queue(f"q{j}") for j in range(rng.integers(2, 4))) if rng.random() < 0.6 else ())
        for k in range(rng.integers(2, 4))
    )


class Node:
    """H-DRF as the paper has it, by recursion and fractions: an oracle that shares no code."""

    def __init__(self, queue: Queue, work: Iterator[list[float]]) -> None:
        self.weight = Fraction(queue.weight)
        self.children = [Node(child, work) for child in queue.children]
        self.wants = [] if self.children else [Fraction(amount) for amount in next(work)]
        self.tasks, self.is_blocked = 0, False

    def leaves(self) -> Iterator[Node]:
        if not self.children:
            yield self
        for child in self.children:
            yield from child.leaves()

    def block(self, free: list[Fraction]) -> None:
        for child in self.children:
            child.block(free)
        if self.children:
            self.is_blocked = all(child.is_blocked for child in self.children)
        else:
            self.is_blocked = any(want > there for want, there in zip(self.wants, free, strict=True))

    def vector(self, capacity: list[Fraction], live: list[bool]) -> tuple[list[Fraction], Fraction]:
        """Parts of the capacity, rescaled, and the share over the weight."""
        if not self.children:
            parts = [self.tasks * want / all_ for want, all_ in zip(self.wants, capacity, strict=True)]
            return parts, max(parts) / self.weight
        told = [(child, *child.vector(capacity, live)) for child in self.children]
        least = min((share for child, _, share in told if not child.is_blocked), default=Fraction(0))
        total = [Fraction(0)] * len(capacity)
        for child, parts, share in told:
            factor = least / share if not child.is_blocked and share else 1
            total = [sum_ + factor * part for sum_, part in zip(total, parts, strict=True)]
        counts = [part for part, is_live in zip(total, live, strict=True) if is_live]
        return total, max(counts, default=Fraction(0)) / self.weight


def by_hand(
    queues: tuple[Queue, ...], capacity: list[float], work: list[list[float]], most: int
) -> list[int]:
    root = Node(Queue("", children=queues), iter(work))
    total = [Fraction(amount) for amount in capacity]
    while True:
        used = [sum(leaf.tasks * leaf.wants[r] for leaf in root.leaves()) for r in range(len(total))]
        free = [all_ - taken for all_, taken in zip(total, used, strict=True)]
        root.block(free)
        assert all(leaf.tasks < most for leaf in root.leaves())
        if root.is_blocked:
            return [leaf.tasks for leaf in root.leaves()]
        open_ = [leaf.wants for leaf in root.leaves() if not leaf.is_blocked]
        live = [any(wants[r] > 0 for wants in open_) for r in range(len(total))]
        node = root
        while node.children:
            node = min((c for c in node.children if not c.is_blocked), key=lambda c: c.vector(total, live)[1])
        node.tasks += 1


@pytest.mark.parametrize("seed", range(15))
def test_hdrf_is_that_of_the_paper_by_hand(seed: int) -> None:
    rng = np.random.default_rng(seed)
    queues = random_queues(rng)
    leaves = len(tree_of(*queues, resources=2).leaf_paths)
    work = rng.choice([[1, 0], [0, 1], [1, 1], [2, 1], [1, 3]], leaves).astype(np.float64).tolist()
    expected = by_hand(queues, [48, 64], work, 100)
    tree = tree_of(*queues, resources=2, is_dominant=True)
    rules, filling, units = problem(tree, [48, 64], work, [100] * leaves)
    follows = units._replace(
        base=np.repeat(units.first[:-1], 100)
    )  # nothing is kept for tasks that do not fit
    assert filled(rules, filling, follows) == expected


@pytest.mark.parametrize("seed", range(12))
def test_every_leaf_gets_its_share_of_some_resource(seed: int) -> None:
    """The hierarchical share guarantee, H-DRF's sharing incentive: to the weights along its path."""
    rng = np.random.default_rng(seed)
    tree = tree_of(*random_queues(rng), resources=2, is_dominant=True)
    leaves = len(tree.leaf_paths)
    work = rng.choice([[1, 0], [0, 1], [1, 1], [2, 1], [1, 3]], leaves).astype(np.float64)
    capacity = [240.0, 240.0]
    rules, filling, units = problem(tree, capacity, work.tolist(), [300] * leaves)
    fill(rules, filling, units, np.zeros((leaves, 1)))
    counts = np.array(granted(units))
    for leaf, row in enumerate(tree.shape.leaf_row):
        due, q = 1.0, row
        while q > 0:
            siblings = tree.children(int(tree.shape.parent[q]))
            due *= tree.shape.weight[q] / tree.shape.weight[siblings].sum()
            q = tree.shape.parent[q]
        share = (counts[leaf] + 2) * work[leaf] / capacity  # two units: whole ones are granted
        assert share.max() >= due, (tree.leaf_paths[leaf], counts, work)


@pytest.mark.parametrize("seed", range(12))
def test_no_group_of_leaves_gains_by_asking_for_something_else(seed: int) -> None:
    """Group strategy-proofness: units that are of use to every member of the group do not all become more."""
    rng = np.random.default_rng(100 + seed)
    tree = tree_of(*random_queues(rng), resources=2, is_dominant=True)
    leaves = len(tree.leaf_paths)
    work = rng.choice([[1, 0], [0, 1], [1, 1], [2, 1], [1, 3]], leaves).astype(np.float64)
    group = rng.permutation(leaves)[: rng.integers(1, leaves + 1)]
    told = work.copy()
    told[group] += rng.uniform(0, 2, (len(group), 2)) * (rng.random((len(group), 2)) < 0.7)

    def useful(asked: list[list[float]]) -> Ints:
        rules, filling, units = problem(tree, [240, 240], asked, [300] * leaves)
        fill(rules, filling, units, np.zeros((leaves, 1)))
        has = np.array(granted(units))[:, None] * np.array(asked)
        return np.min(np.where(work > 0, has / np.maximum(work, 1e-9), np.inf), axis=1).astype(np.int64)

    honest, lying = useful(work.tolist()), useful(told.tolist())
    assert (lying[group] <= honest[group] + 2).any()  # two units: whole ones are granted


@pytest.mark.parametrize("seed", range(8))
def test_small_units_become_the_fair_shares(seed: int) -> None:
    rng = np.random.default_rng(seed)
    inner = Queue("c", guarantee=0.3, children=(Queue("d", weight=2.0, guarantee=0.5), Queue("e", limit=0.4)))
    tree = tree_of(Queue("a", weight=3.0, limit=0.5), Queue("b", guarantee=0.25), inner)
    demand = rng.integers(0, 120, 4)
    found = filled(*problem(tree, [200], [[1]] * 4, demand.tolist()))
    amounts = tree.amounts(np.array([200.0]))
    guarantee, limit = amounts.guarantee[:, 0].copy(), amounts.limit[:, 0].copy()
    share = fair_shares(tree.shape, guarantee, limit, demand.astype(np.float64), 200.0)
    np.testing.assert_allclose(found, share[tree.shape.leaf_row], atol=1.001)


def test_limits_of_queues_users_and_counts_hold() -> None:
    inner = Queue("b", limit=0.5, max_running=3, children=(Queue("c", max_running=2), Queue("d")))
    rules, filling, units = problem(tree_of(Queue("a", limit=0.25), inner), [40], [[2]] * 3, [30] * 3)
    assert filled(rules, filling, units) == [5, 2, 1]
    tree = tree_of(Queue("a", user_limit=0.25), Queue("b"))
    rules = rules_of(tree, np.array([40.0]), np.array([0, 0, 1]))
    units = units_of(np.array([0, 60, 70]), np.ones((70, 1)), np.repeat([0, 1, 2], [30, 30, 10]))
    filling = empty_filling(rules)
    assert filled(rules, filling, units) == [20, 10]
    assert filling.tenant_used[:, 0].tolist() == [10, 10, 10]


def test_orders_inside_a_leaf() -> None:
    for order, expected in ((QueueOrder.FIFO, [8, 0]), (QueueOrder.FAIR, [4, 4])):
        rules = rules_of(tree_of(Queue("a", order=order)), np.array([8.0]), np.array([0, 0]))
        units = units_of(np.array([0, 20]), np.ones((20, 1)), np.repeat([0, 1], 10))
        filling = empty_filling(rules)
        filled(rules, filling, units)
        assert filling.tenant_used[:, 0].tolist() == expected


def test_what_is_free_is_kept_for_a_wide_job_of_a_queue_that_is_behind() -> None:
    tree = tree_of(Queue("a"), Queue("b"))
    rules, filling, units = problem(tree, [16], [[8], [1]], [1, 40])
    for unit in range(1, 13):
        units.pool[unit, 0] = 1
        hold(rules, filling, units, unit, 1, 1.0)  # b borrows 12
    set_aside = np.zeros((2, 1))
    fill(rules, filling, units, set_aside)
    assert granted(units) == [0, 12]
    assert set_aside.tolist() == [[4], [0]]
    rules, filling, units = problem(tree, [16], [[20], [1]], [1, 40])  # wider than all: nobody waits for it
    assert filled(rules, filling, units) == [0, 16]


def borrowed() -> tuple[Rules, Filling, Units]:
    """b has all 16 by units of 3, 3, 4, 6; a waits with three of 4, and may have 8."""
    tree = tree_of(Queue("a", guarantee=0.5), Queue("b", guarantee=0.25))
    rules = rules_of(tree, np.array([16.0]), np.array([0, 1]))
    amount = np.array([[4.0], [4], [4], [3], [3], [4], [6]])
    units = units_of(np.array([0, 3, 7]), amount, np.array([0, 0, 0, 1, 1, 1, 1]))
    filling = empty_filling(rules)
    for unit in range(3, 7):
        units.pool[unit] = amount[unit]
        hold(rules, filling, units, unit, 1, 1.0)
    return rules, filling, units


def test_a_queue_takes_back_its_guarantee_and_no_more() -> None:
    rules, filling, units = borrowed()
    wanted = claimed(rules, filling, units, 1)
    assert wanted.tolist() == [0, 1]  # with the third it would have 12
    taken = take_back(rules, filling, units, units.granted.copy(), 1, wanted)
    assert np.flatnonzero(taken).tolist() == [5, 6]  # the last first: 6, then 4
    assert units.granted.tolist() == [True, True, False, True, True, False, False]
    assert filling.used[:, 0].tolist() == [14, 8, 6]


def test_nothing_is_taken_that_does_not_help() -> None:
    rules, filling, units = borrowed()
    removable = np.array([False, False, False, True, False, False, False])  # only 3 of the 4 that it needs
    taken = take_back(rules, filling, units, removable, 1, claimed(rules, filling, units, 1))
    assert not taken.any()
    assert filling.used[:, 0].tolist() == [16, 0, 16]
    assert units.granted.tolist() == [False] * 3 + [True] * 4


def test_a_queue_keeps_its_own_guarantee() -> None:
    tree = tree_of(Queue("a", guarantee=0.5), Queue("b", guarantee=0.5))
    rules = rules_of(tree, np.array([8.0]), np.array([0, 1]))
    units = units_of(np.array([0, 1, 3]), np.array([[4.0], [4], [4]]), np.array([0, 1, 1]))
    filling = empty_filling(rules)
    for unit in (1, 2):
        units.pool[unit] = 4
        hold(rules, filling, units, unit, 1, 1.0)
    taken = take_back(rules, filling, units, units.granted.copy(), 1, np.array([0]))
    assert np.flatnonzero(taken).tolist() == [2]
    assert filling.used[:, 0].tolist() == [8, 4, 4]


def test_notice_runs_while_a_queue_is_short() -> None:
    none, short = np.full(3, np.nan), np.array([False, True, True])
    since_s = noted(noted(none, short, 10.0), short, 20.0)
    np.testing.assert_array_equal(since_s, [np.nan, 10, 10])
    np.testing.assert_array_equal(noted(noted(since_s, ~short, 25.0), short, 50.0), [np.nan, 50, 50])
