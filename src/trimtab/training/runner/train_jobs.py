"""Runs a list of jobs: from the file to the end of the run."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from trimtab.errors import TrimtabError, UsageError
from trimtab.live.program_host import Host
from trimtab.live.this_machine import ThisMachine
from trimtab.training.allocator_catalogue import (
    canonical_allocator,
    clock_of,
    find_allocator,
    placement_of,
    refuse_unmet,
)
from trimtab.training.job_records import JobRecords
from trimtab.training.runner.adaptive_speed import AdaptiveSpeed
from trimtab.training.runner.job_list import JobList, refuse_too_large, workload_of_jobs
from trimtab.training.runner.live_decisions import LiveDecisions, MeasuredRestarts
from trimtab.training.runner.node_program import Slots, slots_of
from trimtab.training.runner.run_ledger import HERE, STOPPED, KnownRun, RunLedger, RunSettings
from trimtab.training.runner.run_recording import RECORDING, Recording, Rerun, recorded, rerun_of
from trimtab.training.runner.training_host import Say, Show, TrainingHost
from trimtab.training.runner.work_process import WorkProcess, begin_importing

Hosts = Callable[[str, Mapping[str, int]], Host]
SIMULATED_S = 30.0  # of the simulation at the end of a run, after which it is left out


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """A run that ended or stopped."""

    run_id: str
    state: str  # done, failed (some job did), stopped
    recording: Recording


@dataclass(frozen=True, slots=True)
class RunChoice:
    """The work to run: a list of jobs, or a run to go on with."""

    listed: JobList | None = None
    name: str = ""
    source: str = ""
    policy: str = ""
    clock: str | None = None  # None = as the file says
    slots: Mapping[str, int] | None = None
    on: str = ""  # where nodes are; empty = this machine, or where the run was
    resume: str = ""
    retry_failed: bool = False


def train_jobs(
    choice: RunChoice,
    runs: Path,
    *,
    hosts: Hosts = lambda on, slots: ThisMachine(on, slots),
    begun: Callable[[str], None] = lambda run_id: None,
    show: Show = lambda rows, now_s: None,
    say: Say = lambda text: None,
) -> RunOutcome:
    """Run jobs to the end, or to SIGINT or SIGTERM, which stop them at a checkpoint. Raises TrimtabError.

    `hosts` finds the host that `--on` says, for a run that names these nodes. `begun` hears the run's id: it
    can be resumed.
    """
    begin_importing()
    return asyncio.run(_train(choice, runs, hosts, begun, show, say))


async def _train(
    choice: RunChoice,
    runs: Path,
    hosts: Hosts,
    begun: Callable[[str], None],
    show: Show,
    say: Say,
) -> RunOutcome:
    running: list[TrainingHost] = []
    ledger = RunLedger(runs, lambda error: running[0].ledger_failed(error) if running else None)
    nodes: Host | None = None
    if choice.listed is not None:
        wanted = choice.slots or choice.listed.slots
        nodes = hosts(choice.on or HERE, wanted)
    await ledger.open()
    try:
        if choice.listed is None or nodes is None:
            run = await ledger.take_over(choice.resume, retry_failed=choice.retry_failed)
            wanted = {} if choice.on or run.settings.all_nodes else run.settings.slots
            nodes = hosts(choice.on or run.settings.on, wanted)
            run = await _found_again(run, nodes, wanted, choice.on)
        else:
            listed, settings = await _settings(choice, choice.listed, nodes, wanted)
            run = await ledger.begin(listed, settings, choice.source)
        begun(run.id)
        say(f"run {run.id}")
        decisions = decisions_of(run)
        host = TrainingHost(run, ledger, decisions, nodes, show=show, say=say)
        running.append(host)
        try:
            with _stopped_by_signals(host):
                state = await host.run()
        except BaseException:
            with contextlib.suppress(Exception):  # the journal may be what failed
                await ledger.end(STOPPED)
            raise
        await ledger.end(state)
        cancelled = {job.idx: job.state for job in host.jobs if job.state == "cancelled"}
        again = rerun_of(run, decisions)
        folder = ledger.run_folder / RECORDING
        simulated = None if state == STOPPED else await _simulated(again)  # who stops a run does not wait
        recording = recorded(run, decisions, host.records(), folder, again, simulated, cancelled)
        return RunOutcome(run.id, state, recording)
    finally:
        if nodes is not None:
            await nodes.close()
        await ledger.close()


async def _simulated(again: Rerun) -> JobRecords | None:
    """The simulator's run of the jobs of a run; None = its policy took too long, or failed."""
    process = WorkProcess()
    try:
        made: JobRecords = await asyncio.wait_for(process.call(again.records), SIMULATED_S)
    except (TimeoutError, TrimtabError, BrokenExecutor):
        return None
    finally:
        process.close()
    return made


