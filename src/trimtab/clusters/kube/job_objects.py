"""TrainingJob objects (deploy/kube/trainingjobs.yaml) as jobs of one training run, and their status.

The run is that of `trimtab train run --on kube` with the rule `stays`; it is told of jobs by commands, as by
`trimtab train add`. A thread of its own follows the objects. Twice a second it compares them with the jobs of
the run, adds, cancels, changes priorities, and writes what differs into `status`.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from trimtab.clusters import backends
from trimtab.clusters.kube.api import MERGE, NOT_FOUND, Json, KubeApi, follow
from trimtab.clusters.kube.lease import Lease
from trimtab.clusters.kube.worker_pods import PodSettings, read_pod_settings
from trimtab.errors import ApiRefused, ClusterLost, UsageError
from trimtab.training.runner import run_commands
from trimtab.training.runner.job_list import JobList, JobSpec, RunRules
from trimtab.training.runner.live_job import JobRow
from trimtab.training.runner.run_commands import Command
from trimtab.training.runner.train_jobs import RunChoice, train_jobs
from trimtab.validation.problems import checked

GROUP, VERSION, RESOURCE = "trimtab.io", "v1alpha1", "trainingjobs"
LEASE: Final = "trimtab-training"
OVER: Final = ("done", "failed", "rejected", "cancelled")
_LOOK_S: Final = 0.5
_COUNTS_S: Final = 5.0  # between two changes of samples alone in a status
_ANSWER_S: Final = 30.0

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Object:
    """A TrainingJob."""

    name: str
    id: str  # of its job: an object that is made anew under the same name is another job
    spec: Json
    status: Json
    written_s: float = 0.0

    @property
    def is_over(self) -> bool:
        return self.status.get("phase") in OVER


@dataclass(slots=True)
class _Known:
    objects: dict[str, _Object] = field(default_factory=dict)  # name → …
    rows: dict[str, JobRow] | None = None  # id → job of the run; None: there is no run
    run_id: str = ""
    priorities: dict[str, int] = field(default_factory=dict)  # id → as the run has it


def serve_training_jobs(
    file: str, runs: Path, policy: str, rules: RunRules, say: Callable[[str], None], *, has_lease: bool = True
) -> None:
    """Run the jobs of all objects, until SIGTERM or SIGINT, which stop them at a checkpoint.

    A new process goes on with the run that the objects name, if its folder is among `runs`. `file`: of pods.
    Raises UsageError, ApiRefused, ClusterLost.
    """
    objects = TrainingJobs(read_pod_settings(Path(file)), runs, has_lease=has_lease)
    rules = rules.model_copy(update={"stays": True})
    objects.start()
    try:
        while True:
            say("waiting for a TrainingJob")
            found = objects.next_run()
            on = f"kube://{file}"
            if isinstance(found, str):
                choice = RunChoice(resume=found, on=on)
            else:
                listed = JobList(jobs=(found,), rules=rules)
                choice = RunChoice(listed, LEASE, RESOURCE, policy, on=on)
            try:
                train_jobs(choice, runs, hosts=backends.host, begun=objects.begun, show=objects.show, say=say)
                return
            except UsageError as error:
                if isinstance(found, str) or error.field != "jobs[0].gpus":
                    raise
                objects.reject(found.id, str(error))
    finally:
        objects.stop()


class TrainingJobs:
    """Follows the objects. All methods but `start` and `stop` may be called from any thread."""

    def __init__(self, settings: PodSettings, runs: Path, *, has_lease: bool) -> None:
        self._settings, self._runs, self._has_lease = settings, runs, has_lease
        self._path = f"/apis/{GROUP}/{VERSION}/namespaces/{settings.namespace}/{RESOURCE}"
        self._known = _Known()
        self._runs_to_begin: queue.SimpleQueue[JobSpec | str | BaseException] = queue.SimpleQueue()
        self._is_waiting = False  # for a run to begin
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name=RESOURCE, daemon=True)

    # Of the thread that runs the jobs.

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def stop(self) -> None:
        """Write what is known, and end."""
        self._tell(lambda: self._task is not None and self._task.cancel())
        self._thread.join(_ANSWER_S)

    def next_run(self) -> JobSpec | str:
        """Wait for a job that begins a run, or for a run to go on with. Raises what ended the thread."""
        self._tell(self._want_run)
        found = self._runs_to_begin.get()
        if isinstance(found, BaseException):
            raise found
        return found

    def begun(self, run_id: str) -> None:
        """A run has begun."""
        self._tell(lambda: setattr(self._known, "run_id", run_id))

    def show(self, rows: Sequence[JobRow], now_s: float) -> None:
        """The jobs of the run, now."""
        by_id = {row.id: row for row in rows}
        self._tell(lambda: setattr(self._known, "rows", by_id))

    def reject(self, id: str, why: str) -> None:
        """A job can never run. Returns once its status says so, or the server is gone."""
        if not self._loop.is_closed():
            written = asyncio.run_coroutine_threadsafe(self._reject(id, why), self._loop)
            try:
                written.result(_ANSWER_S)
            except (ClusterLost, TimeoutError) as error:  # it will be found out again
                logger.warning("%s", error)

    def _tell(self, what: Callable[[], Any]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(what)

    # Of its own thread.

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._task = self._loop.create_task(self._work())
            self._loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            found = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error
            logger.error("%s", found)
            self._runs_to_begin.put(found)
        finally:
            self._loop.close()

    async def _work(self) -> None:
        told = self._settings
        async with await KubeApi.connect(told.kubeconfig, told.context) as self._api:
            if not await self._api.serves(GROUP, VERSION, RESOURCE):
                raise UsageError(
                    f"the API server has no {RESOURCE}.{GROUP}",
                    expected="kubectl apply -f deploy/kube/trainingjobs.yaml",
                )
            lease = Lease(self._api, told.namespace, LEASE)
            try:
                await self._follow(lease)
            finally:
                await lease.release()

    async def _follow(self, lease: Lease) -> None:
        async with asyncio.TaskGroup() as tasks:
            if self._has_lease:
                tasks.create_task(lease.run())
                await lease.held.wait()
            tasks.create_task(follow(self._api, self._path, self._listed, self._changed, lambda _: None))
            while True:
                await asyncio.sleep(_LOOK_S)
                try:
                    await self._look()
                except (ApiRefused, ClusterLost, OSError) as error:
                    logger.warning("%s", error)

    def _listed(self, objects: list[Json]) -> None:
        self._known.objects.clear()
        for each in objects:
            self._changed("", each)

    def _changed(self, kind: str, given: Json) -> None:
        metadata = given["metadata"]
        name = metadata["name"]
        if kind == "DELETED" or "deletionTimestamp" in metadata:
            self._known.objects.pop(name, None)
            return
        before = self._known.objects.get(name)
        made = _Object(name, f"{name}.{metadata['uid'][:8]}", given["spec"], given.get("status") or {})
        made.written_s = before.written_s if before and before.id == made.id else 0.0
        self._known.objects[name] = made

    def _want_run(self) -> None:
        self._known.rows, self._known.run_id, self._is_waiting = None, "", True

    async def _look(self) -> None:
        """Bring the run in line with the objects, and their status with the run."""
        known = self._known
        if self._is_waiting:
            await self._begin()
        if known.rows is None or not known.run_id:
            return
        rows, objects = known.rows, {each.id: each for each in known.objects.values()}
        for each in list(objects.values()):
            row = rows.get(each.id)
            if row is not None:
                await self._write(each, _status(known.run_id, row))
                await self._prioritise(each, row)
            elif not each.is_over:
                await self._add(each)
        for id, row in rows.items():
            if id not in objects and row.state not in OVER:
                await self._send(Command(do="cancel", names=(id,)))

    async def _begin(self) -> None:
        """Let a run begin: one that objects name, or a new one with the first job."""
        waiting = [each for each in self._known.objects.values() if not each.is_over]
        for each in waiting:
            run_id = each.status.get("run", "")
            if run_id and (self._runs / run_id).is_dir():
                self._is_waiting = False
                self._runs_to_begin.put(str(run_id))
                return
        for each in waiting:
            if (spec := await self._spec(each)) is not None:
                self._is_waiting = False
                self._runs_to_begin.put(spec)
                return

    async def _spec(self, each: _Object) -> JobSpec | None:
        """The job of an object; None: it is refused."""
        try:
            data = {"cwd": str(self._runs), **each.spec, "id": each.id}
            made = checked(
                lambda: JobSpec.model_validate(data), JobSpec, f"trainingjob/{each.name}", UsageError
            )
        except UsageError as error:
            await self._reject(each.id, str(error))
            return None
        self._known.priorities[each.id] = made.priority
        return made

    async def _reject(self, id: str, why: str) -> None:
        for each in list(self._known.objects.values()):
            if each.id == id:
                await self._patch(each, {"phase": "rejected", "message": why})

    async def _add(self, each: _Object) -> None:
        if (spec := await self._spec(each)) is not None and (
            why := await self._send(Command(do="add", jobs=(spec,)))
        ):
            await self._reject(each.id, why)

    async def _prioritise(self, each: _Object, row: JobRow) -> None:
        wanted = each.spec.get("priority", 0)
        if row.state not in OVER and wanted != self._known.priorities.setdefault(each.id, wanted):
            self._known.priorities[each.id] = wanted
            await self._send(Command(do="priority", names=(each.id,), priority=wanted))

    async def _send(self, command: Command) -> str:
        """Have the run obey; why it refuses, or nothing."""
        path = run_commands.send(self._runs / self._known.run_id, command)
        try:
            async with asyncio.timeout(_ANSWER_S):
                while (answer := run_commands.answer_of(path)) is None:
                    await asyncio.sleep(0.1)
        except TimeoutError:
            return ""  # it waits in the folder of the run
        return "; ".join(answer.refused)

    async def _write(self, each: _Object, status: Json) -> None:
        """Write a status that differs; one that differs in counts alone not each time."""
        now_s = time.monotonic()
        differs = {name for name, value in status.items() if each.status.get(name) != value}
        if differs - {"samples"} or (differs and now_s - each.written_s >= _COUNTS_S):
            await self._patch(each, status)
            each.written_s = now_s

    async def _patch(self, each: _Object, status: Json) -> None:
        """Write a status. Raises ClusterLost: then it is as before, and the next look writes it."""
        try:
            await self._api.patch(f"{self._path}/{each.name}/status", {"status": status}, MERGE)
        except ApiRefused as error:
            if error.status != NOT_FOUND:
                logger.warning("%s", error)
        each.status = {**each.status, **status}


def _status(run_id: str, row: JobRow) -> Json:
    return {
        "run": run_id,
        "phase": row.state,
        "gpus": row.gpus,
        "samples": row.samples,
        "samplesTotal": row.samples_total,
        "restarts": row.restarts,
        "message": row.problem,
    }
