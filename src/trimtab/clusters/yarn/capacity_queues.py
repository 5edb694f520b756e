"""Queues of `capacity-scheduler.xml`.

Source: Hadoop, "Hadoop: Capacity Scheduler" (3.4). A capacity is part of the parent's, so is a maximum; a
weight counts among siblings. The section gets capacities as guarantees, and as weights too, since YARN
serves the queue first that uses least of its capacity.

Deviations. `minimum-user-limit-percent` lets so many users share a queue alike at once and holds back
further ones; here all share alike (`order: fair`). `user-limit-factor` is a part of the limit. Applications
in `fifo` go by priority first, as in YARN. Preemption is `notice_s`: one interval of the monitor and the
time before the kill.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

from trimtab.clusters.yarn.hadoop_xml import Value
from trimtab.clusters.yarn.imported_queues import (
    LEAST_WEIGHT,
    ROUNDING,
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
from trimtab.clusters.yarn.user_mappings import Mappings, map_users
from trimtab.clusters.yarn.yarn_amounts import MEMORY, Amounts, absolute, is_absolute
from trimtab.errors import UsageError

PREFIX: Final = "yarn.scheduler.capacity."
OF_SCHEDULERS: Final = (  # other properties of Hadoop say nothing of queues
    "yarn.scheduler.",
    "yarn.resourcemanager.scheduler.",
    "yarn.resourcemanager.monitor.",
)
MONITOR: Final = "yarn.resourcemanager.scheduler.monitor.enable"
_PREEMPTION: Final = "yarn.resourcemanager.monitor.capacity.preemption."
_UNLIMITED: Final = 2**31 - 1
_NO_USERS: Final = "users come at run time: one leaf with all of them, who share alike"
_KEYS: Final = ("capacity", "maximum-capacity", "queues", "state", "user-limit-factor")  # of queues


class _Room(NamedTuple):
    """What a queue has of the cluster: parts, or amounts by resource where its total is not known."""

    guarantee: Amount
    limit: Amount


class _Share(NamedTuple):
    """What the capacity of a queue makes of it."""

    weight: float
    guarantee: Amount  # as the section has it
    room: Amount  # of the cluster


def capacity_queues(
    properties: Mapping[str, Value],
    source: str,
    total: Amounts | None = None,
    tenants: Mapping[str, Sequence[str]] | None = None,
) -> ImportedQueues:
    """The queues of these properties, `${…}` resolved. Raises UsageError: values that contradict each other.

    Args:
        properties: of capacity-scheduler.xml, and of yarn-site.xml, which tells whether queues preempt.
        source: file for messages.
        total: what the cluster has: absolute amounts become parts of it where memory alone counts.
        tenants: path of a leaf → who submits to it; None = as mapped.
    """
    return _Reader(properties, source, total).read(tenants)


class _Reader:
    """Reads queues from the root down, and remembers which properties it has used."""

    def __init__(self, properties: Mapping[str, Value], source: str, total: Amounts | None) -> None:
        self._properties, self._source, self._total = properties, source, total
        self._used: set[str] = set()
        self._lacking: list[NotCarried] = []
        self._stopped: list[str] = []
        calculator = self._take(f"{PREFIX}resource-calculator")
        self._is_dominant = calculator is not None and "Dominant" in calculator.text
        self._notice_s = self._preemption_s()

    def read(self, tenants: Mapping[str, Sequence[str]] | None) -> ImportedQueues:
        """The section."""
        self._refuse_other_root()
        tops = self._children("root", _Room(1.0, 1.0), most_running=None)
        if not tops:
            place, expected = f"{PREFIX}root.queues", "at least one queue that is not STOPPED"
            raise UsageError("no queue that runs", file=self._source, field=place, expected=expected)
        named = ("queue-mappings", "mapping-rule-format", "mapping-rule-json")
        mappings = Mappings(*(self._take(f"{PREFIX}{key}") for key in named))
        together = self._own("root", "max-parallel-apps", inherits=True)
        if together is not None:
            self._lack(together, "holds of queues, not of all together")
        self._lacking += map_users(tops, mappings, self._stopped)
        self._name_unused()
        return imported(tops, self._source, "capacity", self._lacking, tenants, is_dominant=self._is_dominant)

    def _take(self, name: str) -> Value | None:
        self._used.add(name)
        return self._properties.get(name)

    def _own(self, path: str, key: str, *, inherits: bool = False) -> Value | None:
        """A property of a queue, else the one of all queues where there is one."""
        own = self._take(f"{PREFIX}{path}.{key}")
        of_all = self._take(f"{PREFIX}{key}") if inherits else None
        return of_all if own is None else own

    def _is_on(self, path: str, key: str) -> bool:
        value = self._own(path, key)
        return value is not None and value.is_true()

    def _lack(self, value: Value, why: str) -> None:
        self._lacking.append(NotCarried(value.name, value.text, why))

    def _refuse_other_root(self) -> None:
        for key in ("capacity", "maximum-capacity"):
            value = self._own("root", key)
            if value is None or is_absolute(value) or value.text.endswith("w"):
                continue
            value.number(100, 100, "100: root has all there is")

    def _preemption_s(self) -> float | None:
        """Time to the kill of what others hold; None = queues do not preempt."""
        enabled = self._take(MONITOR)
        observes = self._take(f"{_PREEMPTION}observe_only")
        times = [self._take(f"{_PREEMPTION}{key}") for key in ("monitoring_interval", "max_wait_before_kill")]
        if enabled is None or not enabled.is_true() or (observes is not None and observes.is_true()):
            return None
        defaults_ms = (3000.0, 15_000.0)
        return (
            sum(
                default if value is None else value.number(0, 1e12, "milliseconds")
                for value, default in zip(times, defaults_ms, strict=True)
            )
            / 1000.0
        )

    def _children(self, parent: str, room: _Room, most_running: int | None) -> list[Draft]:
        """The queues below a path that run."""
        listed = self._take(f"{PREFIX}{parent}.queues")
        names = [] if listed is None else [part.strip() for part in listed.text.split(",") if part.strip()]
        if listed is not None and (not names or len(set(names)) < len(names)):
            raise listed.refused("cannot be used", "names of queues, each once")
        if listed is None and parent == "root":
            place, expected = f"{PREFIX}root.queues", "the names of the top queues"
            raise UsageError("missing", file=self._source, field=place, expected=expected)
        paths = [f"{parent}.{name}" for name in names]
        shares = self._shares(parent, paths, room.guarantee)
        made = [
            self._queue(path, share, room, most_running) for path, share in zip(paths, shares, strict=True)
        ]
        return [draft for draft in made if draft is not None]

    def _shares(self, parent: str, paths: Sequence[str], room: Amount) -> list[_Share]:
        """Of siblings. Raises UsageError: none, another way than a sibling's, a sum that is not 100."""
        capacities: list[Value] = []
        for path in paths:
            value = self._own(path, "capacity")
            if value is None:
                raise UsageError(
                    f"{path.rpartition('.')[2]} is listed in {PREFIX}{parent}.queues, but has no capacity",
                    file=self._source,
                    field=f"{PREFIX}{path}.capacity",
                    expected="a percentage, a weight such as 2w, or [memory=…,vcores=…]",
                )
            if _mode(value) != _mode((*capacities, value)[0]):
                raise value.refused("not given as its siblings' are", f"a {_mode(capacities[0])}")
            capacities.append(value)
        if not capacities:
            return []
        if is_absolute(capacities[0]):
            return self._absolute_shares(parent, capacities, room)
        numbers = [_number(value) for value in capacities]
        total = sum(numbers)
        is_zero = total == 0 and (not room or self._is_on(parent, "allow-zero-capacity-sum"))
        if _mode(capacities[0]) == "percentage" and abs(total / 100.0 - 1.0) > ROUNDING and not is_zero:
            named = " + ".join(f"{number:g}" for number in numbers)
            problem = f"with its siblings below {parent}: {named} = {total:g}"
            raise capacities[-1].refused(problem, "capacities that add up to 100")
        parts = [number / total if total else 0.0 for number in numbers]
        return [
            _Share(max(number, LEAST_WEIGHT), part if room else 0.0, _times(room, part))
            for number, part in zip(numbers, parts, strict=True)
        ]

    def _absolute_shares(self, parent: str, capacities: Sequence[Value], room: Amount) -> list[_Share]:
        amounts = [self._amounts(value) for value in capacities]
        resources = dict.fromkeys(name for each in amounts for name in each)
        sums = {name: sum(each.get(name, 0.0) for each in amounts) for name in resources}
        for name, has in (room if isinstance(room, Mapping) else self._total or {}).items():
            if sums.get(name, 0.0) > has * (1.0 + ROUNDING):
                problem = f"with its siblings below {parent}: {sums[name]:g} {name}"
                raise capacities[-1].refused(problem, f"at most {has:g} {name}, what {parent} has")
        shares = []
        for each in amounts:
            weight = max(self._weight(each, sums), LEAST_WEIGHT)
            own = self._of_cluster(each)
            shares.append(_Share(weight, within(own, room), own))
        return shares

    def _weight(self, amounts: Amounts, sums: Amounts) -> float:
        """Of what siblings have together: the part of memory, or the largest."""
        counts = [name for name in sums if sums[name] and (self._is_dominant or name == MEMORY)]
        return max((amounts.get(name, 0.0) / sums[name] for name in counts), default=0.0)

    def _amounts(self, value: Value) -> dict[str, float]:
        named = absolute(value)
        for name in named.unknown:
            self._lack(value, f"{name} is no resource of trimtab's")
        return named.amounts

    def _of_cluster(self, amounts: Amounts) -> Amount:
        """As a part of the cluster, where memory alone counts and its total is known."""
        return amounts if self._total is None or self._is_dominant else memory_part(amounts, self._total)

    def _queue(self, path: str, share: _Share, above: _Room, most_running: int | None) -> Draft | None:
        """One queue with those below it; None = no new work may enter it."""
        state = self._own(path, "state")
        is_stopped = state is not None and state.text.upper() == "STOPPED"
        if state is not None and state.text.upper() not in ("RUNNING", "STOPPED"):
            raise state.refused("no such state", "RUNNING or STOPPED")
        limit, most = self._limit(path, share, above)
        running = self._own(path, "max-parallel-apps", inherits=True)
        own_running = None if running is None else running.whole(0, "a whole number")
        if own_running is not None and own_running >= _UNLIMITED:
            own_running = None
        draft = Draft(
            path.removeprefix("root."),
            weight=share.weight,
            guarantee=share.guarantee,
            limit=limit,
            notice_s=self._notice_s,
            max_running=own_running,
        )
        draft.children = self._children(path, _Room(share.room, most), own_running)
        has_queues = self._own(path, "queues") is not None
        self._is_preemptible(path)  # it is read, for the queues below
        if is_stopped or own_running == 0 or (has_queues and not draft.children):
            self._stopped.append(path)
            why = state if is_stopped else running if own_running == 0 else None
            if why is not None:
                self._lack(why, "no work enters it: left out with the queues below it")
            return None
        if not has_queues:
            self._fill_leaf(path, draft, share.room, most)
        return draft

    def _limit(self, path: str, share: _Share, above: _Room) -> tuple[Amount, Amount]:
        """The limit as the section has it, and of the cluster. Raises UsageError below the capacity."""
        value = self._own(path, "maximum-capacity")
        capacity = self._own(path, "capacity")
        if value is None or capacity is None or value.text in ("-1", "-1.0"):
            return 1.0, above.limit
        if is_absolute(value) != is_absolute(capacity):
            expected = "[…] as its capacity" if is_absolute(capacity) else "a percentage"
            raise value.refused("not given as the capacity is", expected)
        if is_absolute(value):
            amounts = {name: amount for name, amount in self._amounts(value).items() if amount}
            if not amounts:  # YARN takes 0 as no limit
                return 1.0, above.limit
            own = self._of_cluster(amounts)
            limit: Amount = within(own, above.limit)
        else:
            limit = value.number(0, 100, "a percentage from 0 to 100") / 100.0
            own = _times(above.limit, limit)
        if exceeds(share.room, own):
            problem = f"below the capacity of {path}, {shown(share.room)}"
            raise value.refused(
                f"{problem} of the cluster", f"a maximum that holds its capacity; it is {shown(own)}"
            )
        return limit, own

    def _fill_leaf(self, path: str, draft: Draft, guarantee: Amount, limit: Amount) -> None:
        """Order and user limits of a leaf."""
        made_later = [
            key
            for key in ("auto-create-child-queue.enabled", "auto-queue-creation-v2.enabled")
            if self._is_on(path, key)
        ]
        for key in made_later:
            self._lacking.append(NotCarried(f"{PREFIX}{path}.{key}", "true", _NO_USERS))
        draft.order = self._order(path, is_shared=bool(made_later))
        draft.preemptible = self._is_preemptible(path)
        factor = self._own(path, "user-limit-factor", inherits=True)
        times = 1.0 if factor is None else factor.number(-1, 1e12, "a number of 0 or more, or -1")
        if factor is not None and times == 0:
            raise factor.refused("leaves nothing to a user", "more than 0, or -1 for no limit")
        part = self._ratio(guarantee, limit)
        if times > 0 and part is None:
            name, why = f"{PREFIX}{path}.user-limit-factor", "give --total, what the cluster has"
            self._lacking.append(NotCarried(name, f"{times:g}", why))
        elif times > 0 and part and not made_later:
            draft.user_limit = min(1.0, part * times) if part * times < 1.0 else None

    def _ratio(self, guarantee: Amount, limit: Amount) -> float | None:
        """The guarantee as a part of the limit; of amounts the largest part. None = it is not known."""
        if not isinstance(guarantee, Mapping) and not isinstance(limit, Mapping):
            return guarantee / limit if limit else 0.0
        own = guarantee if isinstance(guarantee, Mapping) else _scaled(self._total, guarantee)
        most = dict(self._total or {})
        most.update(limit if isinstance(limit, Mapping) else _scaled(self._total, limit))
        parts = [amount / most[name] for name, amount in own.items() if most.get(name)]
        return max(parts) if parts else None

    def _order(self, path: str, *, is_shared: bool) -> Literal["fair", "priority"]:
        policy = self._own(path, "ordering-policy")
        if policy is not None and policy.text not in ("fifo", "fair"):
            self._lack(policy, "applications go by priority, then in the order of their submission")
        least = self._own(path, "minimum-user-limit-percent", inherits=True)
        percent = 100 if least is None else least.whole(0, "a whole number from 0 to 100")
        if least is not None and percent > 100:
            raise least.refused("cannot be used", "a whole number from 0 to 100")
        if least is not None and 0 < percent < 100:
            users = 100 // percent
            self._lack(
                least,
                f"users share alike (order: fair), above {users} of them too, where YARN serves {users}",
            )
        if policy is not None and policy.text == "fair":
            self._lack(policy, "alike are users, not applications (order: fair)")
        is_fair = is_shared or percent < 100 or (policy is not None and policy.text == "fair")
        return "fair" if is_fair else "priority"

    def _is_preemptible(self, path: str) -> bool:
        """Whether others may take back what a queue borrows: as it says, else the queue above it."""
        value = self._own(path, "disable_preemption")
        if value is None:
            return path == "root" or self._is_preemptible(path.rpartition(".")[0])
        return not value.is_true()

    def _name_unused(self) -> None:
        """Name every property of schedulers that nothing was made of, and queues that no list names."""
        paths = {
            name.removeprefix(PREFIX).removesuffix(".queues")
            for name in self._used
            if name.endswith(".queues")
        }
        for name, value in self._properties.items():
            if name in self._used or not name.startswith(OF_SCHEDULERS):
                continue
            own = name.removeprefix(PREFIX)
            path, _, key = own.rpartition(".")
            is_unlisted = path not in paths and path.rpartition(".")[0] in paths and key in _KEYS
            self._lack(value, "its queue is in no list of queues" if is_unlisted else "has no counterpart")
        if MONITOR not in self._properties:
            why = "queues do not preempt; where they do, yarn-site.xml tells"
            self._lacking.append(NotCarried(MONITOR, "not given", why))


def _mode(value: Value) -> str:
    if is_absolute(value):
        return "list of absolute resources"
    return "weight" if value.text.endswith("w") else "percentage"


def _number(value: Value) -> float:
    """Of a percentage or a weight. Raises UsageError."""
    if value.text.endswith("w"):
        plain = Value(value.text[:-1], value.file, value.name, value.line)
        return plain.number(0, 1e12, "a weight of 0 or more, such as 2w")
    return value.number(0, 100, "a percentage from 0 to 100, a weight such as 2w, or [memory=…,vcores=…]")


def _times(amount: Amount, part: float) -> Amount:
    return _scaled(amount, part) if isinstance(amount, Mapping) else amount * part


def _scaled(amounts: Amounts | None, part: float) -> dict[str, float]:
    return {name: part * amount for name, amount in (amounts or {}).items()}
