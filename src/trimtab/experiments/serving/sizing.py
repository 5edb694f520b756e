"""The cheapest fleet for a recorded or drawn workload: mixes of node types, simulated on the same requests.

Every mix serves the same requests with the same random numbers, so that mixes differ by their nodes alone. A
margin for failures takes the N nodes of most capacity away for the whole run, and pays for them all the same,
unless their type is not paid while it is down.
A mix whose offered work exceeds its capacity so far that the last requests could not be in time is not
simulated.
"""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import ScenarioError, UsageError
from trimtab.experiments.scenario import Scenario
from trimtab.experiments.scenario.build import RunInputs, build
from trimtab.experiments.scenario.build.disaggregation import ROLES
from trimtab.experiments.scenario.loader import part_of
from trimtab.experiments.scenario.spec.node_services import ModelService
from trimtab.experiments.scenario.spec.scenario import ClusterPart
from trimtab.experiments.serving.fleet_search import SAME_USD, IntArray, Mix, cheapest_mix, weighted
from trimtab.experiments.serving.objectives import Objective, refuse_tokens_of_slots
from trimtab.experiments.serving.run import prepared_mode, simulate_inputs
from trimtab.policies import canonical
from trimtab.validation.yaml_text import parsed_yaml, read_yaml

if TYPE_CHECKING:
    import polars as pl

AUTO: Final = "auto"
AUTO_POLICIES: Final = ("late-binding", "least-expected-completion", "power-of-d")
NODES_MAX: Final = 64
SECONDS_MAX: Final = 100.0
_HOURS: Final = 3600.0
_SLACK: Final = 2.0  # times the largest objective in seconds that work may be behind at the end

Told = Callable[[int, int], None]
"""Called with the mixes that were simulated and those that are left to be."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """One mix that was simulated, with the policy that served it best.

    `metrics` are those of the objectives, with the margin for failures; `overshoot` is by how much the worst
    objective is missed, relative to its value; at most 0 where all are met.
    """

    nodes: Mapping[str, int]
    policy: str
    usd_per_hour: float
    usd: float  # of the whole run
    offered_load: float
    metrics: Mapping[str, float]
    overshoot: float

    @property
    def is_met(self) -> bool:
        """Whether all objectives are met."""
        return self.overshoot <= 0.0

    def in_words(self) -> str:
        """The nodes, as `2 a100 + 3 l40s`."""
        return " + ".join(f"{count} {name}" for name, count in self.nodes.items() if count)


@dataclass(frozen=True, slots=True)
class FleetSizing:
    """The cheapest fleet that meets the objectives, and all that were simulated.

    `best` is None where none does; then `nearest` misses least. `is_proven`: no cheaper mix of at most
    `nodes_max` nodes can meet them, if one more node never harms. `untested` mixes were left when the time
    was over.
    """

    objectives: tuple[Objective, ...]
    best: Fleet | None
    nearest: Fleet
    fleets: tuple[Fleet, ...]
    is_proven: bool
    untested: int
    nodes_max: int
    fail: int
    growth: float
    requests: int
    span_s: float
    part: ClusterPart = field(repr=False)

    @property
    def pays_all(self) -> bool:
        """Whether nodes that are down are paid all the same."""
        return all(kind.paid_while_down for kind in self.part.cluster.types.values())

    def __repr__(self) -> str:
        """The fleet that was found, and the objectives."""
        found = self.best or self.nearest
        of = f"for {', '.join(map(str, self.objectives))}, {found.usd_per_hour:.4g} USD/h"
        return f"<FleetSizing: {'' if self.best else 'none; nearest: '}{found.in_words()} {of}>"

    def table(self) -> pl.DataFrame:
        """One row for each fleet of the frontier: nodes, usd_per_hour, usd, policy, is_met and metrics."""
        import polars as pl

        rows = [
            {
                "fleet": fleet.in_words(),
                **{name: getattr(fleet, name) for name in ("usd_per_hour", "usd", "policy", "is_met")},
                **fleet.metrics,
            }
            for fleet in self.frontier()
        ]
        return pl.DataFrame(rows)

    def frontier(self) -> list[Fleet]:
        """Fleets that no other beats in both price and first objective, cheapest first."""
        metric = self.objectives[0].metric
        sign = -1.0 if self.objectives[0].is_least else 1.0
        front: list[Fleet] = []
        for fleet in sorted(self.fleets, key=lambda f: (f.usd_per_hour, sign * f.metrics[metric])):
            found = sign * fleet.metrics[metric]
            if found == found and (not front or found < sign * front[-1].metrics[metric]):
                front.append(fleet)
        return front

    def content(self) -> dict[str, Any]:
        """The values of a cluster file of the best fleet, or of the nearest."""
        return with_counts(self.part, (self.best or self.nearest).nodes).cluster_content()


def load_node_types(path: Path) -> ClusterPart:
    """Node types and classes of a file: a cluster file, whose nodes may be left out. Raises ScenarioError."""
    return parse_node_types(read_yaml(path, ScenarioError), str(path))


def parse_node_types(given: str | Mapping[Any, Any], path: str = "node types") -> ClusterPart:
    """Node types and classes of a text, or of values, as `load_node_types` has them from a file."""
    data = (
        parsed_yaml(given, path, ScenarioError, "no node types", "a key types")
        if isinstance(given, str)
        else copy.deepcopy(dict(given))
    )
    inner = data["cluster"] if isinstance(data.get("cluster"), dict) else data
    if isinstance(inner.get("types"), dict):
        inner.setdefault("nodes", [{"type": name} for name in inner["types"]])
    return part_of(data, path)


def with_counts(part: ClusterPart, nodes: Mapping[str, int]) -> ClusterPart:
    """The part with these nodes; groups of a type keep its first group's other settings."""
    groups = {group.type: group for group in reversed(part.cluster.nodes)}
    chosen = [
        {**(groups[name].model_dump() if name in groups else {"type": name}), "count": count}
        for name, count in nodes.items()
        if count
    ]
    return part.cluster_part(cluster={**part.cluster.model_dump(), "nodes": chosen})


