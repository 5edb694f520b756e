"""Speed with every feature switched on, and what each feature costs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from bench.figures import Benchmark, Effort, Figure, Measured, at_least, figure, per_second
from bench.work import loop_s, timed
from trimtab.experiments.scenario import Scenario
from trimtab.experiments.scenario.build import RunInputs, build

FILE = Path(__file__).with_name("everything-on.yaml")
COUNTED = ("rejected", "cancelled", "retries", "model_loads", "adapter_loads", "evictions", "steps")
LADDER_POLICY = "power-of-d+edf"


def _without_telemetry(s: dict[str, Any]) -> None:
    s["serving"] |= {"telemetry": {}, "dispatchers": 1}


def _without_faults(s: dict[str, Any]) -> None:
    s["faults"] = []


def _without_cancellation(s: dict[str, Any]) -> None:
    s["serving"]["cancel"] = "never"


def _without_bounds(s: dict[str, Any]) -> None:
    s["serving"]["held_max"] = None
    for group in s["cluster"]["nodes"]:
        group["queue_max"] = None


def _without_transfers(s: dict[str, Any]) -> None:
    s["workload"]["payload_gib"], s["cluster"]["rtt_s"] = None, 0.0


def _without_models(s: dict[str, Any]) -> None:
    for name in ("model", "adapter"):
        for service in s["classes"].values():
            service.pop(name, None)
    for entry in s["workload"]["generate"]["mix"].values():
        entry.pop("adapter_frac", None)


def _on_network(s: dict[str, Any]) -> None:
    """Racks of ten, two spines and a wide area instead of links one after the other; results travel back."""
    s["cluster"]["zones"] = {}
    s["cluster"]["network"] = {
        "tree": {"nodes_per_rack": 10, "nic_gib_per_s": 8, "spines": 2, "delay_s": 1e-5},
        "wide_area": {"gib_per_s": 150},
    }
    s["workload"]["result_gib"] = s["workload"]["payload_gib"]


def _with_store(s: dict[str, Any]) -> None:
    """Models come over the network too."""
    s["cluster"]["network"]["store"] = "west"


NETWORKS: tuple[tuple[str, Callable[[dict[str, Any]], None]], ...] = (
    ("over a network", _on_network),
    ("and models from a store", _with_store),
)
LADDER: tuple[tuple[str, Callable[[dict[str, Any]], None]], ...] = (
    ("everything", lambda _: None),
    ("no stale telemetry, one dispatcher", _without_telemetry),
    ("and no failures or slow-downs", _without_faults),
    ("and no cancellation at deadline", _without_cancellation),
    ("and no bounds on queues", _without_bounds),
    ("and no transfers", _without_transfers),
    ("and no models or adapters", _without_models),
)


def _built(content: dict[str, Any]) -> RunInputs:
    return build(Scenario.model_validate(content), 0)


def _speed(built: RunInputs, policy: str, effort: Effort) -> list[float]:
    loop_s(built, policy)  # load the kernels
    return per_second(len(built.requests), [loop_s(built, policy) for _ in range(effort.repetitions)])


def _counts(built: RunInputs, policy: str) -> Iterator[Figure]:
    """The counts of events per thousand requests: the features are at work."""
    counts = timed(built, policy).driver.state.counts[0]
    for name in COUNTED:
        per_thousand = 1000.0 * float(counts[name]) / len(built.requests)
        yield figure([per_thousand], "per 1,000 requests", policy=policy, figure=name.replace("_", " "))


def measure(effort: Effort) -> Iterator[Measured]:
    content = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    generate = content["workload"]["generate"]
    generate["requests"] = effort.requests(generate["requests"])
    built = _built(content)
    for policy in content["policies"]:
        speed = _speed(built, policy, effort)
        yield figure(speed, "million requests/s", at_least(0.8), policy=policy, figure="everything on")
        yield from _counts(built, policy)
    own, changed = _speed(built, LADDER_POLICY, effort), copy.deepcopy(content)
    for step, change in NETWORKS:
        change(changed)
        speed = _speed(_built(changed), LADDER_POLICY, effort)
        share = [over / links for over, links in zip(speed, own, strict=True)]
        yield figure(share, "of the speed above", at_least(0.15), policy=LADDER_POLICY, figure=step)
    reduced = copy.deepcopy(content)
    for step, take_away in LADDER:
        take_away(reduced)
        speed = _speed(_built(reduced), LADDER_POLICY, effort)
        yield figure([1000.0 / s for s in speed], "ns/request", policy=LADDER_POLICY, figure=step)


BENCHMARK = Benchmark(
    "everything-on",
    "Everything switched on",
    "The scenario everything-on (`bench/everything-on.yaml`): 100 nodes, models and adapters with "
    "eviction, transfers over shared links, two zones, failures, slow-downs, stale telemetry, two "
    "dispatchers, cancellation at the deadline, earliest deadline first, bounded queues. The goal beyond the "
    "target is 1 million requests/s.",
    measure,
    profile="The rows in ns/request take one feature away after the other: the difference of two rows is "
    "what the feature costs, the work that it adds or spares included.",
)
