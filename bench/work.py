"""The work that most benchmarks share, and how long the loop takes for it."""

from __future__ import annotations

import dataclasses
import gc
import time
from dataclasses import dataclass

import numpy as np

from bench.figures import in_turns
from trimtab.domain.policy import Policy
from trimtab.domain.requests import Requests
from trimtab.engine.driver import Driver
from trimtab.engine.loop import DONE
from trimtab.experiments.scenario import Scenario
from trimtab.experiments.scenario.build import RunInputs, build
from trimtab.policies import find

SLOTS, SPEEDS, LOAD = 4, (1.0, 1.25), 0.8  # slow nodes stay below saturation when all get equal shares
SLOTS_TEXT = (
    f"Poisson arrivals, exponential sizes, nodes of {SLOTS} slots and of two speeds (1 and {SPEEDS[1]}, half "
    f"of each), load {LOAD}"
)


def slots(n_nodes: int, n_requests: int) -> RunInputs:
    """The slots model alone: every feature that can be off is off."""
    return build(slots_scenario(n_nodes, n_requests), 0)


def slots_scenario(n_nodes: int, n_requests: int) -> Scenario:
    """The inputs that `slots` builds."""
    types = {f"type{k}": {"memory_gib": 1, "slots": SLOTS, "speed": s} for k, s in enumerate(SPEEDS)}
    nodes = [{"type": name, "count": n_nodes // len(types)} for name in types]
    generate = {
        "requests": n_requests,
        "arrival": {"process": "poisson", "rate_per_s": 1.0},
        "mix": {"work": {"share": 1, "size": {"distribution": "exponential", "mean": 1.0}}},
    }
    scenario = {
        "name": "slots",
        "cluster": {"types": types, "nodes": nodes},
        "classes": {"work": {"unit_s": 1.0}},
        "workload": {"generate": generate, "load": LOAD},
    }
    return Scenario.model_validate(scenario)


def head(built: RunInputs, n_requests: int) -> RunInputs:
    """The first requests only."""
    all_of = built.requests
    first = Requests(all_of.work[:n_requests].copy(), all_of.truth[:n_requests].copy(), all_of.tenant_names)
    return dataclasses.replace(built, requests=first)


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run and the processor seconds of its loop: requests and memory were made before."""

    driver: Driver
    loop_s: float

    @property
    def completion_mean_s(self) -> float:
        rows = self.driver.state
        return float((rows.requests["finish_s"] - rows.work["arrival_s"]).mean())

    @property
    def finish_s(self) -> np.ndarray:
        finish_s: np.ndarray = self.driver.state.requests["finish_s"].copy()
        return finish_s


def timed(built: RunInputs, spec: str | Policy, mode: str = "compiled") -> Run:
    """Run a policy to the end. Raises RuntimeError if it stops before."""
    driver = Driver(built.cluster, built.requests, built.options, find(spec), mode=mode)
    gc.collect()
    begun_s = time.process_time()
    code = driver.advance()
    loop_s = time.process_time() - begun_s
    if code != DONE:
        raise RuntimeError(f"{driver.label} stopped with code {code} at {driver.now_s} s")
    return Run(driver, loop_s)


def loop_s(built: RunInputs, spec: str | Policy, mode: str = "compiled") -> float:
    """Processor seconds of the loop."""
    return timed(built, spec, mode).loop_s


def both_s(
    built: RunInputs,
    a: str | Policy,
    b: str | Policy,
    repetitions: int,
    modes: tuple[str, str] = ("compiled",) * 2,
) -> tuple[list[float], list[float]]:
    """Loop seconds of two ways to the same result, in turns.

    Raises RuntimeError unless all requests finish at the very same times.
    """
    if (timed(built, a, modes[0]).finish_s != timed(built, b, modes[1]).finish_s).any():
        raise RuntimeError(f"{a} and {b} ({' and '.join(modes)}) do not give the same results")
    a_s, b_s = in_turns(repetitions, lambda: loop_s(built, a, modes[0]), lambda: loop_s(built, b, modes[1]))
    return a_s, b_s


def must_agree(what: str, a: float, b: float) -> None:
    """Raise RuntimeError unless both did the same work: mean completions within 1e-9 of each other."""
    if not abs(a - b) <= 1e-9 * abs(a):
        raise RuntimeError(f"{what}: mean completion {a!r} against {b!r} s: not the same work, no comparison")