def size_fleet(
    scenario: Scenario,
    objectives: Sequence[Objective],
    policies: Sequence[str] = ("late-binding",),
    *,
    usd_per_hour_max: float = np.inf,
    nodes_max: int = NODES_MAX,
    fail: int = 0,
    growth: float = 1.0,
    seed: int = 0,
    seconds_max: float = SECONDS_MAX,
    told: Told | None = None,
) -> FleetSizing:
    """Search the cheapest mix of the scenario's node types that meets the objectives.

    Args:
        scenario: its nodes are not looked at; its load must not be set, as it would follow the nodes.
        objectives: what must hold.
        policies: the mix meets the objectives if one of these does; `auto` stands for `AUTO_POLICIES`.
        usd_per_hour_max: most that the nodes may cost.
        nodes_max: most nodes.
        fail: nodes of most capacity that are down for the whole run; paid as `paid_while_down` says.
        growth: factor on the arrival rate.
        seed: of the random numbers.
        seconds_max: time for the search, once kernels are compiled; what is left then is not proven.
        told: progress.

    Raises UsageError for types without a price, and what `simulate` raises.
    """
    return _Search(scenario, tuple(objectives), policies, fail, growth, seed).run(
        usd_per_hour_max, nodes_max, seconds_max, told
    )


class _Search:
    def __init__(
        self,
        scenario: Scenario,
        objectives: tuple[Objective, ...],
        policies: Sequence[str],
        fail: int,
        growth: float,
        seed: int,
    ) -> None:
        self.objectives, self.fail, self.growth, self.seed = objectives, fail, growth, seed
        named = [name for policy in policies for name in (AUTO_POLICIES if policy == AUTO else (policy,))]
        self.policies = tuple(dict.fromkeys(map(canonical, named)))
        self.scenario = _ready(scenario, growth)
        self.part = self.scenario.cluster_part()
        refuse_tokens_of_slots(objectives, self.part.cluster)
        self.types = tuple(self.part.cluster.types)
        self.prices = [self.part.cluster.types[name].usd_per_hour for name in self.types]
        # Prices that end when a node is down.
        self.prices_down = [
            0.0 if self.part.cluster.types[name].paid_while_down else price
            for name, price in zip(self.types, self.prices, strict=True)
        ]
        free = [name for name, price in zip(self.types, self.prices, strict=True) if price <= 0]
        if free:
            expected = "a price above 0 for each node type: the search is for the cheapest"
            raise UsageError("costs nothing", field="usd_per_hour", value=free, expected=expected)
        self.pools = _pools(self.part)
        self.directions = _directions(len(self.types), self.pools)
        if not self.directions:
            build(self.scenario, seed)  # refuses a pool without nodes
        self.alone = [build(self._with(self._beside(t)), seed) for t in range(len(self.types))]
        self.rate_per_s = self._rate_per_s()
        self.per_node = np.array([_finite(inputs.capacity_per_s) for inputs in self.alone])
        self.fleets: dict[Mix, Fleet] = {}

    def run(self, usd_max: float, nodes_max: int, seconds_max: float, told: Told | None) -> FleetSizing:
        """Search, and tell what was found."""
        prepared_mode(self.policies, "auto", len(self.alone[0].requests), 1, None)  # compiles off the clock
        end_s = time.monotonic() + seconds_max
        found = cheapest_mix(
            self.prices,
            lambda mix: self._fleet(mix).is_met,
            self._could_meet,
            self._capacity,
            self.rate_per_s,
            unpaid=self._unpaid_usd,
            unpaid_max=self.fail * max(self.prices_down),
            nodes_max=nodes_max,
            usd_max=usd_max,
            is_over=lambda: time.monotonic() > end_s,
            left=None if told is None else lambda left: told(len(self.fleets), left),
            directions=self.directions,
            pools=self.pools if len(self.pools) > 1 else (),
        )
        if not self.fleets:
            raise UsageError(
                "no mix can serve this",
                field="--max-usd-per-hour",
                value=usd_max if usd_max < np.inf else None,
                expected=f"more USD per hour ({self._least_usd():.3g} pay for the work alone), or more nodes",
            )
        within = [  # a pool beside plenty of other nodes may have more
            fleet
            for mix, fleet in self.fleets.items()
            if sum(mix) <= nodes_max and fleet.usd_per_hour <= usd_max + SAME_USD
        ]
        fleets = tuple(within or self.fleets.values())
        return FleetSizing(
            objectives=self.objectives,
            best=None if found.best is None else self.fleets[found.best],
            nearest=min(fleets, key=lambda f: (max(f.overshoot, 0.0), f.usd_per_hour)),
            fleets=fleets,
            is_proven=found.is_proven,
            untested=found.untested,
            nodes_max=nodes_max,
            fail=self.fail,
            growth=self.growth,
            requests=len(self.alone[0].requests),
            span_s=self.span_s,
            part=self.part,
        )

    def _beside(self, t: int) -> dict[str, int]:
        """A node of a type, with more of the other pool than it can use where it cannot serve alone."""
        direction = next(each for each in self.directions if each[t])
        return {
            name: 1 if name == self.types[t] else NODES_MAX
            for name, n in zip(self.types, direction, strict=True)
            if n
        }

    def _with(self, nodes: Mapping[str, int]) -> Scenario:
        return self.scenario.with_overrides(cluster=with_counts(self.part, nodes))

    def _rate_per_s(self) -> float:
        arrival_s = self.alone[0].requests.work["arrival_s"]
        self.span_s = float(arrival_s[-1] - arrival_s[0])
        return (len(arrival_s) - 1) / self.span_s if self.span_s > 0 else 0.0

    def _capacity(self, mixes: IntArray) -> NDArray[np.float64]:
        """About how many requests a second mixes serve without nodes that fail: the least of their pools."""
        served = self._served(mixes)
        of_pools = [weighted(served[:, pool], self.per_node[pool]) for pool in self.pools]
        capacity: NDArray[np.float64] = np.min(of_pools, axis=0)
        return capacity

    def _served(self, mixes: IntArray) -> IntArray:
        """The mixes without the nodes of most capacity that fail."""
        left = mixes.copy()
        down = np.full(len(mixes), self.fail)
        for t in np.argsort(-self.per_node):
            taken = np.minimum(left[:, t], down)
            left[:, t] -= taken
            down -= taken
        return left

    def _unpaid_usd(self, mixes: IntArray) -> NDArray[np.float64]:
        """The price of the nodes that are down, of types whose price ends then, [mixes]."""
        return weighted(mixes - self._served(mixes), np.array(self.prices_down))

    def _could_meet(self, mixes: IntArray) -> NDArray[np.bool_]:
        """Whether a fluid of the requests would be served soon enough after the last arrival.

        The capacity of a mix is at most the sum of its types' alone: each at its best share of classes.
        """
        served = self._served(mixes)
        seconds = [o.value for o in self.objectives if o.metric.endswith("_s") and not o.is_least]
        behind_s = _SLACK * max(seconds, default=self.span_s)
        capacity = weighted(served, self.per_node)
        is_alike = len(self.alone[0].cluster.class_names) == 1
        fits = self.rate_per_s * self.span_s <= capacity * (self.span_s + behind_s) if is_alike else True
        has_pools = np.all([served[:, pool].sum(axis=1) > 0 for pool in self.pools], axis=0)
        return np.asarray(has_pools & fits, dtype=bool)

    def _fleet(self, mix: Mix) -> Fleet:
        if mix not in self.fleets:
            self.fleets[mix] = self._simulated(mix)
        return self.fleets[mix]

    def _simulated(self, mix: Mix) -> Fleet:
        served = tuple(int(n) for n in self._served(np.array([mix]))[0])
        scenario = self._with({name: n for name, n in zip(self.types, served, strict=True) if n})
        inputs = build(scenario, self.seed)
        runs = [(self._metrics(scenario, inputs, policy), policy) for policy in self.policies]
        metrics, policy = min(runs, key=lambda run: self._overshoot(run[0]))
        usd_per_hour = sum(price * count for price, count in zip(self.prices, mix, strict=True))
        usd_per_hour -= float(self._unpaid_usd(np.array([mix]))[0])
        return Fleet(
            nodes=dict(zip(self.types, mix, strict=True)),
            policy=policy,
            usd_per_hour=usd_per_hour,
            usd=usd_per_hour * metrics["makespan_s"] / _HOURS,
            offered_load=inputs.offered_load,
            metrics=metrics,
            overshoot=self._overshoot(metrics),
        )

    def _metrics(self, scenario: Scenario, inputs: RunInputs, policy: str) -> Mapping[str, float]:
        run = simulate_inputs(scenario, inputs, policy, self.seed)
        names = dict.fromkeys([*(o.metric for o in self.objectives), *_ALWAYS])
        return {name: float(run.metrics[name]) for name in names} | {"served_frac": run.served_frac}

    def _overshoot(self, metrics: Mapping[str, float]) -> float:
        """Of the worst objective; requests that were not served count as one that is missed."""
        lost = 1.0 if metrics["served_frac"] < 0.999 else -1.0
        return max(lost, *(objective.overshoot(metrics) for objective in self.objectives))

    def _least_usd(self) -> float:
        """The price of nodes that are busy all the time, of the type of most capacity for its price."""
        return float(self.rate_per_s / max(self.per_node / np.array(self.prices)))


