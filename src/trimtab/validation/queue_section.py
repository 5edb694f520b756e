"""The section `queues` of scenarios, gateway.yaml and lists of jobs: hierarchical queues, checked."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Final, Literal

import numpy as np
from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from trimtab.domain.queue_tree import DEFAULT_QUEUE, Queue, QueueOrder, QueueScheme, QueueTree
from trimtab.validation.base import Frac, NonNegative, Positive, Spec, Texts, number_or_table
from trimtab.validation.names import FieldError, nearest, raise_field_errors

QueueName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w-]{0,99}$")]
Amount = Annotated[
    Annotated[Frac, Tag("<number>")] | Annotated[Mapping[str, NonNegative], Tag("<table>")],
    Discriminator(number_or_table),
]
SLOTS: Final = "slots"  # the last resource of hosts that serve requests
_OF_LEAVES = ("user_limit", "order", "preemptible", "tenants")


class QueueSpec(Spec):
    """A queue: a leaf with tenants, or an inner node with queues."""

    weight: Positive = Field(1.0, description="share of what is contended, among its siblings")
    guarantee: Amount = Field(
        0.0,
        description="what it has before others borrow: part of the parent's, or {gpus: 8, cpus: 64}",
    )
    limit: Amount = Field(
        1.0, description="most that it ever has: part of the parent's limit, or {gpus: 8, cpus: 64}"
    )
    notice_s: NonNegative | None = Field(
        None,
        description="time below its guarantee, with work that waits, after which work of others that "
        "exceed theirs is preempted; null = never",
    )
    user_limit: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="most of the limit of a leaf that one tenant has"
    )
    order: Literal["fifo", "fair", "priority"] = Field(
        "fifo", description="order inside a leaf; fair: the tenant that has least goes first"
    )
    max_running: int | None = Field(None, ge=1, description="most that run at once; null = any number")
    preemptible: bool = Field(
        True, description="of a leaf: whether other queues take back what it holds above its guarantee"
    )
    tenants: Texts = Field((), description="who submits to this leaf; the leaf `default` names none")
    queues: Mapping[QueueName, QueueSpec] | None = Field(
        None, description="name → queue, its children; null = it is a leaf"
    )

    def named(self, name: str) -> Queue:
        """The queue, for a tree."""
        return Queue(
            name=name,
            weight=self.weight,
            guarantee=self.guarantee,
            limit=self.limit,
            notice_s=np.inf if self.notice_s is None else self.notice_s,
            user_limit=self.user_limit,
            order=QueueOrder[self.order.upper()],
            max_running=Queue.max_running if self.max_running is None else self.max_running,
            preemptible=self.preemptible,
            tenants=self.tenants,
            children=tuple(queue.named(child) for child, queue in (self.queues or {}).items()),
        )


def _checked(queues: Mapping[str, QueueSpec]) -> Mapping[str, QueueSpec]:
    raise_field_errors(_field_errors(queues), "queues")
    tree = tree_of(queues, named_resources(queues) or ("all",))
    if tree.is_relative:
        misfits = tree.misfits(np.ones(len(tree.resources)))
        raise_field_errors(
            (FieldError((*_path(m.queue), m.field), m.value, m.expected) for m in misfits), "queues"
        )
    return queues


Queues = Annotated[Mapping[QueueName, QueueSpec], AfterValidator(_checked)]
"""Name → top queue; parts that add up, each tenant in one leaf."""

Scheme = Annotated[
    QueueScheme,
    Field(
        description="what of the queues holds: all, guarantees without preemption, shares of the dominant "
        "resource (h-drf), leaves that share alike (flat), nothing"
    ),
]


def tree_of(queues: Mapping[str, QueueSpec], resources: Sequence[str]) -> QueueTree:
    """The tree of a section. Raises UsageError for an amount of another resource."""
    return QueueTree.of([queue.named(name) for name, queue in queues.items()], resources)


class OpenSection(Spec):
    """Queues of a host that meets its tenants as they come: the leaf `default` takes all others."""

    queues: Queues = Field(description="name → queue")

    @model_validator(mode="after")
    def _takes_all(self) -> OpenSection:
        if DEFAULT_QUEUE not in self.queues:
            expected = f"a queue {DEFAULT_QUEUE!r} too, for tenants that no queue names"
            raise_field_errors([FieldError(("queues",), list(self.queues), expected)], "queues")
        return self


def open_tree(
    queues: Mapping[str, QueueSpec], resources: Sequence[str]
) -> tuple[QueueTree, dict[str, int], int]:
    """The tree of an `OpenSection`; the row of each named tenant's leaf; that of all others.

    `resources` are those of the nodes that are there; amounts of others bound nothing.
    """
    known = (*resources, SLOTS)
    tree = tree_of(queues, tuple(dict.fromkeys((*known, *named_resources(queues)))))
    columns = [tree.resources.index(name) for name in known]
    guarantee, limit = tree.guarantee[:, columns], tree.limit[:, columns]
    leaves = zip(tree.shape.leaf_row.tolist(), tree.tenants, strict=True)
    leaf_of = {name: row for row, names in leaves for name in names}
    tree = replace(tree, resources=known, guarantee=guarantee, limit=limit)
    return tree, leaf_of, tree.paths.index(DEFAULT_QUEUE)


def unknown_tenants(
    queues: Mapping[str, QueueSpec], tenants: Collection[str], *, are_all: bool = True
) -> Iterator[FieldError]:
    """Tenants that no queue takes; and where these `are_all`, tenants of queues that are none of them.

    Paths begin inside the section.
    """
    taken: set[str] = set()
    for path, queue in _each(queues):
        taken.update(queue.tenants)
        for k, name in enumerate(queue.tenants):
            if are_all and name not in tenants:
                yield FieldError((*path, "tenants", k), name, f"a known tenant: {nearest(name, tenants)}")
    if DEFAULT_QUEUE not in queues:
        for name in tenants:
            if name not in taken:
                yield FieldError((), name, f"a queue for this tenant, or one of the name {DEFAULT_QUEUE!r}")


def _each(
    queues: Mapping[str, QueueSpec], above: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], QueueSpec]]:
    """Every queue with its path inside the section."""
    for name, queue in queues.items():
        yield (*above, name), queue
        yield from _each(queue.queues or {}, (*above, name, "queues"))


def _path(path: str) -> tuple[str, ...]:
    """`research.vision` → research, queues, vision."""
    return tuple(".queues.".join(path.split(".")).split("."))


def named_resources(queues: Mapping[str, QueueSpec]) -> tuple[str, ...]:
    """All that amounts of the section name."""
    amounts = [amount for _, queue in _each(queues) for amount in (queue.guarantee, queue.limit)]
    named = dict.fromkeys(name for amount in amounts if isinstance(amount, Mapping) for name in amount)
    return tuple(named)


def _field_errors(queues: Mapping[str, QueueSpec]) -> Iterator[FieldError]:
    if not queues:
        yield FieldError((), {}, "at least one queue")
    seen: dict[str, str] = {}
    for path, queue in _each(queues):
        if queue.queues is not None:
            yield from _inner_errors(path, queue)
        elif not queue.tenants and path != (DEFAULT_QUEUE,):
            expected = f"tenants of its own, or queues; only the top queue {DEFAULT_QUEUE!r} names none"
            yield FieldError((*path, "tenants"), [], expected)
        elif queue.tenants and path == (DEFAULT_QUEUE,):
            yield FieldError((*path, "tenants"), queue.tenants[0], "none: it takes all that no queue names")
        for k, name in enumerate(queue.tenants):
            if name in seen:
                yield FieldError(
                    (*path, "tenants", k), name, f"in one queue only; it is in {seen[name]!r} too"
                )
            seen.setdefault(name, ".".join(str(part) for part in path if part != "queues"))


def _inner_errors(path: tuple[str | int, ...], queue: QueueSpec) -> Iterator[FieldError]:
    if not queue.queues:
        yield FieldError((*path, "queues"), {}, "at least one queue, or no key queues")
    for field in _OF_LEAVES:
        if getattr(queue, field) != QueueSpec.model_fields[field].default:
            yield FieldError(
                (*path, field),
                getattr(queue, field),
                "none: that is of leaves, and this queue has queues below it",
            )
