"""The runs of the case study: causes of imbalance, strategies, and switches alone and together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

from trimtab.experiments.case.case_workload import CAUSES, LOADS, SWITCHES, Values, with_causes, workload
from trimtab.experiments.compare_policies import compare

METRICS: Final = (
    "completion_mean_s",
    "completion_p99_s",
    "completion_var_s2",
    "queueing_mean_s",
    "utilisation_mean_frac",
    "utilisation_var",
    "idle_frac",
    "rejected_frac",
    "slo_attained_frac",
    "deadline_satisfied_frac",
    "model_loads",
    "moved_gib",
    "usd_per_1k",
)
CACHED: Final = frozenset(
    {"parameter cache"}
)  # of every strategy: what a node loaded stays while there is room
RULE: Final = "least-expected-completion"  # what decides where switches are judged
PLACED: Final = "predictive(admission=False)"  # the same rule, with models placed before they are asked for
ORDER: Final = "+priority-deadline"
CAUSE_POLICIES: Final = ("round-robin", "least-connections", RULE)
FACTORS: Final = (*SWITCHES, "priorities", "preallocation")


class Strategy(NamedTuple):
    """One way to serve: a policy, and what is switched on beside it."""

    name: str
    policy: str
    on: frozenset[str] = CACHED


STRATEGIES: Final = (
    Strategy("round robin", "round-robin"),
    Strategy("random", "random"),
    Strategy("least connections", "least-connections"),
    Strategy("load-aware, reactive", "load-aware"),
    Strategy("load-aware, smoothing", "load-forecast(forecaster=ses)"),
    Strategy("load-aware, ARIMA", "load-forecast(forecaster=arima)"),
    Strategy("resource-aware, most free", "most-free"),
    Strategy("resource-aware, Hungarian", "hungarian"),
    Strategy("estimates of cost", RULE),
    Strategy("estimates, priority queue", RULE + ORDER),
    Strategy("priorities to fast GPUs", "priority-reservation" + ORDER),
    Strategy("predicted, preallocated", PLACED),
    Strategy("routed by congestion", "congestion-aware"),
    Strategy("late binding", "late-binding"),
    Strategy("split", RULE, CACHED | {"split"}),
    Strategy("split, features cached", RULE, CACHED | {"split", "feature cache"}),
    Strategy("compressed", RULE, CACHED | {"compression"}),
    Strategy("parameters not cached", RULE, frozenset()),
    Strategy("all together", "late-binding", frozenset(SWITCHES)),
)


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is run."""

    requests: int = 10_000
    seeds: int = 3
    loads: tuple[float, ...] = LOADS
    switch_seeds: int = 3


QUICK: Final = Scale(requests=1_500, seeds=3, loads=(LOADS[-1],), switch_seeds=2)

Group = dict[str, dict[str, list[float]]]
"""Name → metric → value of each seed."""


@dataclass(frozen=True)
class CaseStudy:
    """All that was measured."""

    scale: Scale
    causes: dict[str, Group]  # cause, or none, or all → policy → …
    strategies: dict[str, Group]  # load → strategy → …
    bound_s: dict[str, list[float]]  # load → lower bound on the mean completion of whole images, of each seed
    switches: dict[str, dict[str, list[float]]]  # settings of FACTORS, such as "0110--" → metric → …
    learned: dict[str, str]  # strategy → policy, of weights that were trained for the study

    def to_dict(self) -> dict[str, Any]:
        """The values, for JSON."""
        return asdict(self)


def strategies(learned: Mapping[str, str]) -> tuple[Strategy, ...]:
    """The strategies of a study, those of its learned policies included."""
    return (*STRATEGIES, *(Strategy(name, policy) for name, policy in learned.items()))


