"""The scenarios that `python -m bench.policies` compares policies on, by name."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.startup import ROOT
from trimtab.experiments.scenario import Scenario, load_scenario

DATA = ROOT.parent / "shared" / "data"
REQUESTS = 10_000
Parts = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A scenario and what it is there for."""

    name: str
    group: str  # key of policies_page.GROUPS
    scenario: Scenario
    reports_s: float = 0.0  # age of the reports
    trace: Path | None = None


def cases() -> Iterator[Case]:
    """All of them; those whose trace is not there are told by `trace`."""
    yield from _by_load()
    for workload, (parts, mean_s) in _workloads().items():
        for variant, change in _variants(mean_s).items():
            if workload == "aigc-images" and variant == "unequal":
                continue  # is one of the loads
            group = "variants" if workload == "aigc-images" else "traces"
            yield _case(f"{workload} {variant}", group, change(copy.deepcopy(parts)))
    yield from _questions()


def _case(name: str, group: str, parts: Parts) -> Case:
    trace = parts["workload"].get("trace")
    scenario = Scenario.model_validate({**parts, "name": name})
    reports_s = scenario.serving.telemetry.period_s
    return Case(name, group, scenario, reports_s, Path(trace["file"]) if trace else None)


def _parts_of(builtin: str, load: float | None = None) -> Parts:
    """A built-in scenario as what its file holds, at its own load unless told."""
    scenario = load_scenario(builtin).with_overrides(load=load)
    return scenario.model_dump(mode="json", exclude_defaults=True)


def _by_load() -> Iterator[Case]:
    for load in (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1):
        yield _case(f"aigc-images {load}", "loads", _parts_of("aigc-images", load))


TYPES = {f"gpu-{speed}": {"memory_gib": 80, "speed": speed} for speed in (1.5, 1.0, 0.6)}
"""Nodes under the traces: three speeds, a quarter, a half and a quarter of the nodes."""


