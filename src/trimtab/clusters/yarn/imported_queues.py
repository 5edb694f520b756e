"""Queues of YARN on their way into a section `queues`: what was carried, and what was not, by name."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any, Final, Literal, NamedTuple

import yaml
from pydantic import TypeAdapter

from trimtab.clusters.yarn.yarn_amounts import CPUS, GPUS, MEMORY, Amounts
from trimtab.domain.queue_tree import DEFAULT_QUEUE
from trimtab.errors import UsageError
from trimtab.validation.base import Spec
from trimtab.validation.problems import checked
from trimtab.validation.queue_section import Queues, QueueSpec

LEAST_WEIGHT: Final = 1e-6  # in place of 0, which YARN serves after all others
ROUNDING: Final = 5e-4  # of a sum of capacities, as Hadoop allows
_OF_REQUESTS: Final = {GPUS: ("gpu_milli", 1000.0), CPUS: ("cpu_cores", 1.0), MEMORY: ("ram_gib", 1.0)}
_DIGITS: Final = 9  # of what is written

Amount = float | Amounts  # part of the parent's, or absolute by resource


class NotCarried(NamedTuple):
    """A setting that the section does not have, or has in another way."""

    name: str  # of the property, element or rule
    value: str
    why: str

    def __str__(self) -> str:
        """In one line."""
        return f"{self.name} = {self.value}: {self.why}"


@dataclass
class Draft:
    """One queue. Its path is without `root`."""

    path: str
    weight: float = 1.0
    guarantee: Amount = 0.0
    limit: Amount = 1.0
    notice_s: float | None = None
    user_limit: float | None = None  # part of the limit; None = as much as the queue
    order: Literal["fifo", "fair", "priority"] = "fifo"
    max_running: int | None = None
    preemptible: bool = True  # of a leaf
    tenants: list[str] = field(default_factory=list)
    children: list[Draft] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Its last part."""
        return self.path.rpartition(".")[2]

    def leaves(self) -> Iterator[Draft]:
        """The leaves below it, or itself."""
        if not self.children:
            yield self
        for child in self.children:
            yield from child.leaves()


@dataclass(frozen=True)
class ImportedQueues:
    """A section `queues`, and what of its source it lacks."""

    source: str
    scheduler: Literal["capacity", "fair"]
    section: Mapping[str, Any]  # as the section is written
    is_dominant: bool  # shares are those of the dominant resource
    not_carried: tuple[NotCarried, ...]

    def for_requests(self) -> ImportedQueues:
        """With amounts in the names that resources of requests have."""
        return replace(self, section={name: _renamed(queue) for name, queue in self.section.items()})

    def for_gateway(self) -> ImportedQueues:
        """As for requests, and with a queue for tenants that none names, which a gateway needs."""
        made = self.for_requests()
        if DEFAULT_QUEUE in made.section:
            return made
        why = "a gateway needs it, for tenants that no queue names: served after all others"
        added = NotCarried(f"a queue {DEFAULT_QUEUE}", "added", why)
        section = {**made.section, DEFAULT_QUEUE: {"weight": LEAST_WEIGHT}}
        return replace(made, section=section, not_carried=(*made.not_carried, added))

    def text(self) -> str:
        """The section as YAML, what it lacks in comments above it."""
        head = [f"Queues of YARN's {self.scheduler} scheduler, from {PurePath(self.source).name}."]
        if self.is_dominant:
            head.append("Shares are those of the dominant resource there: the scheme h-drf.")
        if self.not_carried:
            head.append("Not carried, or otherwise:")
        head += [f"  {lacking}" for lacking in self.not_carried]
        lines = (f"# {' '.join(line.split())}" if line[:1] != " " else f"#   {line.strip()}" for line in head)
        body = yaml.safe_dump({"queues": dict(self.section)}, sort_keys=False, allow_unicode=True)
        return "\n".join(lines).replace("\r", " ") + "\n" + body


class _Section(Spec):
    queues: Queues


