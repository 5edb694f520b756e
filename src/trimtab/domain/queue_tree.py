"""Hierarchical queues: a tree whose leaves hold the work of tenants, and what each may have of a capacity.

Weights, guarantees and limits mean what they mean in YARN's Fair Scheduler (`FairShareComparator`,
`ComputeFairShares`): a queue below its guarantee goes first, then the one that holds least for its weight.
None goes above its limit. What a queue leaves idle its siblings borrow, before others further away do.
A part is of the parent: of its guarantee, or of its limit. Rows of a tree are in preorder; row 0 is the root,
all that there is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.compiled.kernel import kernel
from trimtab.errors import UsageError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

DEFAULT_QUEUE: Final = "default"  # a leaf of this name at the top takes the work of tenants that none names
_ROUNDING: Final = 1e-9


class QueueOrder(IntEnum):
    """The order of work inside a leaf."""

    FIFO = 0  # by arrival
    FAIR = 1  # the tenant that holds least first, then by arrival
    PRIORITY = 2  # by priority, then by arrival


class QueueScheme(StrEnum):
    """What of a tree holds."""

    NONE = "none"  # no queues
    FLAT = "flat"  # the leaves share alike: no hierarchy, weights, guarantees or limits
    GUARANTEES = "guarantees"  # queues below their guarantee go first; none preempts
    PREEMPTION = "preemption"  # as declared: after their notice they take it back
    HDRF = "h-drf"  # as declared, where shares are those of the dominant resource


class TreeShape(NamedTuple):
    """The tree, for kernels."""

    parent: Ints  # [queues] row; -1 = the root
    end: Ints  # [queues] one past its last descendant
    first_leaf: Ints  # [queues] the leaves below it are first_leaf … end_leaf − 1
    end_leaf: Ints  # [queues]
    leaf_row: Ints  # [leaves]
    weight: Floats  # [queues]


class Amounts(NamedTuple):
    """What queues may have of a capacity."""

    guarantee: Floats  # [queues, resources]
    limit: Floats  # [queues, resources]
    capacity: Floats  # [resources]


class Misfit(NamedTuple):
    """A value of a queue that contradicts others."""

    queue: str  # path, as `research.vision`
    field: str
    value: object
    expected: str


@dataclass(frozen=True)
class Queue:
    """One queue as declared. Amounts are parts of the parent's, or absolute by resource."""

    name: str
    weight: float = 1.0
    guarantee: float | Mapping[str, float] = 0.0
    limit: float | Mapping[str, float] = 1.0
    notice_s: float = np.inf  # below its guarantee, before others' work is preempted; inf = never
    user_limit: float = 1.0  # most of the limit of a leaf that one tenant holds
    order: QueueOrder = QueueOrder.FIFO
    max_running: int = np.iinfo(np.int64).max
    preemptible: bool = True  # whether others take back what a leaf holds above its guarantee
    tenants: tuple[str, ...] = ()
    children: tuple[Queue, ...] = ()


