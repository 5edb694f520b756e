"""Queues of `fair-scheduler.xml`, the Fair Scheduler's allocation file.

Source: Hadoop, "Hadoop: Fair Scheduler" (3.4). Amounts are of the cluster; under the policy `fair` only
memory counts, under `drf` all resources.

Deviations. A queue that may preempt below its fair share only (`fairSharePreemptionTimeout`) gets the
guarantee of the threshold times its share by weight: it goes first up to there, where YARN only lets it
preempt. A parent has at least the guarantees of its queues. Applications of `fair` and `drf` leaves share
alike in YARN, here tenants do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from trimtab.clusters.yarn.hadoop_xml import Element, Value
from trimtab.clusters.yarn.imported_queues import (
    LEAST_WEIGHT,
    Amount,
    Draft,
    ImportedQueues,
    NotCarried,
    exceeds,
    imported,
    memory_part,
    shown,
    within,
)
from trimtab.clusters.yarn.user_mappings import placement_rules
from trimtab.clusters.yarn.yarn_amounts import MEMORY, Amounts, Named, resources
from trimtab.errors import UsageError

_SITE: Final = "yarn.scheduler.fair."
_QUEUES: Final = ("queue", "pool")
_CLASSES: Final = {"fairsharepolicy": "fair", "fifopolicy": "fifo", "dominantresourcefairnesspolicy": "drf"}
_TIMEOUTS: Final = ("minSharePreemptionTimeout", "fairSharePreemptionTimeout")
_THRESHOLD: Final = "fairSharePreemptionThreshold"
_READ: Final = (
    *_QUEUES,
    *_TIMEOUTS,
    _THRESHOLD,
    "minResources",
    "maxResources",
    "maxRunningApps",
    "weight",
    "schedulingPolicy",
    "allowPreemptionFrom",
)
_DEFAULTS: Final = {  # element for all queues → that of one
    "queueMaxAppsDefault": "maxRunningApps",
    "queueMaxResourcesDefault": "maxResources",
    "defaultQueueSchedulingPolicy": "schedulingPolicy",
    "defaultMinSharePreemptionTimeout": _TIMEOUTS[0],
    "defaultFairSharePreemptionTimeout": _TIMEOUTS[1],
    "defaultFairSharePreemptionThreshold": _THRESHOLD,
}
_NEVER_S: Final = 2.0**62  # and more, as Long.MAX_VALUE
_UNLIMITED: Final = 2**31 - 1
_TOTAL: Final = "amounts all of one kind, or --total, what the cluster has"
Policy = Literal["fair", "fifo", "drf"]
Settings = Mapping[str, Value | None]  # of preemption: those of a queue, else its parent's


class _Above(NamedTuple):
    """What queues take from their parent."""

    path: str  # such as root.a
    policy: Policy
    limit: Amount  # of the cluster
    share: float  # of the cluster, by weights alone
    settings: Settings
    preemptible: bool


def fair_queues(
    root: Element,
    site: Mapping[str, Value],
    source: str,
    total: Amounts | None = None,
    tenants: Mapping[str, Sequence[str]] | None = None,
) -> ImportedQueues:
    """The queues of an `<allocations>`. Raises UsageError: values that contradict each other.

    Args:
        root: the element.
        site: properties of yarn-site.xml; empty = not given: timeouts are taken to hold.
        source: file for messages.
        total: what the cluster has: absolute amounts become parts of it where memory alone counts.
        tenants: path of a leaf → who submits to it; None = each its own.
    """
    return _Reader(root, site, source, total).read(tenants)


class _Reader:
    """Reads queues from the root down."""

    def __init__(self, root: Element, site: Mapping[str, Value], source: str, total: Amounts | None) -> None:
        self._root, self._site, self._source, self._total = root, site, source, total
        self._lacking: list[NotCarried] = []
        self._defaults = {tag: self._one(root, name, "allocations") for name, tag in _DEFAULTS.items()}
        self._policies: set[Policy] = set()
        self._by_resource = False  # amounts of each resource count, since the root's policy is drf
        self._has_amounts = total is None and any("%" not in text for text in _amounts(root))
        enabled = site.get(f"{_SITE}preemption")
        self._preempts = not site or (enabled is not None and enabled.is_true())

    def read(self, tenants: Mapping[str, Sequence[str]] | None) -> ImportedQueues:
        """The section."""
        tops = [element for element in self._root.named(*_QUEUES) if _name(element) != "root"]
        own_root = next((each for each in self._root.named(*_QUEUES) if _name(each) == "root"), None)
        if own_root is not None:
            tops += own_root.named(*_QUEUES)
            self._name_others(own_root, "root")
        settings = self._settings(own_root, "root", {})
        policy = self._policy(own_root, "root", None, is_leaf=False)
        self._by_resource = policy == "drf"
        protected = self._one(own_root, "allowPreemptionFrom", "root")
        above = _Above("root", policy, 1.0, 1.0, settings, protected is None or protected.is_true())
        drafts = self._queues(tops, above)
        if not drafts:
            expected = "at least one <queue name=…> that runs applications"
            raise UsageError("no queues", file=self._source, field="allocations", expected=expected)
        self._settle(drafts, 1.0, "root")
        self._name_rest(drafts)
        is_dominant = "drf" in self._policies
        return imported(drafts, self._source, "fair", self._lacking, tenants, is_dominant=is_dominant)

    def _one(self, element: Element | None, tag: str, path: str) -> Value | None:
        """The value of a child; none where there is none. Raises UsageError for two."""
        found = [] if element is None else list(element.named(tag))
        values = [Value(each.text, self._source, f"{path}, <{tag}>", each.line) for each in found]
        if len(values) > 1:
            raise values[1].refused("given twice", "it once")
        return values[0] if values else None

    def _set(self, element: Element | None, tag: str, path: str) -> Value | None:
        """The value of a queue, else that of all queues."""
        own = self._one(element, tag, path)
        return self._defaults.get(tag) if own is None else own

    def _lack(self, value: Value, why: str) -> None:
        self._lacking.append(NotCarried(value.name, value.text, why))

    def _settings(self, element: Element | None, path: str, above: Settings) -> Settings:
        tags = (*_TIMEOUTS, _THRESHOLD)
        own = {tag: self._one(element, tag, path) for tag in tags}
        inherited = {tag: above[tag] if above else self._defaults.get(tag) for tag in tags}
        for value in own.values():
            if value is not None and not self._preempts:
                self._lack(value, f"{_SITE}preemption is not true in yarn-site.xml")
        return {tag: inherited[tag] if own[tag] is None else own[tag] for tag in tags}

    def _policy(self, element: Element | None, path: str, above: Policy | None, *, is_leaf: bool) -> Policy:
        """Of a queue. Raises UsageError: what YARN refuses."""
        value = self._set(element, "schedulingPolicy", path)
        text = "fair" if value is None else value.text.rpartition(".")[2].lower()
        text = _CLASSES.get(text, text)
        if value is not None and text not in _CLASSES.values():
            self._lack(value, "a policy of another class: fair is in its place")
        policy: Policy = "drf" if text == "drf" else "fifo" if text == "fifo" else "fair"
        if value is not None and policy == "fifo" and not is_leaf:
            if value is not self._defaults.get("schedulingPolicy"):
                raise value.refused("fifo is for leaves", "fair or drf: it has queues below it")
            policy = "fair"
        if value is not None and policy == "drf" and above == "fair":
            raise value.refused(f"drf below a parent of the policy {above}", "drf there too, or fair here")
        self._policies.add(policy)
        return policy

    def _queues(self, elements: Sequence[Element], above: _Above) -> list[Draft]:
        """The queues of these elements that run. Raises UsageError: a name that is none, or given twice."""
        names: set[str] = set()
        for element in elements:
            name = Value(_name(element), self._source, f"{above.path}, <{element.tag} name=…>", element.line)
            if not name.text or "." in name.text or name.text in names:
                raise name.refused("cannot be used", "a name of its own, without a period")
            names.add(name.text)
        weights = [self._weight(element, f"{above.path}.{_name(element)}") for element in elements]
        made = [
            self._queue(element, weight, weight / sum(weights), above)
            for element, weight in zip(elements, weights, strict=True)
        ]
        return [draft for draft in made if draft is not None]

    def _weight(self, element: Element, path: str) -> float:
        value = self._one(element, "weight", path)
        weight = 1.0 if value is None else value.number(0, 1e12, "a number of 0 or more")
        if value is not None and weight == 0:
            self._lack(value, f"{LEAST_WEIGHT:g} in its place: after all others")
        return max(weight, LEAST_WEIGHT)

    def _queue(self, element: Element, weight: float, part: float, above: _Above) -> Draft | None:
        """One queue with those below it, its guarantee still of the cluster; None = no work may enter it."""
        path = f"{above.path}.{_name(element)}"
        below = list(element.named(*_QUEUES))
        policy = self._policy(element, path, above.policy, is_leaf=not below)
        settings = self._settings(element, path, above.settings)
        limit, of_cluster = self._limit(element, path, above)
        running = self._set(element, "maxRunningApps", path)
        most = None if running is None else running.whole(0, "a whole number")
        draft = Draft(path.removeprefix("root."), weight=weight, limit=limit)
        draft.max_running = None if most is None or most >= _UNLIMITED else most
        share = above.share * part
        protected = self._one(element, "allowPreemptionFrom", path)
        draft.preemptible = above.preemptible and (protected is None or protected.is_true())
        self._guarantee(element, path, draft, above, settings, of_cluster, share)
        self._name_others(element, path)
        if most == 0:
            self._lacking.append(NotCarried(f"{path}, <maxRunningApps>", "0", "no work enters it: left out"))
            return None
        if below:
            draft.children = self._queues(
                below, _Above(path, policy, of_cluster, share, settings, draft.preemptible)
            )
            return draft if draft.children else None
        draft.order = "priority" if policy == "fifo" else "fair"
        if element.attributes.get("type") == "parent":
            draft.order = "fair"
            why = "users come at run time: one leaf with all of them, who share alike"
            self._lacking.append(NotCarried(f'{path}, type="parent"', "no queues", why))
        return draft

    def _limit(self, element: Element, path: str, above: _Above) -> tuple[Amount, Amount]:
        """The limit as the section has it, and of the cluster."""
        value = self._set(element, "maxResources", path)
        if value is None:
            return 1.0, above.limit
        own = self._amount(value, above.policy, is_limit=True)
        if own == {}:
            return 1.0, above.limit
        if isinstance(own, Mapping) != isinstance(above.limit, Mapping) and above.limit != 1.0:
            raise value.refused("not given as its parent's", _TOTAL)
        limit = within(own, above.limit)
        return limit, own if isinstance(own, Mapping) or isinstance(above.limit, Mapping) else min(
            own, above.limit
        )

    def _amount(self, value: Value, policy: Policy, *, is_limit: bool) -> Amount:
        """An amount of the cluster: a part where it is one, or where the cluster's total is known.

        Under `fair` minima are of memory alone, and a maximum of nothing else is none.
        """
        found = resources(value)
        if not isinstance(found, Named):
            return self._parts(value, found, policy, is_limit=is_limit)
        for name in found.unknown:
            self._lack(value, f"{name} is no resource of trimtab's")
        kept = dict(found.amounts)
        if policy != "drf":
            others = [name for name in kept if name != MEMORY and (not is_limit or not kept[name])]
            for name in others:
                if kept.pop(name):
                    self._lack(value, f"under the policy fair minima are of memory, not of {name}")
        if not kept or (not is_limit and not any(kept.values())):
            return {} if is_limit else 0.0
        if self._total is None or self._by_resource:
            return kept
        return self._memory_part(value, kept, self._total)

    def _parts(self, value: Value, parts: Mapping[str, float], policy: Policy, *, is_limit: bool) -> Amount:
        """Parts of the cluster by resource as one, or as amounts where resources count each for itself."""
        counts = parts if policy == "drf" or is_limit else {MEMORY: parts.get(MEMORY, 0.0)}
        if self._by_resource and self._total is not None:
            return {name: part * self._total[name] for name, part in counts.items() if name in self._total}
        if len(set(counts.values())) > 1:
            self._lack(value, f"the {'smallest' if is_limit else 'largest'} part stands for all")
        return min(counts.values()) if is_limit else max(counts.values())

    def _memory_part(self, value: Value, amounts: Amounts, total: Amounts) -> Amount:
        for name in amounts:
            if name != MEMORY:
                self._lack(value, f"a part of memory stands for all, without {name}")
        return memory_part(amounts, total)

    def _guarantee(
        self,
        element: Element,
        path: str,
        draft: Draft,
        above: _Above,
        settings: Settings,
        limit: Amount,
        share: float,
    ) -> None:
        """Set guarantee and notice. Raises UsageError where the minimum is above the maximum."""
        minimum = self._one(element, "minResources", path)
        own: Amount = 0.0 if minimum is None else self._amount(minimum, above.policy, is_limit=False)
        if minimum is not None and exceeds(own, limit):
            raise minimum.refused("above the maximum of the queue or one above it", f"at most {shown(limit)}")
        min_s, fair_s = (self._seconds(settings[tag]) for tag in _TIMEOUTS)
        fair = settings[_TIMEOUTS[1]]
        if own:
            draft.notice_s = min_s
            if fair is not None and fair_s is not None:
                self._lack(fair, f"{path} takes back its minimum, not what it lacks of its fair share")
        elif fair is not None and fair_s is not None and self._has_amounts:
            self._lack(fair, f"{path} has no minimum, and others have amounts: give --total")
        elif fair is not None and fair_s is not None:
            threshold = settings[_THRESHOLD]
            part = 0.5 if threshold is None else threshold.number(0, 1, "a number from 0 to 1")
            own, draft.notice_s = self._fair_part(part * share, limit), fair_s
        draft.guarantee = own

    def _fair_part(self, part: float, limit: Amount) -> Amount:
        """A part of the cluster as a guarantee within a limit."""
        if self._by_resource and self._total is not None:
            most = limit if isinstance(limit, Mapping) else {}
            return {name: min(part * has, most.get(name, has)) for name, has in self._total.items() if has}
        return part if isinstance(limit, Mapping) else min(part, limit)

    def _seconds(self, value: Value | None) -> float | None:
        """A timeout; None where queues do not preempt, or never."""
        seconds = _NEVER_S if value is None else value.number(0, 2.0**64, "seconds")
        return seconds if self._preempts and seconds < _NEVER_S else None

    def _settle(self, drafts: Sequence[Draft], above: Amount, path: str) -> None:
        """Raise guarantees to those of the queues below, and make them parts of the parent's."""
        for draft in drafts:
            self._raise(draft)
        total = self._sum(drafts)
        if exceeds(total, above):
            named = " + ".join(
                f"{draft.name} {shown(draft.guarantee)}" for draft in drafts if draft.guarantee
            )
            problem, expected = f"minima add up to {shown(total)}: {named}", f"at most {shown(above)}"
            raise UsageError(problem, file=self._source, field=f"{path}, <minResources>", expected=expected)
        for draft in drafts:
            self._make_parts(draft, above)

    def _raise(self, draft: Draft) -> None:
        for child in draft.children:
            self._raise(child)
        below, own = self._sum(draft.children), draft.guarantee
        if own and below and isinstance(own, Mapping) != isinstance(below, Mapping):
            raise UsageError(
                "parts beside amounts", file=self._source, field=f"root.{draft.path}", expected=_TOTAL
            )
        if isinstance(below, Mapping):
            own = dict.fromkeys(below, 0.0) | dict(own if isinstance(own, Mapping) else {})
        if exceeds(below, own):
            name, value = f"root.{draft.path}, <minResources>", shown(own)
            self._lacking.append(NotCarried(name, value, f"raised to what its queues have, {shown(below)}"))
            draft.guarantee = (
                {name: max(most, below.get(name, 0.0)) for name, most in own.items()}
                if isinstance(below, Mapping) and isinstance(own, Mapping)
                else below
            )

    def _sum(self, drafts: Sequence[Draft]) -> Amount:
        """The guarantees together. Raises UsageError for parts beside amounts."""
        given = [draft.guarantee for draft in drafts if draft.guarantee]
        tables = [each for each in given if isinstance(each, Mapping)]
        if not tables:
            return sum(each for each in given if not isinstance(each, Mapping))
        if len(tables) < len(given):
            place = f"root.{drafts[0].path} and the queues beside it"
            raise UsageError("parts beside amounts", file=self._source, field=place, expected=_TOTAL)
        names = dict.fromkeys(name for each in tables for name in each)
        return {name: sum(each.get(name, 0.0) for each in tables) for name in names}

    def _make_parts(self, draft: Draft, above: Amount) -> None:
        of_cluster = draft.guarantee
        for child in draft.children:
            self._make_parts(child, of_cluster)
        draft.guarantee = within(of_cluster, above)

    def _name_others(self, element: Element, path: str) -> None:
        """Name what a queue has that the section lacks."""
        for child in element.children:
            if child.tag not in _READ:
                named = NotCarried(f"{path}, <{child.tag}>", child.text or "(empty)", "has no counterpart")
                self._lacking.append(named)

    def _name_rest(self, drafts: Sequence[Draft]) -> None:
        """Name what stands beside the queues."""
        leaves = [leaf.path for top in drafts for leaf in top.leaves()]
        for child in self._root.children:
            if child.tag == "queuePlacementPolicy":
                self._lacking += placement_rules(child, leaves)
            elif child.tag == "user":
                most = ", ".join(f"{each.tag} {each.text}" for each in child.children)
                name = f'<user name="{_name(child)}">'
                self._lacking.append(NotCarried(name, most, "users have limits of resources, not of jobs"))
            elif child.tag not in _DEFAULTS and child.tag not in _QUEUES:
                self._lacking.append(NotCarried(f"<{child.tag}>", child.text, "has no counterpart"))
        for name, value in self._site.items():
            if name.startswith(_SITE) and name != f"{_SITE}preemption":
                self._lack(value, "has no counterpart")
        if not self._site and any(leaf.notice_s is not None for top in drafts for leaf in _each(top)):
            why = "taken to be on, since timeouts are given; give yarn-site.xml too"
            self._lacking.append(NotCarried(f"{_SITE}preemption", "not known", why))


def _amounts(element: Element) -> Iterator[str]:
    """All minima and maxima, as written."""
    for child in element.children:
        if child.tag in ("minResources", "maxResources", "queueMaxResourcesDefault"):
            yield child.text
        elif child.tag in _QUEUES:
            yield from _amounts(child)


def _name(element: Element) -> str:
    return element.attributes.get("name", "").strip()


def _each(draft: Draft) -> Iterator[Draft]:
    yield draft
    for child in draft.children:
        yield from _each(child)
