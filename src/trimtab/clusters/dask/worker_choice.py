"""The choice of a worker by a policy of the catalogue, over a View of a scheduler's workers and tasks.

A task is a request: its class is its prefix with its GPUs. A worker is a node, and a type of its own, as
workers differ in speed in ways that nobody declares. Which workers may take a task is no question of the
policy: to it the others are down.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Set
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.domain.cluster import Cluster, ResourceName
from trimtab.domain.needs import Degraded, Host, Need
from trimtab.domain.options import Options
from trimtab.domain.policy import Decider
from trimtab.domain.view import UNLIMITED
from trimtab.engine.calls import compile_all
from trimtab.engine.driver import PlanningLog
from trimtab.engine.live_driver import LiveDriver, RequestSpec
from trimtab.engine.state import OPEN
from trimtab.errors import UsageError
from trimtab.live.dispatch_loop import DispatchLoop
from trimtab.live.planner import InlinePlanner

DASK: Final = Host(
    "Dask scheduler",
    {
        Need.RESOURCES: "",
        Need.PRIORITIES: "",
        Need.HOLDING: "",
        Need.REPORTED_LOAD: "",
        Need.FULL_SPEED: "",
    },
)
UNKNOWN_S: Final = 0.5  # of a task of which nothing is known, as in Dask's `unknown-task-duration`
RESOURCES: Final[tuple[ResourceName, ...]] = ("cpu_cores", "ram_gib", "gpu_milli")
_GIB: Final = 1 << 30
_SPARE: Final = 16  # rows for classes and tasks that are yet to come, at least
_MOST_CLASSES: Final = 1024  # then those of which nothing runs are forgotten
_MEMORY: Final = 32  # runs that an estimate averages over


class Task(NamedTuple):
    """What a policy is told of a task."""

    prefix: str
    gpus: float = 0.0
    priority: int = 0
    estimate_s: float = -1.0  # Dask's own, by prefix; < 0 = it has none


class WorkerChoice:
    """One policy over the workers. Workers that come or go make it begin anew, tasks go on.

    Args:
        workers: address → WorkerState, which the scheduler keeps up to date.
    """

    def __init__(self, decider: Decider, workers: Mapping[str, Any], *, seed: int, mode: str) -> None:
        """Raises UsageError for a policy with a need that no scheduler of Dask meets."""
        self.degraded = degraded(decider)
        if mode == "compiled":
            compile_all(decider)
        self._decider, self._workers, self._seed, self._mode = decider, workers, seed, mode
        reads = decider.dispatch.all_needs | decider.order.all_needs
        self._reads_use = bool(reads & {Need.RESOURCES, Need.REPORTED_LOAD})
        self._begun_s = time.monotonic()
        self._classes: dict[tuple[str, float], int] = {}
        self._rows: dict[Any, tuple[int, str, Task]] = {}  # key → (row, address, …)
        self._driver: LiveDriver | None = None
        self.addresses: list[str] = []
        self._index: dict[str, int] = {}
        self._shown: set[str] = set()  # up, as the policy sees it
        self._seconds: dict[str, dict[Any, tuple[int, float]]] = {}  # prefix → worker → (runs, mean)
        self._stale = True
        # A loop that stood still for long would make each plan that it has missed.
        self._still_s = 2.0 * decider.dispatch.plan_period_s or np.inf
        self._asked_s = 0.0

    def workers_changed(self) -> None:
        """Workers came or went."""
        self._stale = True

    def choose(self, key: Any, task: Task, able: Set[str]) -> str | None:
        """The worker that a task runs on from now on; None = the policy holds it."""
        driver, c, now_s = self._ready_for(key, task, able)
        row = driver.enter(self._spec(task, c), now_s)
        self._loop.step(now_s)
        started = driver.take_started()
        if started:
            address = self.addresses[started[0][1]]
            self._rows[key] = row, address, task
            return address
        driver.abort(row, now_s)
        self._loop.step(now_s)
        driver.take_ended()
        return None

    def candidates(self, key: Any) -> list[int]:
        """Positions of the workers that the policy ranked for a task that runs, best first."""
        assert self._driver is not None
        return self._driver.ranked(self._rows[key][0])

    def key(self, task: Task) -> float:
        """By which a waiting task is served, least first: the policy's own order."""
        driver, c, now_s = self._ready_for(None, task, frozenset())
        row = driver.enter(self._spec(task, c), now_s)
        self._loop.step(now_s)
        found = float(driver.state.requests["key"][row])
        driver.abort(row, now_s)
        self._loop.step(now_s)
        driver.take_ended()
        return found

    def placed(self, key: Any, task: Task, address: str) -> None:
        """A task runs on a worker; the policy may not have chosen it."""
        if self._rows.get(key, (-1, ""))[1] == address:
            return
        self.ended(key)
        self._rows[key] = -1, address, task
        if self._driver is not None and not self._stale:
            driver, _, _ = self._ready_for(None, task, self._shown)
            if self._rows[key][0] < 0:  # a driver made anew knows it already
                self._enter_at(driver, key)

    def ended(self, key: Any) -> None:
        """A task has left its worker."""
        row, _, _ = self._rows.pop(key, (-1, "", None))
        if row >= 0 and self._driver is not None and not self._stale:
            self._driver.complete(row, self._now_s())

    def learn(self, prefix: str, worker: Any, seconds: float) -> None:
        """A task of a prefix took this long on a worker of this name."""
        known = self._seconds.setdefault(prefix, {})
        runs, mean_s = known.get(worker, (0, 0.0))
        runs = min(runs + 1, _MEMORY)
        known[worker] = runs, mean_s + (seconds - mean_s) / runs
        if self._driver is not None and not self._stale:
            for (name, _), c in self._classes.items():
                if name == prefix:
                    self._driver.fixed_s[c] = self._estimates(prefix, seconds)

    def clear(self) -> None:
        """No task runs any more."""
        self._rows.clear()
        self._stale = True

    def _now_s(self) -> float:
        return time.monotonic() - self._begun_s

    def _ready_for(self, key: Any, task: Task, able: Set[str]) -> tuple[LiveDriver, int, float]:
        """The driver, to which these workers are up; the class of the task; and the time."""
        now_s = self._now_s()
        self._stale |= now_s - self._asked_s > self._still_s
        self._asked_s = now_s
        driver, c = self._current(task)
        now_s = self._now_s()
        if able != self._shown:
            for address in self._shown ^ able:
                if (j := self._index.get(address)) is not None:
                    driver.switch(j, address in able, now_s)
            self._shown = set(able)
        if self._reads_use and key is not None:
            used = self._used()
            driver.reports.set_used(used, np.full(len(used), np.inf), now_s)
        return driver, c, now_s

    def _current(self, task: Task) -> tuple[LiveDriver, int]:
        kind = task.prefix, task.gpus
        driver = self._driver
        if driver is not None and not self._stale and driver.has_row:
            if (c := self._classes.get(kind)) is not None:
                return driver, c
            if (c := len(self._classes)) < len(driver.state.demand):
                self._classes[kind] = c
                driver.reports.set_class_demand(c, np.array(demand_of(task.gpus)))
                driver.fixed_s[c] = self._estimates(task.prefix, task.estimate_s)
                return driver, c
        if len(self._classes) >= _MOST_CLASSES:
            self._classes.clear()
        for _, _, other in self._rows.values():
            self._classes.setdefault((other.prefix, other.gpus), len(self._classes))
        c = self._classes.setdefault(kind, len(self._classes))
        return self._made_anew(task), c

    def _made_anew(self, task: Task) -> LiveDriver:
        self.addresses = sorted(self._workers)
        self._index = {address: j for j, address in enumerate(self.addresses)}
        names = {ws.name for ws in self._workers.values()}
        for known in self._seconds.values():
            if len(known) > 2 * len(names) + _SPARE:
                for gone in known.keys() - names:
                    del known[gone]
        running = {key: at for key, at in self._rows.items() if at[1] in self._index}
        log = PlanningLog()
        self._driver = driver = LiveDriver(
            self._cluster(),
            Options(),
            self._decider,
            rows=2 * (len(running) + sum(ws.nthreads for ws in self._workers.values()) + _SPARE),
            seed=self._seed,
            mode=self._mode,
            begun_s=self._now_s(),
            planning=log,
            host=OPEN,
            keeps_history=self._decider.dispatch.plan_period_s > 0.0,
            bounds_time=True,
        )
        planner = InlinePlanner(self._decider.dispatch, log)
        self._loop = DispatchLoop(driver, planner, self._now_s, lambda _: None)
        self._stale, self._shown = False, set(self.addresses)
        for (prefix, _), c in self._classes.items():
            told_s = task.estimate_s if prefix == task.prefix else -1.0
            driver.fixed_s[c] = self._estimates(prefix, told_s)
        self._rows = running
        for key in running:
            self._enter_at(driver, key)
        return driver

    def _enter_at(self, driver: LiveDriver, key: Any) -> None:
        _, address, task = self._rows[key]
        j, c = self._index[address], self._classes[task.prefix, task.gpus]
        row = driver.enter_at(j, self._spec(task, c), float(driver.fixed_s[c, j]), self._now_s())
        self._rows[key] = row, address, task

    def _spec(self, task: Task, c: int) -> RequestSpec:
        return RequestSpec(class_idx=c, units=1.0, priority=task.priority)

    def _estimates(self, prefix: str, told_s: float) -> NDArray[np.float64]:
        """Seconds of a prefix on each worker, [workers]; the mean of the others where none ran yet."""
        known = self._seconds.get(prefix)
        if not known:
            return np.full(len(self.addresses), told_s if told_s >= 0.0 else UNKNOWN_S)
        mean = runs_s = 0.0
        for runs, mean_s in known.values():
            mean, runs_s = mean + runs, runs_s + runs * mean_s
        other = 0, runs_s / mean
        workers = self._workers
        return np.array(
            [known.get(workers[a].name, other)[1] if a in workers else other[1] for a in self.addresses]
        )

    def _used(self) -> NDArray[np.float64]:
        """What is taken on each worker, [workers, resources]."""
        used = np.zeros((len(self.addresses), len(RESOURCES)))
        for j, address in enumerate(self.addresses):
            if (ws := self._workers.get(address)) is not None:
                used[j, 1] = ws.metrics.get("memory", 0) / _GIB
        for _, address, task in self._rows.values():
            if (j := self._index.get(address, -1)) >= 0:
                used[j] += demand_of(task.gpus)
        return used

    def _cluster(self) -> Cluster:
        """The cluster of a View, with spare rows for classes."""
        workers = [self._workers[address] for address in self.addresses]
        n, classes = len(workers), 1 << (len(self._classes) + _SPARE - 1).bit_length()
        threads = np.array([ws.nthreads for ws in workers], np.int64)
        demand = np.zeros((classes, len(RESOURCES)))
        for (_, asked), c in self._classes.items():
            demand[c] = demand_of(asked)
        return Cluster(
            type_names=tuple(str(ws.name) for ws in workers),
            node_names=tuple(str(ws.name) for ws in workers),
            type_idx=np.arange(n),
            slots=threads,
            queue_max=np.zeros(n, np.int64),
            zone_idx=np.zeros(n, np.int64),
            weight=threads.astype(np.float64),
            nic_gib_per_s=np.full(n, np.inf),
            memory_gib=np.full(n, float(UNLIMITED)),
            accelerators=np.array([gpus_of(ws.resources) for ws in workers]),
            usd_per_hour=np.zeros(n),
            class_names=tuple(f"class {c}" for c in range(classes)),
            fixed_s=np.full((classes, n), UNKNOWN_S),
            unit_s=np.zeros((classes, n)),
            item_names=(),
            item_gib=np.zeros(0),
            item_is_adapter=np.zeros(0, np.uint8),
            load_s=np.zeros((0, n)),
            zone_names=("none",),
            rtt_s=np.zeros((1, 1)),
            zone_gib_per_s=np.full(1, np.inf),
            resource_names=RESOURCES,
            capacity=np.array([capacity_of(ws) for ws in workers]).reshape(n, len(RESOURCES)),
            demand=demand,
        )


def degraded(decider: Decider) -> tuple[Degraded, ...]:
    """What a policy does without here. Raises UsageError for one that can't be run."""
    if decider.dispatch.binds:
        raise UsageError(
            "binds waiting requests by its plans, and a Dask scheduler asks it about one task at a time",
            field="policy",
            value=decider.label,
            expected="a policy that chooses a node for each request",
        )
    return decider.degraded(DASK, frozenset(DASK.provides))


def gpus_of(resources: Mapping[str, float] | None) -> float:
    """GPUs among the resources of a worker, or of those that a task asks for: they have that name."""
    return float((resources or {}).get("GPU", 0.0))


def demand_of(gpus: float) -> tuple[float, float, float]:
    """What a task takes of RESOURCES: a thread, and GPUs. Its memory is not known."""
    return 1.0, 0.0, 1000.0 * gpus


def capacity_of(worker: Any) -> tuple[float, float, float]:
    """What a worker has of RESOURCES."""
    ram_gib = worker.memory_limit / _GIB if worker.memory_limit else float(UNLIMITED)
    return float(worker.nthreads), ram_gib, 1000.0 * gpus_of(worker.resources)