@dataclass(frozen=True)
class QueueTree:
    """Queues as arrays."""

    paths: tuple[str, ...]  # [queues] such as `research.vision`; the root has none
    resources: tuple[str, ...]
    shape: TreeShape
    guarantee: Floats  # [queues, resources] part of the parent's, or absolute
    limit: Floats  # [queues, resources]
    guarantee_is_part: Flags  # [queues]
    limit_is_part: Flags  # [queues]
    notice_s: Floats  # [queues] inf = never preempts
    user_limit: Floats  # [queues]
    order: Ints  # [queues] QueueOrder
    most_running: Ints  # [queues]
    preemptible: Flags  # [queues] of leaves: whether others take back what it holds above its guarantee
    tenants: tuple[tuple[str, ...], ...]  # [leaves]
    is_dominant: bool = False  # shares are those of the dominant resource, else of the first

    @classmethod
    def of(cls, queues: Sequence[Queue], resources: Sequence[str]) -> QueueTree:
        """The tree of these top queues. Raises UsageError for an amount of a resource that is not there."""
        rows: list[tuple[str, Queue, int, int]] = []  # path, queue, parent, end

        def add(queue: Queue, path: str, parent: int) -> None:
            row = len(rows)
            rows.append((path, queue, parent, 0))
            for child in queue.children:
                add(child, f"{path}.{child.name}" if path else child.name, row)
            rows[row] = (path, queue, parent, len(rows))

        add(Queue("", guarantee=1.0, children=tuple(queues)), "", -1)
        every = [queue for _, queue, _, _ in rows]
        is_leaf = np.array([not queue.children for queue in every])
        before = np.append(0, np.cumsum(is_leaf))
        ends = np.array([end for *_, end in rows])
        shape = TreeShape(
            parent=np.array([parent for _, _, parent, _ in rows]),
            end=ends,
            first_leaf=before[:-1],
            end_leaf=before[ends],
            leaf_row=np.flatnonzero(is_leaf),
            weight=np.array([queue.weight for queue in every], np.float64),
        )
        paths = tuple(path for path, *_ in rows)
        guarantee = [
            _row(q.guarantee, resources, p, "guarantee", 0.0) for p, q in zip(paths, every, strict=True)
        ]
        limit = [_row(q.limit, resources, p, "limit", np.inf) for p, q in zip(paths, every, strict=True)]
        return cls(
            paths=paths,
            resources=tuple(resources),
            shape=shape,
            guarantee=np.array(guarantee),
            limit=np.array(limit),
            guarantee_is_part=np.array([not isinstance(queue.guarantee, Mapping) for queue in every]),
            limit_is_part=np.array([not isinstance(queue.limit, Mapping) for queue in every]),
            notice_s=np.array([queue.notice_s for queue in every], np.float64),
            user_limit=np.array([queue.user_limit for queue in every], np.float64),
            order=np.array([queue.order for queue in every], np.int64),
            most_running=np.array([queue.max_running for queue in every], np.int64),
            preemptible=np.array([queue.preemptible for queue in every], np.bool_),
            tenants=tuple(queue.tenants for queue in every if not queue.children),
        )

    @property
    def leaf_paths(self) -> tuple[str, ...]:
        """Of each leaf, [leaves]."""
        return tuple(self.paths[row] for row in self.shape.leaf_row)

    @property
    def is_relative(self) -> bool:
        """Whether all amounts are parts, so that `misfits` needs no true capacity."""
        return bool(self.guarantee_is_part.all() and self.limit_is_part.all())

    def under(self, scheme: QueueScheme) -> QueueTree | None:
        """What holds of it under a scheme; None = no queues."""
        if scheme is QueueScheme.NONE:
            return None
        if scheme is QueueScheme.FLAT:
            names = zip(self.leaf_paths, self.tenants, strict=True)
            return QueueTree.of([Queue(path, tenants=tenants) for path, tenants in names], self.resources)
        if scheme is QueueScheme.GUARANTEES:
            return replace(self, notice_s=np.full_like(self.notice_s, np.inf))
        return replace(self, is_dominant=scheme is QueueScheme.HDRF)

    def leaf_of(self, tenants: Sequence[str]) -> Ints:
        """The leaf of each tenant, [tenants]: its own, else the default queue; -1 = it has none."""
        default = self.leaf_paths.index(DEFAULT_QUEUE) if DEFAULT_QUEUE in self.leaf_paths else -1
        own = {name: leaf for leaf, names in enumerate(self.tenants) for name in names}
        return np.array([own.get(name, default) for name in tenants], np.int64)

    def children(self, row: int) -> Ints:
        """Rows of the children of a queue."""
        return np.flatnonzero(self.shape.parent == row)

    def amounts(self, capacity: Floats) -> Amounts:
        """Guarantees and limits of this capacity, [resources].

        Where less is there than absolute guarantees need, as when nodes are down, siblings lose alike.
        """
        guarantee, limit = self._declared(capacity)
        for row in range(len(self.paths)):
            children = self.children(row)
            guarantee[children] = np.where(
                self.guarantee_is_part[children, None],
                guarantee[row] * self.guarantee[children],
                guarantee[children],
            )
            total = np.maximum(guarantee[children].sum(axis=0), 1e-300)
            guarantee[children] *= np.minimum(guarantee[row] / total, 1.0)
        return Amounts(np.minimum(guarantee, limit), limit, np.asarray(capacity, np.float64))

    def _declared(self, capacity: Floats) -> tuple[Floats, Floats]:
        """Guarantees and limits, [queues, resources], whether or not they add up."""
        guarantee, limit = np.zeros_like(self.guarantee), np.zeros_like(self.limit)
        guarantee[0] = limit[0] = capacity
        for row in range(1, len(self.paths)):
            above = self.shape.parent[row]
            of = guarantee[above] if self.guarantee_is_part[row] else 1.0
            guarantee[row] = of * self.guarantee[row]
            of = limit[above] if self.limit_is_part[row] else 1.0
            limit[row] = np.minimum(of * self.limit[row], limit[above])
        return guarantee, limit

    def misfits(self, capacity: Floats) -> Iterator[Misfit]:
        """Values that contradict each other where this is there, [resources].

        Guarantees of siblings above their parent's, a part of a guarantee that the parent lacks, and limits
        below guarantees. The capacity may be 1 of each if all amounts are parts (`is_relative`).
        """
        guarantee, limit = self._declared(capacity)
        for row in range(1, len(self.paths)):
            above = self.shape.parent[row]
            if self.guarantee_is_part[row] and self.guarantee[row].any() and not guarantee[above].any():
                expected = f"a guarantee of {self.paths[above]!r} too, since this is a part of it"
                yield Misfit(self.paths[row], "guarantee", float(self.guarantee[row, 0]), expected)
            for r in np.flatnonzero(guarantee[row] > limit[row] * (1 + _ROUNDING))[:1]:
                expected = f"at least its guarantee, {self._shown(guarantee[row, r], r)}"
                yield Misfit(self.paths[row], "limit", self._shown(limit[row, r], r), expected)
        for row in range(len(self.paths)):
            children = self.children(row)
            total = guarantee[children].sum(axis=0)
            for r in np.flatnonzero(total > guarantee[row] * (1 + _ROUNDING))[:1]:
                has = f"{self._shown(guarantee[row, r], r)}, what {self.paths[row] or 'the root'} has"
                expected = (
                    f"at most {has}, together with its siblings; they add up to {self._shown(total[r], r)}"
                )
                last = int(children[guarantee[children, r] > 0][-1])
                yield Misfit(self.paths[last], "guarantee", self._shown(guarantee[last, r], r), expected)

    def _shown(self, amount: float, r: int) -> str:
        return f"{amount:g} {'of all' if self.is_relative else self.resources[r]}"

    def refuse_misfits(self, capacity: Floats, file: str | None = None, field: str = "queues") -> None:
        """Raise UsageError for amounts that contradict each other on what is really there, [resources]."""
        for found in self.misfits(capacity):
            place = f"{field}.{found.queue.replace('.', '.queues.')}.{found.field}"
            raise UsageError(
                "cannot be used", file=file, field=place, value=found.value, expected=found.expected
            )


