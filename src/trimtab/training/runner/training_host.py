"""The host of real jobs: it does what the allocator decides, and keeps each job at its last good checkpoint.

One loop on the wall clock: account for the time that jobs held slots, kill what does not stop, decide if that
is due, then bring processes in line with what is wanted. A job whose slots change is stopped as a whole
and starts again from its checkpoint, when its new slots are free.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from trimtab.errors import StoreUnavailable, TrimtabError
from trimtab.live.program_host import Host
from trimtab.training.job_records import JobRecords
from trimtab.training.runner.checkpoint_files import newest_checkpoint
from trimtab.training.runner.deciding import AllocatorChoice, Deciding, Question
from trimtab.training.runner.forecasts import Forecasts
from trimtab.training.runner.generation import Ending, Generation, Verdict
from trimtab.training.runner.generation_end import end_of
from trimtab.training.runner.job_list import RunRules
from trimtab.training.runner.live_decisions import LiveDecisions, SlotTime
from trimtab.training.runner.live_job import JobRow, JobState, LiveJob, job_folder, job_row
from trimtab.training.runner.obeyed_commands import ObeyedCommands
from trimtab.training.runner.rank_protocol import NO_START, NOT_SAVED, PREEMPTED, read_report
from trimtab.training.runner.run_ledger import DONE, FAILED, STOPPED, KnownRun, RunLedger
from trimtab.training.runner.slot_pool import PLAIN, SlotPool

PAUSE_S: Final = 0.1  # between two turns where nothing happens
SHOW_S: Final = 0.5
ENDS: Final[tuple[JobState, ...]] = ("done", "failed", "rejected", "cancelled")
SLOW_S: Final = 10.0  # of a decision, after which the user hears of it


Show = Callable[[Sequence[JobRow], float], None]
Say = Callable[[str], None]


class TrainingHost:
    """Runs the jobs of one run.

    Args:
        host: where its nodes are.
        show: called with the jobs and the seconds since the begin of the run, twice a second.
        say: called with what the user should know.
    """

    def __init__(
        self,
        run: KnownRun,
        ledger: RunLedger,
        decisions: LiveDecisions,
        host: Host,
        *,
        show: Show = lambda rows, now_s: None,
        say: Say = lambda text: None,
    ) -> None:
        self._run, self._ledger, self._decisions = run, ledger, decisions
        self._show, self._say = show, say
        self.rules: RunRules = run.listed.rules
        folder = ledger.run_folder
        self.jobs = [LiveJob(k, s, job_folder(folder, s.id)) for k, s in enumerate(run.listed.jobs)]
        programs = sorted({job.warm for job in self.jobs} - {PLAIN})
        self.pool = SlotPool(host, run.settings, programs, folder, self.rules.grace_s, self)
        self._forecasts = Forecasts(run, decisions)
        self._deciding = Deciding(AllocatorChoice(run.settings.policy, self.rules))
        self._commands = ObeyedCommands(
            run, ledger, decisions, self.pool, self.jobs, self._give_up, lambda: self.now_s
        )
        self._is_obeying = False
        self._asked_s = math.nan  # since when the allocator decides; nan = it does not
        self._offset_s = time.time() - run.created_s - time.monotonic()
        self._wake = asyncio.Event()
        self._is_stopping = False
        self._error: BaseException | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._shown_s = -math.inf

    @property
    def now_s(self) -> float:
        """Seconds since the run was first begun."""
        return time.monotonic() + self._offset_s

    # The run as a whole.

    async def run(self) -> str:
        """Run to the end, or until `stop`; returns the state of the run. Raises what ended it early."""
        try:
            rehearsal = self._decisions.rehearsal()
            await self._unless_stopped(
                self.pool.open(), self._deciding.open(rehearsal), self._forecasts.open()
            )
            if not self._run.begun:
                self._offset_s = -time.monotonic()  # a new run begins when its nodes are ready
            self._restore()
            while not self._is_over():
                self._turn()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), PAUSE_S)
                self._wake.clear()
            self._show(self.rows(), self.now_s)
        finally:
            self._deciding.close()
            self._forecasts.close()
            await self.pool.close()
        if self._error is not None:
            raise self._error
        if any(job.state in ("pending", "active") for job in self.jobs):
            return STOPPED
        return DONE if all(job.state in ("done", "cancelled") for job in self.jobs) else FAILED

    async def _unless_stopped(self, *works: Coroutine[Any, Any, None]) -> None:
        """Do these things at once; a stop does not wait for them."""
        policy = self._run.settings.policy
        told = self._say_later(f"{policy} gets ready: what it needs is compiled, once")
        tasks = [asyncio.ensure_future(work) for work in works]
        for task in tasks:
            task.add_done_callback(lambda _: self._wake.set())
        try:
            while not self._is_stopping and not all(task.done() for task in tasks):
                await self._wake.wait()
                self._wake.clear()
                for task in tasks:
                    if task.done():
                        await task  # raises what it raised
        finally:
            told.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _say_later(self, text: str) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(SLOW_S, self._say, text)

    def stop(self, error: BaseException | None = None) -> None:
        """Stop all jobs at a checkpoint, and the run with them; a second time, kill them."""
        if self._is_stopping and error is None:
            for job in self.jobs:
                self._kill(job)
        self._is_stopping = True
        self._error = self._error or error
        self._wake.set()

    def _is_over(self) -> bool:
        if any(job.current is not None for job in self.jobs):
            return False
        if self._is_stopping:
            return True
        is_idle = all(job.state not in ("pending", "active") for job in self.jobs)
        return is_idle and not self.rules.stays and not self._is_obeying

    def _turn(self) -> None:
        now_s = self.now_s
        self._account(now_s)
        for job in self.jobs:
            if job.current is not None:
                self._watch(job, job.current, now_s)
        if not self._is_stopping:
            self._ask(now_s)
        for job in self.jobs:
            self._bring_in_line(job, now_s)
        if self._forecasts.is_due(now_s):
            moving = [j.idx for j in self.jobs if j.current is not None and j.current.makes_progress]
            self._spawn(self._forecasts.look(now_s, np.array(moving, np.int64)))
        if now_s - self._shown_s >= SHOW_S:
            self._shown_s = now_s
            self._show(self.rows(), now_s)
            if not self._is_obeying and not self._is_stopping:
                self._is_obeying = True
                self._spawn(self._obey())

    async def _obey(self) -> None:
        """Do what other processes want of the run."""
        try:
            for text in await self._commands.obey():
                self._say(text)
        except (OSError, StoreUnavailable) as error:
            self.ledger_failed(error)
        finally:
            self._is_obeying = False
            self._wake.set()

    def _ask(self, now_s: float) -> None:
        """Ask the allocator if that is due. Jobs go on as they are until it has decided."""
        if not math.isnan(self._asked_s):
            return
        if self._decisions.due_s <= now_s and (asked := self._decisions.question(now_s)) is not None:
            self._asked_s = now_s
            self._spawn(self._decide(asked))

    async def _decide(self, asked: Question) -> None:
        policy = self._run.settings.policy
        told = self._say_later(f"{policy} decides for more than {SLOW_S:g} s; jobs go on as they are")
        try:
            self._decisions.decided(asked, await self._deciding.decide(asked))
        except TrimtabError as error:
            if not (self._is_stopping or self._is_over()):  # else the process that decides may have ended
                self.stop(error)
            return
        finally:
            told.cancel()
            self._asked_s = math.nan
        for k in asked.job_idx.tolist():
            if self.jobs[k].state == "pending":
                self.jobs[k].state = "active"
        for j, why in self._decisions.rejected.items():
            if self.jobs[j].state == "active":
                self._give_up(self.jobs[j], "rejected", why)
        self._decisions.rejected.clear()
        self._wake.set()

    def _restore(self) -> None:
        """Take over the journal and the folders of earlier processes of this run."""
        for job in self.jobs:
            state, error = self._run.states.get(job.idx, ("running", ""))
            folders = job.checkpoints.glob("g[0-9]*")
            newest = max((int(folder.name[1:]) for folder in folders), default=0)
            job.number = max(self._run.generations.get(job.idx, 0), newest)
            job.checkpoint, problems = newest_checkpoint(job.checkpoints)
            for problem in problems:
                self._note(job, problem)
            self._set_work(job, job.work)
            if state != "running":
                job.state = state if state in ENDS else "failed"
                job.problems += [error] if error else []
        self._decisions.restore(self._run, [job.state for job in self.jobs])
        for name in self._run.settings.drained:
            if name in self.pool.names:
                self._decisions.node_changed(self.pool.names.index(name), False, self.now_s)

    # One job.

    def _bring_in_line(self, job: LiveJob, now_s: float) -> None:
        wanted = self._decisions.wanted[job.idx]
        if self._is_stopping:
            wanted = np.zeros_like(wanted)
        generation = job.current
        if job.is_finishing and not self._is_stopping:
            return  # its samples are done: it keeps its slots to the end of its program
        if generation is None:
            if wanted.any() and now_s >= job.retry_s and job.state == "active":
                self._begin(job, wanted, now_s)
        elif not generation.is_stopping and not (
            _same(generation, wanted) and self._keeps_batch(job, generation, now_s)
        ):
            generation.stop_asked_s = now_s
            generation.kill_s = min(generation.kill_s, now_s + self.rules.grace_s)
            self._signal(job, signal.SIGTERM)

    def _keeps_batch(self, job: LiveJob, generation: Generation, now_s: float) -> bool:
        if job.spec.batch_range is None or not job.spec.preemptible:
            return True
        if now_s - generation.looked_s < self.rules.adapt_s:
            return True
        generation.looked_s = now_s
        at = job.idx, len(generation.slots), generation.plan, generation.n_gpus
        return not (generation.makes_progress and self._decisions.better_batch(*at))

    def _begin(self, job: LiveJob, wanted: Any, now_s: float) -> None:
        nodes = [int(j) for j in np.flatnonzero(wanted)]
        if any(len(self.pool.free[j]) < wanted[j] or not self.pool.is_up[j] for j in nodes):
            return
        slots = {j: self.pool.take(j, int(wanted[j])) for j in nodes}
        n_gpus = sum(map(len, slots.values()))
        plan = self._decisions.speed.plan(job.idx, len(slots), n_gpus, job.samples, job.work)
        generation = Generation(job.number + 1, slots, now_s, plan)
        try:
            job.begin(generation)
        except OSError as error:
            self.ledger_failed(error)
            return
        self._decisions.started(job.idx, now_s)
        where = ";".join(f"{self.pool.names[j]}:{len(taken)}" for j, taken in slots.items())
        starts = partial(self._start_ranks, job, generation)
        self._ledger.begins(job.idx, job.number, where, lambda: self._spawn(starts()))

    async def _start_ranks(self, job: LiveJob, generation: Generation) -> None:
        try:
            met = await self.pool.meeting_point(list(generation.slots))
        except ConnectionError as error:
            for i in range(generation.n_gpus):
                self.ended(job.key(i), NO_START, str(error))
            return
        for node_idx, start in job.rank_starts(self.rules, met, cuda=self._run.settings.cuda):
            self.pool.start_rank(node_idx, start, job.warm)
        if generation.is_stopping:
            self._signal(job, signal.SIGTERM)

    def _watch(self, job: LiveJob, generation: Generation, now_s: float) -> None:
        """Kill what is silent or does not stop."""
        if generation.has_ended:
            return
        rules = self.rules
        if now_s >= generation.kill_s:
            generation.broken = generation.broken or generation.overdue()
            self._kill(job)
        elif generation.is_stopping or generation.broken or generation.is_finishing:
            return
        elif not generation.has_reported:
            if now_s - generation.started_s > rules.report_within_s:
                generation.is_silent = True
                generation.broken = f"never reported: no line in {rules.report_within_s:g} s"
                self._kill(job)
        elif now_s - generation.heard_s > (silent_s := max(job.silent_s(rules), generation.quiet_s)):
            job.silences += 1
            generation.broken = f"stopped reporting: no line for {silent_s:.3g} s{job.expected_gap(rules)}"
            self._kill(job)

    def _signal(self, job: LiveJob, number: signal.Signals) -> None:
        generation = job.current
        if generation is not None:
            for i, rank in enumerate(generation.ranks):
                if rank.code is None:
                    self.pool.signal_rank(job.key(i), number)

    def _kill(self, job: LiveJob) -> None:
        self._signal(job, signal.SIGKILL)

    # What nodes tell.

    def reported(self, rank: str, line: str) -> None:
        """A rank wrote a line."""
        found = self._find(rank)
        if found is None:
            return
        job, generation, i = found
        try:
            report = read_report(line.encode())
        except ValueError as error:
            self._note(job, f"rank {i} reports what is no report: {error}")
            return
        if report.error and generation.has_reported:  # else it tells why the rank does not begin, as it ends
            self._note(job, report.error)
        was_finishing = generation.is_finishing
        generation.heard(i, report, self.now_s)
        if generation.is_finishing and not was_finishing and not generation.is_stopping:
            generation.kill_s = self.now_s + self.rules.end_within_s
        if i == 0 and report.step >= 0:
            self._set_work(job, generation.work)
            if report.step_s > 0:
                at = job.idx, len(generation.slots), generation.n_gpus
                self._decisions.speed.report(*at, generation.plan, report)

    def ended(self, rank: str, code: int, why: str) -> None:
        """A rank ended."""
        self.pool.forget(rank)
        found = self._find(rank)
        if found is None:
            return
        job, generation, i = found
        generation.ended(i, code, why)
        if generation.has_ended:
            generation.ended_s = self.now_s
            self._spawn(self._settle(job, generation))
        elif code == 0 and generation.ranks[i].finished:
            return  # the others may have more to do
        elif code in (0, NOT_SAVED, PREEMPTED) or (generation.is_stopping and generation.has_reported):
            generation.kill_s = min(generation.kill_s, self.now_s + self.rules.grace_s)
        else:
            self._kill(job)  # the others wait for it for ever

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        """Stop the run at an error that nobody has foreseen: its jobs are kept at a checkpoint."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.stop(error)

    def said(self, text: str) -> None:
        """Something that the user should know."""
        self._say(text)

    def node_changed(self, node_idx: int, up: bool, why: str) -> None:
        """A node is there again, or is gone."""
        is_drained = self.pool.names[node_idx] in self._run.settings.drained
        self._decisions.node_changed(node_idx, up and not is_drained, self.now_s)
        self._say(why)
        for job in self.jobs:
            if not up and job.current is not None and node_idx in job.current.slots:
                job.current.lost = why
                self._kill(job)
        self._wake.set()

    def node_came(self, name: str, slots: int) -> None:
        """There is a further node; `node_changed` follows when it is up."""
        settings = replace(self._run.settings, slots={**self._run.settings.slots, name: slots})
        self._run.settings, self._run.listed = settings, self._run.listed.on(settings.slots)
        self._decisions.add_node(slots, self._run.listed.nodes[name].offer)
        self._spawn(self._ledger.change_settings(settings))

    def _find(self, key: str) -> tuple[LiveJob, Generation, int] | None:
        idx, number, rank = map(int, key.split("/"))
        job = self.jobs[idx]
        return None if job.current is None or job.number != number else (job, job.current, rank)

    # The end of a generation.

    async def _settle(self, job: LiveJob, generation: Generation) -> None:
        """Find the checkpoint from which the job goes on, and say what happened."""
        end = await asyncio.to_thread(end_of, job, generation)
        now_s = self.now_s
        self._account(now_s)
        had = -1 if job.checkpoint is None else job.samples
        job.gap_s = job.longest_gap_s
        job.checkpoint, job.current = end.checkpoint, None
        for node_idx, slots in generation.slots.items():
            self.pool.give_back(node_idx, slots)
        if generation.has_reported:
            self._decisions.restarts.add(job.idx, generation.restart_s)
        if end.verdict.ending is not Ending.FINISHED:
            self._set_work(job, job.work)
        predicted_s = float(self._decisions.admission_end_s[job.idx])
        where = ",".join(self.pool.names[j] for j in generation.slots)
        self._ledger.ended(end.record(job.idx, generation, predicted_s, now_s), where)
        job.silences = job.silences if generation.broken else 0
        if end.checkpoint is not None and end.checkpoint.samples > had:
            job.failures = 0
        elif end.problems and not generation.lost:
            job.failures += 1
        for problem in end.problems:
            is_told = problem == end.verdict.problem and self._fails(job, end.verdict)  # as why it fails
            if not is_told:
                self._note(job, end.goes_on_from(problem))
        self._go_on(job, end.verdict, now_s)
        self._wake.set()

    def _fails(self, job: LiveJob, verdict: Verdict) -> bool:
        return job.state == "active" and (verdict.is_final or job.failures > self.rules.retries)

    def _go_on(self, job: LiveJob, verdict: Verdict, now_s: float) -> None:
        if job.state != "active":
            return
        if verdict.ending is Ending.FINISHED:
            job.state = "done"
            self._set_work(job, job.spec.samples)
            self._decisions.finished(job.idx, now_s)
            self._ledger.job_ended(job.idx, "done", "")
        elif self._fails(job, verdict):
            self._give_up(job, "failed", verdict.problem or job.problems[-1])
        elif job.failures:
            job.retry_s = now_s + self.rules.retry_s * 2.0 ** (job.failures - 1)

    def _give_up(self, job: LiveJob, state: Any, why: str) -> None:
        job.state = state
        if why not in job.problems:
            job.problems.append(why)
        self._decisions.failed(job.idx, why, self.now_s)
        self._ledger.job_ended(job.idx, state, why)
        self._say(f"{job.spec.id}: {state}: {why}")

    # Books.

    def _account(self, now_s: float) -> None:
        times = []
        for job in self.jobs:
            generation = job.current
            if generation is not None and now_s > generation.accounted_s:
                gpus = np.zeros(len(self.pool.names), np.int64)
                for j, slots in generation.slots.items():
                    gpus[j] = len(slots)
                seconds_s = now_s - generation.accounted_s
                idle_s = 0.0 if generation.makes_progress else seconds_s
                times.append(SlotTime(job.idx, gpus, seconds_s, idle_s))
                generation.accounted_s = now_s
        self._decisions.held(times)

    def _set_work(self, job: LiveJob, work: float) -> None:
        self._decisions.done.work[job.idx] = work

    def _note(self, job: LiveJob, problem: str) -> None:
        if problem not in job.problems[-3:]:
            job.problems.append(problem)
            self._say(f"{job.spec.id}: {problem}")

    def ledger_failed(self, error: BaseException) -> None:
        """Something could not be kept: stop, while the jobs' own checkpoints still can be."""
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        self.stop(TrimtabError(f"the run cannot be recorded, so its jobs are stopped: {reason}"))

    def records(self) -> JobRecords:
        """The records of the run, in the form of a simulated one."""
        return self._decisions.records(self.now_s)

    def rows(self) -> list[JobRow]:
        """All jobs, for a table."""
        return [job_row(job, self._decisions, self.now_s) for job in self.jobs]


def _same(generation: Generation, wanted: Any) -> bool:
    has = {j: len(slots) for j, slots in generation.slots.items()}
    return has == {int(j): int(wanted[j]) for j in np.flatnonzero(wanted)}