def run_case(
    scale: Scale,
    out: Path,
    learned: Mapping[str, str] | None = None,
    *,
    jobs: int | None = None,
    say: Callable[[int, int, str], None] = lambda done, total, what: None,
) -> CaseStudy:
    """Run the study. Finished runs in `out` are not made again.

    Args:
        scale: how much is run.
        out: folder of the finished runs.
        learned: strategy → policy with weights of a file, beside those of STRATEGIES.
        jobs: runs at a time; default: one per core.
        say: told before each comparison: how many are done, of how many, and what comes.

    Raises UsageError for a policy that cannot be used.
    """
    learned = dict(learned or {})
    plan = [*_strategy_plan(scale, learned), *_cause_plan(scale), *_switch_plan(scale)]  # policies fail first
    found: dict[tuple[str, ...], Group] = {}
    bounds: dict[str, list[float]] = {}
    for done, part in enumerate(plan):
        say(done, len(plan), " ".join(part.key))
        folder = out / "-".join(part.key).replace(" ", "-")
        made = compare(part.values, part.policies, part.seeds, sweep=(), jobs=jobs, out=folder)
        found[part.key] = {
            name: {metric: [float(run.metrics[metric]) for run in result.runs] for metric in METRICS}
            for name, result in zip(part.names, made.results, strict=True)
        }
        if part.key[0] == "strategies" and part.key[2] == _named(CACHED):
            bounds[part.key[1]] = [bound.value for bound in made.bounds]
    say(len(plan), len(plan), "")
    by_load: dict[str, Group] = {}
    for key, group in found.items():
        if key[0] == "strategies":
            by_load.setdefault(key[1], {}).update(group)
    order = [strategy.name for strategy in strategies(learned)]
    return CaseStudy(
        scale,
        {key[1]: group for key, group in found.items() if key[0] == "causes"},
        {load: {name: group[name] for name in order} for load, group in by_load.items()},
        bounds,
        {name: row for key, group in found.items() if key[0] == "switches" for name, row in group.items()},
        learned,
    )


class _Part(NamedTuple):
    """One comparison."""

    key: tuple[str, ...]
    values: Values
    policies: list[str]
    names: list[str]  # of the policies' results
    seeds: int


def _named(on: frozenset[str]) -> str:
    return "+".join(sorted(on)) or "nothing"


def _cause_plan(scale: Scale) -> list[_Part]:
    cases = {"none": (), **{cause: (cause,) for cause in CAUSES}, "all": tuple(CAUSES)}
    policies = list(CAUSE_POLICIES)
    return [
        _Part(("causes", name), with_causes(on, 0.7, scale.requests), policies, policies, scale.seeds)
        for name, on in cases.items()
    ]


def _strategy_plan(scale: Scale, learned: Mapping[str, str]) -> list[_Part]:
    parts = []
    groups: dict[frozenset[str], list[Strategy]] = {}
    for strategy in strategies(learned):
        groups.setdefault(strategy.on, []).append(strategy)
    for load, (on, of) in product(scale.loads, groups.items()):
        values, key = workload(on, load, scale.requests), ("strategies", f"{load:g}", _named(on))
        parts.append(_Part(key, values, [s.policy for s in of], [s.name for s in of], scale.seeds))
    return parts


def _switch_plan(scale: Scale) -> list[_Part]:
    """The full factorial design of FACTORS at the highest load."""
    policies = {"00": RULE, "10": RULE + ORDER, "01": PLACED, "11": PLACED + ORDER}
    parts = []
    for bits in product("01", repeat=len(SWITCHES)):
        on = frozenset(name for name, bit in zip(SWITCHES, bits, strict=True) if bit == "1")
        values, setting = workload(on, scale.loads[-1], scale.requests), "".join(bits)
        names = [setting + more for more in policies]
        parts.append(_Part(("switches", setting), values, list(policies.values()), names, scale.switch_seeds))
    return parts


def differences(of: Sequence[float], against: Sequence[float]) -> list[float]:
    """What each seed says of one row against another."""
    return [a - b for a, b in zip(of, against, strict=True)]
