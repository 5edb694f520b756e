"""Obeys the commands that other processes leave for a run: about its jobs, and about its nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from trimtab.training.runner import run_commands
from trimtab.training.runner.job_list import JobSpec, too_large
from trimtab.training.runner.live_decisions import LiveDecisions
from trimtab.training.runner.live_job import LiveJob, job_folder
from trimtab.training.runner.run_commands import Answer, Command
from trimtab.training.runner.run_ledger import KnownRun, RunLedger
from trimtab.training.runner.slot_pool import SlotPool


@dataclass(frozen=True, slots=True)
class ObeyedCommands:
    """The part of a run that commands change. What they change is kept before they are answered."""

    run: KnownRun
    ledger: RunLedger
    decisions: LiveDecisions
    pool: SlotPool
    jobs: list[LiveJob]
    give_up: Callable[[LiveJob, str, str], None]
    now: Callable[[], float]  # seconds of the run

    async def obey(self) -> tuple[str, ...]:
        """Obey what waits; what was done, in words. Raises OSError."""
        done: tuple[str, ...] = ()
        for path in run_commands.waiting(self.ledger.run_folder):
            read = run_commands.read(path)
            answer = read if isinstance(read, Answer) else await self._obey(read)
            run_commands.answered(path, answer)
            done += answer.done
        return done

    async def _obey(self, command: Command) -> Answer:
        if command.do == "add":
            return await self._add(command.jobs)
        nodes, jobs = command.do in ("drain", "undrain"), {job.spec.id: job for job in self.jobs}
        known = set(self.pool.names) if nodes else set(jobs)
        kind, few = "node" if nodes else "job", ", ".join(sorted(known)[:8])
        names = [name for name in command.names if name in known]
        unknown = [name for name in command.names if name not in known]
        refused = [f"{name}: no such {kind}; expected one of {few}" for name in unknown]
        if nodes:
            done = await self._drain(names, is_drained=command.do == "drain")
            return Answer(done=done, refused=tuple(refused))
        over = [name for name in names if jobs[name].state not in ("pending", "active")]
        refused += [f"{name}: is over: {jobs[name].state}" for name in over]
        these = [jobs[name] for name in names if name not in over]
        if command.do == "cancel":
            for job in these:
                self.give_up(job, "cancelled", "by command")
            return Answer(done=tuple(f"{job.spec.id}: cancelled" for job in these), refused=tuple(refused))
        for job in these:
            job.spec = job.spec.model_copy(update={"priority": command.priority})
            self._set_spec(job)
            await self.ledger.change_job(job.idx, job.spec)
            self.decisions.prioritise(job.idx, command.priority, self.now())
        done = tuple(f"{job.spec.id}: priority {command.priority}" for job in these)
        return Answer(done=done, refused=tuple(refused))

    def _set_spec(self, job: LiveJob) -> None:
        specs = list(self.run.listed.jobs)
        specs[job.idx] = job.spec
        self.run.listed = self.run.listed.model_copy(update={"jobs": tuple(specs)})

    async def _add(self, jobs: tuple[JobSpec, ...]) -> Answer:
        first, now_s = len(self.jobs), self.now()
        known = {job.spec.id for job in self.jobs}
        refused = [f"{job.id}: there is a job of this id" for job in jobs if job.id in known]
        reasons = zip(jobs, too_large(jobs, self.run.listed), strict=True)
        refused += [f"{job.id}: {reason}" for job, reason in reasons if reason]
        if refused:
            return Answer(refused=tuple(refused))  # all or none: the file can be sent again
        specs = tuple(_from_now(job, now_s) for job in jobs)
        await self.ledger.add_jobs(first, specs)
        self.run.listed = self.run.listed.model_copy(update={"jobs": self.run.listed.jobs + specs})
        folder = self.ledger.run_folder
        self.jobs.extend(LiveJob(k, spec, job_folder(folder, spec.id)) for k, spec in enumerate(specs, first))
        self.decisions.grow(self.run.listed.jobs)
        return Answer(done=tuple(f"{spec.id}: added" for spec in specs))

    async def _drain(self, names: list[str], *, is_drained: bool) -> tuple[str, ...]:
        before = self.run.settings.drained
        kept = tuple(name for name in before if name not in names) + (tuple(names) if is_drained else ())
        self.run.settings = replace(self.run.settings, drained=kept)
        await self.ledger.change_settings(self.run.settings)
        for name in names:
            node_idx = self.pool.names.index(name)
            is_up = self.pool.is_up[node_idx] and not is_drained
            self.decisions.node_changed(node_idx, is_up, self.now())
        what = "gets no more jobs; those on it move" if is_drained else "gets jobs again"
        return tuple(f"node {name}: {what}" for name in names)


def _from_now(job: JobSpec, now_s: float) -> JobSpec:
    """The job with times that count from the begin of the run."""
    deadline_s = None if job.deadline_s is None else now_s + job.deadline_s
    return job.model_copy(update={"submit_s": now_s + job.submit_s, "deadline_s": deadline_s})
