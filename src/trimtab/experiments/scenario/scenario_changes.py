"""Changes of a scenario as short texts: failures, slow nodes, a burst, other numbers of nodes.

WHO@START+DURATION          node[3]@600+300, a100-2@600+300, a100@600+300 (all of the type), group, zone, all
WHO@START+DURATIONxFACTOR   speed during it: node[3]@600+300x0.5
FACTORx@START+DURATION      arrivals come that many times as fast: 3x@1200+120
TYPE=COUNT, =+N or =-N      nodes of a type or group: a100=+2
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from trimtab.errors import ScenarioError
from trimtab.experiments.scenario.build import build
from trimtab.experiments.scenario.spec.cluster_section import MOST_NODES, ClusterSpec, NodeGroup
from trimtab.experiments.scenario.spec.scenario import Scenario
from trimtab.validation.names import nearest

_NUMBER: Final = r"\d+(?:\.\d*)?(?:e[+-]?\d+)?"
_WHEN: Final = rf"@(?P<at_s>{_NUMBER})\+(?P<duration_s>{_NUMBER})"
_FAIL: Final = re.compile(rf"(?P<who>.+){_WHEN}")
_SLOW: Final = re.compile(rf"(?P<who>.+){_WHEN}x(?P<factor>{_NUMBER})")
_BURST: Final = re.compile(rf"(?P<factor>{_NUMBER})x{_WHEN}")
_NODES: Final = re.compile(r"(?P<type>.+)=(?P<sign>[+-]?)(?P<count>\d+)")
_INDEX: Final = re.compile(r"node\[(\d+)\]")
_ALL: Final = "all"


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Changes of a scenario, as texts; see the module."""

    fail: Sequence[str] = ()
    slow: Sequence[str] = ()
    burst: Sequence[str] = ()
    nodes: Sequence[str] = ()

    def first(self) -> str | None:
        """The option of the first change that is given; None if there is none."""
        return next((f"--{field.name}" for field in fields(self) if getattr(self, field.name)), None)


def with_what_if(scenario: Scenario, what_if: WhatIf) -> Scenario:
    """The scenario with these changes. Nodes come first, so that failures may strike added ones.

    Arrivals stay those of the nodes before: a load of the scenario becomes what these are on the new nodes.

    Raises:
        ScenarioError: a text that cannot be read, a node that is not there, or no node left.
    """
    if what_if.first() is None:
        return scenario
    cluster = _with_nodes(scenario.cluster, what_if.nodes)
    faults = [
        *_faults("--fail", _FAIL, what_if.fail, cluster),
        *_faults("--slow", _SLOW, what_if.slow, cluster),
    ]
    bursts = [_matched("--burst", _BURST, text, "3x@1200+120") for text in what_if.burst]
    workload = dict(scenario.workload) | {"bursts": (*scenario.workload.bursts, *map(_burst, bursts))}
    made = scenario.replaced(cluster=cluster, faults=(*scenario.faults, *faults), workload=workload)
    load = scenario.workload.load
    if not what_if.nodes or load is None:
        return made
    seed = scenario.seed_list()[0]
    before_per_s, after_per_s = (build(each, seed).capacity_per_s for each in (scenario, made))
    return made.with_overrides(load=load * before_per_s / after_per_s)


def _burst(match: re.Match[str]) -> dict[str, float]:
    return {name: float(match[name]) for name in ("factor", "at_s", "duration_s")}


def _matched(option: str, pattern: re.Pattern[str], text: str, example: str) -> re.Match[str]:
    match = pattern.fullmatch(text.strip())
    if match is None:
        raise ScenarioError("cannot be read", field=option, value=text, expected=f"a text such as {example}")
    return match


def _faults(
    option: str, pattern: re.Pattern[str], texts: Sequence[str], cluster: ClusterSpec
) -> Iterator[dict[str, Any]]:
    rest = "@600+300" if pattern is _FAIL else "@600+300x0.5"
    for text in texts:
        match = _matched(option, pattern, text, ("node[3]" if "@" in text else text) + rest)
        when = {name: float(match[name]) for name in ("at_s", "duration_s")}
        factor = float(match["factor"]) if pattern is _SLOW else 0.0
        if pattern is _SLOW and not 0 < factor < 1:
            raise ScenarioError("no slow-down", field=option, value=text, expected="a factor between 0 and 1")
        for struck in _struck(option, match["who"], cluster):
            yield {**when, "factor": factor, **struck}


def _struck(option: str, who: str, cluster: ClusterSpec) -> list[dict[str, str]]:
    """The fields of the faults that name these nodes: one, or one for each node of a group."""
    nodes = list(cluster.each_node())
    names = [node.name for node in nodes]
    index = _INDEX.fullmatch(who)
    if index is not None:
        if int(index[1]) >= len(names):
            expected = f"node[0] to node[{len(names) - 1}]"
            raise ScenarioError("no such node", field=option, value=who, expected=expected)
        return [{"node": names[int(index[1])]}]
    for field, known in (("node", names), ("type", cluster.types), ("zone", cluster.zone_names)):
        if who in known:
            return [{field: who}]
    if who == _ALL:
        return [{}]
    of_group = [{"node": node.name} for node in nodes if node.group.name == who]
    if of_group:
        return of_group
    expected = f"a node, node type, group or zone, or all: {nearest(who, [*cluster.types, *names])}"
    raise ScenarioError("no such nodes", field=option, value=who, expected=expected)


def _with_nodes(cluster: ClusterSpec, texts: Sequence[str]) -> ClusterSpec:
    groups = list(cluster.nodes)
    for text in texts:
        match = _matched("--nodes", _NODES, text, "a100=+2, a100=-1 or a100=6")
        groups = _changed(cluster, groups, text, match["type"], match["sign"], int(match["count"]))
    if not groups:
        raise ScenarioError("no node is left", field="--nodes", value=list(texts), expected="at least one")
    return cluster.model_copy(update={"nodes": tuple(groups)})


def _changed(
    cluster: ClusterSpec, groups: list[NodeGroup], text: str, name: str, sign: str, count: int
) -> list[NodeGroup]:
    found = [group for group in groups if name in (group.type, group.name)]
    if not found and name not in cluster.types:
        expected = f"a node type: {nearest(name, cluster.types)}"
        raise ScenarioError("no such nodes", field="--nodes", value=text, expected=expected)
    if not found:
        found = [NodeGroup(type=name, count=1)]
        groups, before = [*groups, found[0]], 0
    elif len(found) > 1 and sign != "+":
        expected = f"the name of one of its groups, or =+{count}: {name} has {len(found)} groups"
        raise ScenarioError("unclear which", field="--nodes", value=text, expected=expected)
    else:
        before = found[0].count
    after = {"+": before + count, "-": before - count, "": count}[sign]
    if after < 0:
        expected = f"at most {before}, the nodes that there are"
        raise ScenarioError("takes too many away", field="--nodes", value=text, expected=expected)
    if after > MOST_NODES:
        expected = f"at most {MOST_NODES:,} nodes of a group"
        raise ScenarioError("too many", field="--nodes", value=text, expected=expected)
    replaced = [group.model_copy(update={"count": after}) if group is found[0] else group for group in groups]
    return [group for group in replaced if group.count > 0]