def _row(
    amount: float | Mapping[str, float], resources: Sequence[str], path: str, field: str, missing: float
) -> list[float]:
    if not isinstance(amount, Mapping):
        return [float(amount)] * len(resources)
    for name in amount:
        if name not in resources:
            place = f"queues.{path.replace('.', '.queues.')}.{field}"
            expected = f"amounts of {', '.join(resources)}, or a part of the parent's"
            raise UsageError("no such resource here", field=place, value=name, expected=expected)
    return [float(amount.get(name, missing)) for name in resources]


@kernel
def fair_shares(shape: Any, guarantee: Any, limit: Any, demand: Any, capacity: float) -> Any:
    """The fair share of each queue of one resource, [queues], from the demand of each leaf, [leaves].

    Down the tree, the children of a queue get λ · weight each, at least their guarantee, and at most their
    limit and demand, for the λ at which they use up their parent's share (YARN, ComputeFairShares).
    """
    n = len(shape.parent)
    least, most, share = np.zeros(n), np.zeros(n), np.zeros(n)
    for q in range(n - 1, -1, -1):
        if shape.end[q] == q + 1:
            most[q] = demand[shape.first_leaf[q]]
        most[q] = min(most[q], limit[q])
        least[q] = min(guarantee[q], most[q])
        if q > 0:
            most[shape.parent[q]] += most[q]
    share[0] = min(most[0], capacity)
    for q in range(n):
        floor, cap = 0.0, 0.0
        child = q + 1
        while child < shape.end[q]:
            floor += least[child]
            cap += most[child]
            child = shape.end[child]
        if floor >= share[q] or cap <= share[q]:
            child = q + 1
            while child < shape.end[q]:
                share[child] = most[child] if cap <= share[q] else least[child] * share[q] / floor
                child = shape.end[child]
        else:
            level = _level(shape, least, most, q, share[q])
            child = q + 1
            while child < shape.end[q]:
                share[child] = min(max(level * shape.weight[child], least[child]), most[child])
                child = shape.end[child]
    return share


@kernel
def _level(shape: Any, least: Any, most: Any, q: int, total: float) -> float:
    """The λ at which the children of q use up the total: the sum is linear between its corners."""
    corners = np.empty(2 * (shape.end[q] - q))
    count = 0
    child = q + 1
    while child < shape.end[q]:
        corners[count] = least[child] / shape.weight[child]
        corners[count + 1] = most[child] / shape.weight[child]
        count += 2
        child = shape.end[child]
    corners = np.sort(corners[:count])
    low, low_sum = 0.0, 0.0
    for k in range(count):
        high, high_sum = corners[k], 0.0
        child = q + 1
        while child < shape.end[q]:
            high_sum += min(max(high * shape.weight[child], least[child]), most[child])
            child = shape.end[child]
        if high_sum >= total:
            if high_sum == low_sum:
                return high
            return low + (high - low) * (total - low_sum) / (high_sum - low_sum)
        low, low_sum = high, high_sum
    return low