async def _settings(
    choice: RunChoice, listed: JobList, host: Host, wanted: Mapping[str, int]
) -> tuple[JobList, RunSettings]:
    """The settings of a new run. Raises UsageError for one that cannot be, before anything is kept."""
    rules = listed.rules
    if choice.clock is not None:
        rules = rules.model_copy(update={"clock": choice.clock})
    policy = canonical_allocator(choice.policy)
    found = await _slots_on(host, choice.on or HERE, wanted, cuda=listed.cuda)
    listed = listed.on(found.slots).model_copy(update={"rules": rules, "cuda": found.cuda})
    told, on = rules.model_dump(mode="json"), choice.on or HERE
    nodes = {name: node.model_dump(mode="json") for name, node in listed.nodes.items()}
    content = listed.model_dump(mode="json", include={"queues", "queue_scheme"})
    settings = RunSettings(
        policy, found.slots, choice.name, found.cuda, on, told, nodes, all_nodes=not wanted, **content
    )
    refuse_too_large(listed)
    decisions_of(KnownRun("", settings, listed))
    return listed, settings


async def _slots_on(host: Host, on: str, wanted: Mapping[str, int], *, cuda: bool) -> Slots:
    if on == HERE and not wanted:
        raise UsageError("names no slots", field="nodes", expected="nodes in the file, or --slots N")
    return slots_of(await asyncio.to_thread(host.nodes), wanted, cuda=cuda)


async def _found_again(run: KnownRun, host: Host, wanted: Mapping[str, int], on: str) -> KnownRun:
    """A run that goes on: on its nodes, or on those of another place where it was given one."""
    settings = run.settings
    found = await _slots_on(host, on or settings.on, wanted, cuda=settings.cuda)
    listed = run.listed.on(found.slots)
    refuse_too_large(listed)
    settings = replace(
        settings, slots=found.slots, cuda=found.cuda, on=on or settings.on, all_nodes=not wanted
    )
    return replace(run, listed=listed, settings=settings)


def decisions_of(run: KnownRun) -> LiveDecisions:
    """The decisions of a run. Raises UsageError for a policy that cannot decide about real jobs."""
    allocator, rules = find_allocator(run.settings.policy), run.listed.rules
    speed = AdaptiveSpeed(run.listed.jobs)
    refuse_unmet(allocator, speed.provides, "real jobs", "")
    placement_of(rules.placement or allocator.placement)
    listed = run.listed.on(run.settings.slots)
    nodes, workload = listed.nodes.values(), workload_of_jobs(listed.jobs, run.settings.name)
    return LiveDecisions(
        workload,
        np.array([node.slots for node in nodes], np.int64),
        [node.offer for node in nodes],
        speed,
        clock_of(rules.clock or allocator.clock),
        MeasuredRestarts(len(run.listed.jobs), rules.restart_s),
        listed.job_queues(workload.tenant_names),
        listed.queue_scheme,
    )


@contextlib.contextmanager
def _stopped_by_signals(host: TrainingHost) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)
    try:
        for number in numbers:
            loop.add_signal_handler(number, host.stop)
    except (RuntimeError, ValueError):  # not the main thread: it gets no signals
        yield
        return
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