def _nodes(count: int, slots: int) -> Parts:
    types = {name: {**kind, "slots": slots} for name, kind in TYPES.items()}
    counts = zip(types, (count // 4, count // 2, count // 4), strict=True)
    return {"types": types, "nodes": [{"type": name, "count": n} for name, n in counts]}


def _traced(file: str, cluster: Parts, classes: Parts, **served: Any) -> Parts:
    workload = {
        "trace": {"file": str(DATA / file), "options": {"limit": REQUESTS}},
        "load": 0.8,
        "estimate_cv": 0.3,
        "service_cv": 0.2,
    }
    return {"cluster": cluster, "classes": classes, "workload": workload, **served}


CHAT = {"chat": {"unit_s": 0.045, "unit": "output token", "slo_s": 60}}


def azure() -> Parts:
    """The conversations of Azure's trace of 2023 on nodes of 8 slots."""
    return _traced("azure_llm_2023/AzureLLMInferenceTrace_conv.csv.gz", _nodes(16, 8), CHAT)


def _workloads() -> Mapping[str, tuple[Parts, float]]:
    """Name → scenario, and its mean service in seconds (about), which makes reports old."""
    images = {
        "image": {
            "model": "checkpoint",
            "adapter": "lora",
            "fixed_s": 13.4,
            "unit_s": 0.019,
            "unit": "step and image",
            "slo_s": 60,
        }
    }
    models = {"checkpoint": {"memory_gib": 6.5, "load_s": 23.0}}
    adapters = {"lora": {"memory_gib": 0.2, "load_s": 4.4, "count": 245, "zipf": 0.8}}
    gentd26 = _traced(
        "alibaba_genai_2026/lora_request_trace.csv.gz",
        _nodes(32, 1),
        images,
        models=models,
        adapters=adapters,
    )
    mooncake = _traced("mooncake_fast25/conversation_trace.jsonl.gz", _nodes(16, 8), CHAT)
    return {
        "aigc-images": (_parts_of("aigc-images", 0.8), 20.0),
        "GenTD26": (gentd26, 15.0),
        "Azure conversation": (azure(), 13.0),
        "Mooncake": (mooncake, 40.0),
    }


def _variants(mean_s: float) -> Mapping[str, Callable[[Parts], Parts]]:
    def stale(parts: Parts) -> Parts:
        return {**parts, "serving": {"telemetry": {"period_s": mean_s}, "dispatchers": 4}}

    def failing(parts: Parts) -> Parts:
        return {**parts, "faults": [{"mtbf_s": 150 * mean_s, "mttr_s": 10 * mean_s}]}

    return {"unequal": lambda parts: parts, "equal": _equal, "stale": stale, "failures": failing}


def _equal(parts: Parts) -> Parts:
    """As many nodes, all of the type that serves everything."""
    cluster = parts["cluster"]
    kind = "l40s" if "l40s" in cluster["types"] else "gpu-1.0"
    count = sum(group["count"] for group in cluster["nodes"])
    parts["cluster"] = {**cluster, "nodes": [{"type": kind, "count": count}]}
    return parts


def _generated(name: str, types: Parts, counts: Mapping[str, int], load: float = 0.8, **serving: Any) -> Case:
    """Poisson arrivals of lognormal services of one second on average at speed 1."""
    size = {"distribution": "lognormal", "mean": 1.0, "cv": 1.0}
    generate = {
        "requests": 2 * REQUESTS,
        "arrival": {"process": "poisson", "rate_per_s": 1.0},
        "mix": {"work": {"share": 1, "size": size}},
    }
    parts = {
        "cluster": {"types": types, "nodes": [{"type": name, "count": n} for name, n in counts.items()]},
        "classes": {"work": {"unit_s": 1.0, "slo_s": 5.0}},
        "workload": {"generate": generate, "load": load, "estimate_cv": 0.3, "service_cv": 0.2},
        "serving": serving,
    }
    return _case(name, "claims", parts)


DAYS, STEPS_OF_DAY = 3, 24


def daily_cycle() -> Case:
    """Three models, one to a node, 40 s to load; what is asked for moves from one to the next in a day."""
    names = ("chat", "images", "speech")

    def shares(day: float) -> dict[str, float]:
        turns = (2.0 * math.pi * (day + i / len(names)) for i in range(len(names)))
        return {name: 1.0 + 0.9 * math.sin(turn) for name, turn in zip(names, turns, strict=True)}

    steps = DAYS * STEPS_OF_DAY
    size = {"distribution": "lognormal", "mean": 1.0, "cv": 0.6}
    generate = {
        "requests": 9_000,
        "arrival": {"process": "poisson", "rate_per_s": 1.0},
        "mix": {name: {"share": share, "size": size} for name, share in shares(0.0).items()},
        "changes": [{"after_frac": i / steps, "shares": shares(i / STEPS_OF_DAY)} for i in range(1, steps)],
    }
    parts = {
        "cluster": {"types": {"gpu": {"memory_gib": 24}}, "nodes": [{"type": "gpu", "count": 24}]},
        "models": {name: {"memory_gib": 20, "load_s": 40} for name in names},
        "classes": {name: {"model": name, "unit_s": 4.0, "slo_s": 30} for name in names},
        "workload": {"generate": generate, "load": 0.5, "estimate_cv": 0.2, "service_cv": 0.2},
    }
    return _case("daily cycle", "claims", parts)


def _questions() -> Iterator[Case]:
    kinds = {"fast": {"memory_gib": 1, "speed": 4.0}, "slow": {"memory_gib": 1, "speed": 1.0}}
    counts = {"fast": 16, "slow": 16}
    yield _generated("speeds 4 to 1", kinds, counts)
    yield _generated("speeds 4 to 1, load 0.35", kinds, counts, 0.35)  # where round robin saturates no node
    one = {"node": {"memory_gib": 1}}
    for age in (1.0, 5.0):
        serving = {"telemetry": {"period_s": age}, "dispatchers": 8}
        yield _generated(f"reports {age:g} services old", one, {"node": 64}, **serving)
    yield daily_cycle()
    for builtin in ("regime-change", "edge-cloud"):
        yield _case(builtin, "claims", _parts_of(builtin))
