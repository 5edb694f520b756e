"""Poisson streams into the simulator, and what is measured of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from support.by_hand import asked
from support.mini_policies import Scripted
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Options
from trimtab.domain.policy import Decider, Policy
from trimtab.engine.driver import Driver
from trimtab.engine.simulator import run

WARM_UP = 0.1  # of the requests are left out, while the system fills

SCV = {"constant": 0.0, "erlang-2": 0.5, "exponential": 1.0, "hyper": 3.0}


def drawn(kind: str, n: int, rng: np.random.Generator) -> np.ndarray:
    """Sizes of mean 1 and the squared coefficient of variation SCV[kind]."""
    if kind == "constant":
        return np.ones(n)
    if kind == "erlang-2":
        return rng.gamma(2.0, 0.5, n)
    if kind == "exponential":
        return rng.exponential(1.0, n)
    # balanced two-phase hyperexponential: phase i with probability p_i and mean 1 / (2 p_i)
    p = 0.5 * (1.0 + np.sqrt((SCV["hyper"] - 1.0) / (SCV["hyper"] + 1.0)))
    return rng.exponential(1.0, n) / (2.0 * np.where(rng.random(n) < p, p, 1.0 - p))


def stream(
    c: Cluster,
    per_s: float,
    n: int,
    seed: int,
    *,
    sizes: str = "exponential",
    options: Options | None = None,
    policy: Policy | None = None,
    order: Policy | None = None,
    payload: bool = False,
    priorities: list[float] | None = None,
) -> Driver:
    """Run a Poisson stream to its end; `payload`: sizes are GiB to transfer, else seconds of service."""
    rng = np.random.default_rng(seed)
    arrival_s = np.cumsum(rng.exponential(1.0 / per_s, n))
    size = drawn(sizes, n, rng)
    columns: dict[str, Any] = {"payload_gib": size} if payload else {}
    if priorities:
        columns["priority"] = rng.choice(len(priorities), n, p=np.array(priorities) / sum(priorities))
    r = asked(c, arrival_s, 0.0 if payload else size, **columns)
    return run(
        c, r, options or Options(), Decider.of(policy or Scripted(), order), seed=seed, mode="compiled"
    )


def _settled(driver: Driver) -> slice:
    n = len(driver.state.requests)
    return slice(int(WARM_UP * n), n)


def waits_s(driver: Driver) -> np.ndarray:
    """Start − arrival, nan where rejected."""
    at = _settled(driver)
    return driver.state.requests["start_s"][at] - driver.state.work["arrival_s"][at]


def times_s(driver: Driver) -> np.ndarray:
    """Finish − arrival, nan where rejected."""
    at = _settled(driver)
    return driver.state.requests["finish_s"][at] - driver.state.work["arrival_s"][at]
