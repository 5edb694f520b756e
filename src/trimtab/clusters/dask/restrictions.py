"""Restrictions of tasks to workers: a task that is held is restricted to none, one that is placed to one.

Dask keeps a task whose restrictions no worker meets in its state `no-worker`. It steals no task from the
only worker that may run it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

NOWHERE: Final = "trimtab://held"  # no worker has this address


class Asked(NamedTuple):
    """What a user restricts a task to."""

    workers: frozenset[str] | None = None  # addresses
    hosts: frozenset[str] | None = None
    is_loose: bool = False  # `allow_other_workers`: these are only preferred


class Only(set[str]):
    """The restriction of a task that trimtab set, beside what its user asked for.

    It lies on the task: it ends with it, and whoever takes over finds it.
    """

    def __init__(self, addresses: Iterable[str], asked: Asked) -> None:
        super().__init__(addresses)
        self.asked = asked

    def copy(self) -> set[str]:
        """What the user asked for: Dask copies this into its error about a task that found no worker."""
        return set(self.asked.workers or ())


def asked_of(task: Any) -> Asked:
    """What the user of a task asked for. A graph that names the task again may have asked for more since."""
    given, hosts, is_loose = task.worker_restrictions, task.host_restrictions, bool(task.loose_restrictions)
    if isinstance(given, Only):
        before = given.asked
        return Asked(before.workers, frozenset(hosts) if hosts else before.hosts, is_loose or before.is_loose)
    return Asked(frozenset(given) if given else None, frozenset(hosts) if hosts else None, is_loose)


def restrict(task: Any, address: str = NOWHERE) -> None:
    """Only the worker of this address may run a task; by default none."""
    task.worker_restrictions = Only((address,), asked_of(task))
    task.host_restrictions, task.loose_restrictions = None, False


def give_back(task: Any) -> None:
    """A task has the restrictions again that its user gave it."""
    asked = asked_of(task)
    task.worker_restrictions = set(asked.workers) if asked.workers else None
    task.host_restrictions = set(asked.hosts) if asked.hosts else None
    task.loose_restrictions = asked.is_loose
