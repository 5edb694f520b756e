"""Rules that place users in queues: users become tenants of leaves.

Both formats of the Capacity Scheduler: `u:USER:QUEUE,g:GROUP:QUEUE` and rules in JSON. What depends on
groups, application names or on what a submission says is not carried: a section of queues knows tenants only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from trimtab.clusters.yarn.hadoop_xml import Element, Value
from trimtab.clusters.yarn.imported_queues import Draft, NotCarried


class Mappings(NamedTuple):
    """The properties."""

    legacy: Value | None
    format: Value | None
    rules: Value | None


class _Rule(NamedTuple):
    user: str  # %user = each
    queue: str  # %user in it = the user's name
    text: str  # for messages


def map_users(tops: Sequence[Draft], mappings: Mappings, stopped: Sequence[str]) -> list[NotCarried]:
    """Give leaves their users; what is not carried. Raises UsageError: no rule, or no such leaf."""
    lacking: list[NotCarried] = []
    leaves = [leaf for top in tops for leaf in top.leaves()]
    is_json = mappings.format is not None and mappings.format.text == "json"
    source = mappings.rules if is_json else mappings.legacy
    unread = mappings.legacy if is_json else mappings.rules
    if unread is not None:
        lacking.append(
            NotCarried(unread.name, _short(unread.text), "the other format of mappings is in force")
        )
    if source is None:
        return lacking
    taken: set[str] = set()
    for rule in _json_rules(source, lacking) if is_json else _legacy_rules(source, lacking):
        if rule.user == "%user":
            _map_each(leaves, rule, taken, source, lacking)
            continue
        leaf = _leaf_of(leaves, rule.queue, source, stopped)
        if leaf is None or rule.user in taken:
            why = "its queue is stopped" if leaf is None else "an earlier rule places this user"
            lacking.append(NotCarried(source.name, rule.text, why))
            continue
        taken.add(rule.user)
        leaf.tenants.append(rule.user)
    return lacking


def _short(text: str) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= 60 else f"{plain[:57]}…"


def _map_each(
    leaves: Sequence[Draft], rule: _Rule, taken: set[str], source: Value, lacking: list[NotCarried]
) -> None:
    """Each user to the queue of the same name, of the leaves there are."""
    parent = rule.queue.removesuffix("%user").removesuffix(".").removeprefix("root").removeprefix(".")
    own = [
        leaf
        for leaf in leaves
        if not parent or leaf.path.rpartition(".")[0] in (parent, *_ends(leaf, parent))
    ]
    found = False
    for leaf in own:
        if leaf.name not in taken and sum(other.name == leaf.name for other in own) == 1:
            taken.add(leaf.name)
            leaf.tenants.append(leaf.name)
            found = True
    if not found:
        lacking.append(NotCarried(source.name, rule.text, "no queue of the file is named after a user there"))


def _ends(leaf: Draft, parent: str) -> tuple[str, ...]:
    """The path of the leaf's parent where its last name is `parent`."""
    above = leaf.path.rpartition(".")[0]
    return (above,) if above.rpartition(".")[2] == parent else ()


def _leaf_of(leaves: Sequence[Draft], queue: str, source: Value, stopped: Sequence[str]) -> Draft | None:
    """The leaf of a name or path; None = it is stopped. Raises UsageError."""
    path = queue.removeprefix("root.")
    found = [leaf for leaf in leaves if leaf.path == path] or [leaf for leaf in leaves if leaf.name == path]
    if len(found) == 1:
        return found[0]
    if not found and any(f"root.{path}".startswith(each) or each.endswith(f".{path}") for each in stopped):
        return None
    names = ", ".join(leaf.path for leaf in found or leaves)
    problem = f"several leaves are called {queue!r}" if found else f"no leaf queue {queue!r}"
    raise source.refused(problem, f"one of {names}")


def _legacy_rules(source: Value, lacking: list[NotCarried]) -> Iterator[_Rule]:
    for text in filter(None, (part.strip() for part in source.text.split(","))):
        parts = [part.strip() for part in text.split(":")]
        if len(parts) != 3 or parts[0] not in ("u", "g") or not all(parts):
            raise source.refused(f"no mapping: {text!r}", "u:USER:QUEUE or g:GROUP:QUEUE")
        kind, name, queue = parts
        yield from _rule("user" if kind == "u" else "group", name, queue, text, source, lacking)


def _json_rules(source: Value, lacking: list[NotCarried]) -> Iterator[_Rule]:
    try:
        rules = json.loads(source.text)["rules"]
        found = [_json_parts(rule) for rule in rules]
    except (ValueError, KeyError, TypeError) as error:
        raise source.refused(
            f"no rules: {error!r}", '{"rules": [{"type": …, "matches": …, "policy": …}]}'
        ) from error
    for kind, name, queue, text in found:
        yield from _rule(kind, name, queue, text, source, lacking)


def _json_parts(rule: dict[str, Any]) -> tuple[str, str, str, str]:
    """Kind, name and queue of a rule, as of the other format; the queue is empty where it has none there."""
    kind, name, policy = str(rule["type"]), str(rule["matches"]), str(rule["policy"])
    parent = str(rule.get("parentQueue", ""))
    queue = {
        "custom": str(rule.get("customPlacement", "")),
        "user": f"{parent}.%user".removeprefix("."),
        "defaultQueue": "default",
    }.get(policy, "")
    return kind, "%user" if name == "*" else name, queue, f"{kind} {name}: {policy} {queue}".strip()


def _rule(
    kind: str, name: str, queue: str, text: str, source: Value, lacking: list[NotCarried]
) -> Iterator[_Rule]:
    """The rule, if it is one of users alone."""
    variables = queue.count("%")
    is_each = name == "%user" and (queue == "%user" or queue.endswith(".%user")) and variables == 1
    if kind == "user" and ((name != "%user" and queue and not variables) or is_each):
        yield _Rule(name, queue, text)
    elif not (
        kind == "user" and name == "%user" and queue in ("default", "root.default")
    ):  # as without a rule
        why = "groups are not in the file" if kind == "group" else "depends on more than the user"
        lacking.append(NotCarried(source.name, text, why))


def placement_rules(policy: Element, leaves: Sequence[str]) -> Iterator[NotCarried]:
    """Rules of a `<queuePlacementPolicy>` that tenants of leaves cannot say."""
    for rule in policy.named("rule"):
        name, queue = (
            rule.attributes.get("name", ""),
            rule.attributes.get("queue", "default").removeprefix("root."),
        )
        if name == "user" or (name == "default" and queue == "default"):
            continue
        why = "depends on more than the user"
        if name == "default":
            why = "only the top queue `default` takes tenants that none names: name them in this one"
            why = why if queue in leaves else "no such leaf"
        yield NotCarried(f'<rule name="{name}">', queue if name == "default" else "", why)
