"""The plugin that users register with a scheduler of Dask; the policy runs in the scheduler's process."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import distributed
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.scheduler import TaskState, WorkerState
from tornado.ioloop import PeriodicCallback

from trimtab.errors import UsageError

if TYPE_CHECKING:
    from trimtab.clusters.dask.placer import Placer
    from trimtab.policies.catalogue import PolicySpec

_TICK_S: Final = 0.25  # between two looks at what Dask tells no plugin: workers that pause, tasks that secede
_HOOKS: Final = ("start", "update_graph", "transition", "add_worker", "remove_worker", "restart")
_READ: Final = {  # what else of Dask is used, which is no part of its interface of plugins
    "Scheduler": "tasks workers running unrunnable valid_workers transitions log_event no_workers_timeout "
    "periodic_callbacks extensions plugins",
    "TaskState": "worker_restrictions host_restrictions resource_restrictions loose_restrictions "
    "processing_on priority prefix run_spec actor",
    "WorkerState": "nthreads processing long_running resources used_resources memory_limit",
}

logger = logging.getLogger(__name__)


class Placement(SchedulerPlugin):
    """Places tasks by a policy of the catalogue: `client.register_plugin(Placement(policy="sjf"))`.

    Every task is held until a worker has a free thread and the resources that the task asks for. Then the
    policy chooses among the workers that Dask would allow. Restrictions, priorities and retries of users
    stay in force. `client.unregister_scheduler_plugin("trimtab")` gives tasks back to Dask.

    Args:
        policy: as for `trimtab compare`, such as "least-expected-completion+sjf", or a Policy object.
        seed: of the policy's random numbers.
        record: a folder on the scheduler's machine for a trace of the tasks and decisions.

    Raises UsageError for a policy that is not there, or needs what no scheduler of Dask knows.
    """

    name = "trimtab"
    idempotent = False

    def __init__(
        self,
        policy: PolicySpec = "least-expected-completion",
        *,
        seed: int = 0,
        record: str | Path | None = None,
    ) -> None:
        from trimtab.clusters.dask.worker_choice import degraded
        from trimtab.policies.catalogue import find

        degraded(find(policy))
        self._policy, self._seed, self._record = policy, seed, record
        self._placer: Placer | None = None
        self.label = ""

    async def start(self, scheduler: Any) -> None:
        """Take the tasks over that are there. Raises UsageError."""
        from trimtab.clusters.dask.decision_recording import TaskRecording
        from trimtab.clusters.dask.placer import Placer
        from trimtab.clusters.dask.worker_choice import WorkerChoice
        from trimtab.policies.catalogue import canonical, find

        refuse_lacking(scheduler, SchedulerPlugin)
        others = [plugin for plugin in scheduler.plugins.values() if isinstance(plugin, Placement)]
        if others:
            raise UsageError(
                "is registered already",
                field="Placement",
                value=others[0].label,
                expected='client.unregister_scheduler_plugin("trimtab") first',
            )
        decider = find(self._policy)

        def made() -> WorkerChoice:
            return WorkerChoice(decider, scheduler.workers, seed=self._seed, mode="compiled")

        choice = await asyncio.to_thread(made)  # it may have to compile
        self.label = canonical(self._policy)
        for each in choice.degraded:
            logger.info("%s", each)
        recording = None
        if self._record is not None:
            recording = TaskRecording(Path(self._record), self.label, self._seed, scheduler.workers)
        before = scheduler.extensions.get(self.name)
        if before is not None:
            before.end()  # what it held is held on
        self._placer = scheduler.extensions[self.name] = Placer(
            scheduler,
            choice,
            self.label,
            orders=decider.order.orders(),
            recording=recording,
            is_registered=lambda: self in scheduler.plugins.values(),
        )
        self._placer.adopt()
        self._ticks = scheduler.periodic_callbacks[self.name] = PeriodicCallback(self._tick, 1000 * _TICK_S)
        self._ticks.start()

    def _tick(self) -> None:
        assert self._placer is not None
        self._placer.turn()
        if self._placer.is_over:
            self._ticks.stop()

    @property
    def _told(self) -> Placer | None:
        """Who is told what Dask tells."""
        return None if self._placer is None or self._placer.is_over else self._placer

    def update_graph(self, scheduler: Any, *, tasks: Any, **kwargs: Any) -> None:
        """Tasks came."""
        if self._told is not None:
            self._told.graph_came(tasks)

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """A task has changed its state."""
        if self._told is not None:
            self._told.changed(key, start, finish, kwargs)

    def add_worker(self, scheduler: Any, worker: str) -> None:
        """A worker came."""
        if self._told is not None:
            self._told.workers_changed()

    def remove_worker(self, scheduler: Any, worker: str, **kwargs: Any) -> None:
        """A worker went."""
        if self._told is not None:
            self._told.workers_changed()

    def restart(self, scheduler: Any) -> None:
        """The scheduler has forgotten all tasks."""
        if self._told is not None:
            self._told.restarted()


def refuse_lacking(scheduler: Any, plugin: Any) -> None:
    """Raise UsageError for a version of Dask that lacks what `Placement` uses."""
    lacking = [f"SchedulerPlugin.{hook}" for hook in _HOOKS if not hasattr(plugin, hook)]
    for owner, (kind, names) in zip((scheduler, TaskState, WorkerState), _READ.items(), strict=True):
        lacking += [f"{kind}.{name}" for name in names.split() if not hasattr(owner, name)]
    if lacking:
        raise UsageError(
            f"distributed {distributed.__version__} lacks {', '.join(lacking)}",
            field="Placement",
            expected="a version that trimtab was tested with, such as 2026.8.0",
        )