_ALWAYS: Final = ("completion_mean_s", "completion_p99_s", "slo_attained_frac", "makespan_s")


def _pools(part: ClusterPart) -> tuple[list[int], ...]:
    """Positions of the types of which a mix needs a node: any, or one for each stage of served in two."""
    kinds = [kind.service for kind in part.cluster.types.values()]
    if not any(service.disaggregated for service in part.classes.values()):
        return (list(range(len(kinds))),)
    return tuple(
        [t for t, kind in enumerate(kinds) if isinstance(kind, ModelService) and kind.role in (role, "both")]
        for role in ROLES
    )


def _directions(types: int, pools: Sequence[Sequence[int]]) -> list[Mix]:
    """Mixes of a node from each pool."""
    chosen = {frozenset(nodes): None for nodes in itertools.product(*pools)}
    return [tuple(int(t in nodes) for t in range(types)) for nodes in chosen]


def _finite(capacity_per_s: float) -> float:
    """A type that serves no class adds nothing."""
    return capacity_per_s if capacity_per_s == capacity_per_s else 0.0


def _ready(scenario: Scenario, growth: float) -> Scenario:
    """The scenario with its own arrivals, faster by the growth."""
    if scenario.workload.load is not None:
        expected = "null: a load follows the nodes, so that every fleet would be as busy as any other"
        raise ScenarioError(
            "cannot be set", field="workload.load", value=scenario.workload.load, expected=expected
        )
    trace = scenario.workload.trace
    if growth == 1.0:
        return scenario
    if trace is None:
        raise ScenarioError("needs a trace", field="--growth", value=growth, expected="--trace, or 1")
    options = trace.options.model_copy(update={"rate_scale": trace.options.rate_scale * growth})
    workload = scenario.workload.model_copy(update={"trace": trace.model_copy(update={"options": options})})
    return scenario.model_copy(update={"workload": workload})
