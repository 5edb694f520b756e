"""The simulator: runs one policy over given requests on virtual time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Options
from trimtab.domain.planning import Runs
from trimtab.domain.policy import Decider
from trimtab.domain.requests import Requests
from trimtab.engine.driver import Driver
from trimtab.engine.events import SWITCH
from trimtab.engine.loop import DECIDE, DONE, PLAN_DUE, PLAN_READY, REACHED
from trimtab.engine.provided import degraded
from trimtab.errors import PolicyError

STEPS = 200_000  # events between two checks for progress and interruption


def run(
    cluster: Cluster,
    requests: Requests,
    options: Options,
    decider: Decider,
    *,
    seed: int = 0,
    mode: str = "auto",
    progress: Callable[[int], None] | None = None,
    declared: np.ndarray | Runs | None = None,
) -> Driver:
    """Simulate until no events are left, or to the horizon. Returns the Driver with the final state.

    Args:
        mode: "compiled", "interpreted", or "auto": compiled if the kernels are cached or the run is long.
        progress: called with the number of requests that have arrived.
        declared: possible WORK, or runs of chains, by arrival, for policies that use rollouts.

    Raises PolicyError if the policy raises or returns no valid decision, UsageError for a need of the policy
    that is not met and that it can't do without.
    """
    driver = begun(cluster, requests, options, decider, seed=seed, mode=mode, declared=declared)
    go_to(driver, options.horizon_s, progress)
    return driver


def begun(
    cluster: Cluster,
    requests: Requests,
    options: Options,
    decider: Decider,
    *,
    seed: int = 0,
    mode: str = "auto",
    declared: np.ndarray | Runs | None = None,
) -> Driver:
    """A run before its first event, for `go_to`. Arguments and errors are those of `run`."""
    degraded(decider, cluster, requests, options)
    return Driver(cluster, requests, options, decider, seed=seed, mode=mode, declared=declared)


def go_to(driver: Driver, until_s: float, progress: Callable[[int], None] | None = None) -> None:
    """Process all events up to this time, with the plans that are due. Raises PolicyError."""
    while True:
        code = driver.advance(until_s, STEPS)
        if progress is not None:
            progress(driver.n_arrived)
        if code in (DONE, REACHED):
            return
        if code == PLAN_DUE and (plan := driver.make_plan()) is not None:
            driver.adopt(plan, driver.now_s + driver.options.plan_latency_s)
        elif code == PLAN_READY:
            driver.put_next_in_force()
        elif code == DECIDE:
            raise PolicyError(f"policy {driver.label!r} chooses no nodes: it has no dispatch")


def switch(driver: Driver, node_idx: int, up: bool, now_s: float) -> None:
    """Switch a node on or off, after `go_to` that time. Requests that run there go on, others move."""
    driver.state.nodes["up"][node_idx] = int(up)
    driver.push(now_s, SWITCH, node_idx, 0)