def imported(
    drafts: Sequence[Draft],
    source: str,
    scheduler: Literal["capacity", "fair"],
    not_carried: Sequence[NotCarried],
    tenants: Mapping[str, Sequence[str]] | None,
    *,
    is_dominant: bool,
) -> ImportedQueues:
    """The section of these top queues, checked. Raises UsageError.

    `tenants` are those of each leaf by path; None: leaves keep theirs. One without any gets its own path as
    its tenant, which its user limit would hold back as a whole: it has none then.
    """
    lacking = list(not_carried)
    for leaf in [leaf for top in drafts for leaf in top.leaves()]:
        if tenants is not None:
            leaf.tenants = list(tenants.get(leaf.path, ()))
        if leaf.path == DEFAULT_QUEUE:
            leaf.tenants = []
        elif not leaf.tenants:
            leaf.tenants = [leaf.path]
            if leaf.user_limit is not None:
                why = "no user is mapped to the queue; write it where its tenants are users"
                lacking.append(NotCarried(f"user_limit of {leaf.path}", f"{leaf.user_limit:.6g}", why))
                leaf.user_limit = None
    data = {draft.name: _data(draft) for draft in drafts}
    made = checked(lambda: _Section.model_validate({"queues": data}), _Section, source, UsageError)
    adapter = TypeAdapter(dict[str, QueueSpec])
    section = adapter.dump_python(dict(made.queues), mode="json", exclude_defaults=True)
    return ImportedQueues(source, scheduler, section, is_dominant, tuple(lacking))


def _data(draft: Draft) -> dict[str, Any]:
    data: dict[str, Any] = {
        "weight": _short(draft.weight),
        "guarantee": _amount(draft.guarantee),
        "limit": _amount(draft.limit),
        "notice_s": draft.notice_s,
        "max_running": draft.max_running,
    }
    if draft.children:
        return data | {"queues": {child.name: _data(child) for child in draft.children}}
    user_limit = 1.0 if draft.user_limit is None else _short(draft.user_limit)
    own = {"user_limit": user_limit, "order": draft.order, "preemptible": draft.preemptible}
    return data | own | {"tenants": draft.tenants}


def _amount(amount: Amount) -> Any:
    if isinstance(amount, Mapping):
        return {name: _short(value) for name, value in amount.items()}
    return _short(amount)


def _short(value: float) -> float:
    return value if value == 0 else round(value, _DIGITS - 1 - math.floor(math.log10(abs(value))))


def _renamed(queue: Mapping[str, Any]) -> dict[str, Any]:
    """A queue of a section with amounts in the names of requests."""
    made = dict(queue)
    for key in ("guarantee", "limit"):
        if isinstance(queue.get(key), Mapping):
            named = {name: (_OF_REQUESTS[name], amount) for name, amount in queue[key].items()}
            made[key] = {ours: times * amount for (ours, times), amount in named.values()}
    if "queues" in queue:
        made["queues"] = {name: _renamed(below) for name, below in queue["queues"].items()}
    return made


def memory_part(amounts: Amounts, total: Amounts) -> float:
    """What part of a cluster's memory amounts are; all of it where they say nothing of memory."""
    has = total.get(MEMORY, 0.0)
    return min(1.0, amounts[MEMORY] / has) if has and MEMORY in amounts else 1.0


def within(own: Amount, above: Amount) -> Amount:
    """As the section has it: a part of the parent's where both are parts of the cluster."""
    if isinstance(own, Mapping) or isinstance(above, Mapping):
        return own
    return min(1.0, own / above) if above else 0.0


def exceeds(guarantee: Amount, limit: Amount) -> bool:
    """Whether a guarantee is above a limit; a part does not compare with amounts."""
    if isinstance(guarantee, Mapping) and isinstance(limit, Mapping):
        return any(guarantee.get(name, 0.0) > most * (1.0 + ROUNDING) for name, most in limit.items())
    if isinstance(guarantee, Mapping) or isinstance(limit, Mapping):
        return False
    return guarantee > limit * (1.0 + ROUNDING)


def shown(amount: Amount) -> str:
    """An amount for messages."""
    if isinstance(amount, Mapping):
        return ", ".join(f"{value:g} {name}" for name, value in amount.items())
    return f"{100.0 * amount:.4g} %"
