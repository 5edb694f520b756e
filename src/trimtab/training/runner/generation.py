"""A generation of a job: its ranks, what they report, and what their ends mean."""

from __future__ import annotations

import math
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from trimtab.training.runner.batch_plan import BatchPlan
from trimtab.training.runner.rank_protocol import NO_START, NOT_SAVED, PREEMPTED, Report


class Ending(StrEnum):
    """How a generation ended."""

    FINISHED = "finished"  # the job is done
    PREEMPTED = "preempted"  # it was stopped, or lost its node
    FAILED = "failed"


@dataclass(slots=True)
class RankState:
    """One process."""

    node_idx: int
    local: int  # its number on the node
    step: int = -1
    samples: int = -1
    stopped: int = -1  # step at which it said that it ends
    error: str = ""
    quiet_s: float = 0.0  # it said that it may be silent for so long
    finished: bool = False  # it has left its training loop with all samples done
    code: int | None = None  # None = it runs


@dataclass(frozen=True, slots=True)
class Verdict:
    """The end of a generation, from the ends of all its ranks."""

    ending: Ending
    problem: str = ""
    is_doubtful: bool = False  # the checkpoint at its end may not be what all ranks had
    is_final: bool = False  # another try would end alike
    rank: int = -1  # whose fault it is; -1 = no one rank's


@dataclass(slots=True)
class Generation:
    """The processes of a job between two changes of its GPUs."""

    number: int
    slots: Mapping[int, tuple[int, ...]]  # node → its slots
    started_s: float
    plan: BatchPlan  # how it trains, and where it goes on
    ranks: list[RankState] = field(default_factory=list)
    reported_s: float = math.nan  # first report; nan = none yet
    heard_s: float = math.nan  # last report
    stop_asked_s: float = math.nan
    kill_s: float = math.inf  # when SIGTERM, or the end of another rank, was not enough
    ended_s: float = math.nan
    lost: str = ""  # why it could not go on, by no fault of its own
    broken: str = ""  # why it was killed: a fault of its own
    is_silent: bool = False  # it never reported
    gap_s: float = math.nan  # longest time between two reports
    ends: list[int] = field(default_factory=list)  # ranks as they ended
    looked_s: float = 0.0  # when its batch was last looked at
    accounted_s: float = 0.0  # until when its time is in the books
    start_cost_s: float = math.nan  # from the start to the first step
    step_s: float = math.nan  # last reported means
    sync_s: float = math.nan
    grad_sqr: float = math.nan
    grad_var: float = math.nan
    samples: int = 0  # as far as reported, of the job
    step: int = 0

    def __post_init__(self) -> None:
        """A rank for each slot."""
        self.accounted_s = self.looked_s = self.started_s
        self.samples = self.plan.first_samples
        for node_idx, slots in self.slots.items():
            self.ranks += [RankState(node_idx, local) for local in range(len(slots))]

    @property
    def n_gpus(self) -> int:
        """Its slots."""
        return len(self.ranks)

    @property
    def work(self) -> float:
        """Work done, as far as reported, of the job."""
        return self.plan.work(self.samples)

    @property
    def is_stopping(self) -> bool:
        """Whether it was asked to stop."""
        return not math.isnan(self.stop_asked_s)

    @property
    def has_reported(self) -> bool:
        """Whether any rank has."""
        return not math.isnan(self.reported_s)

    @property
    def makes_progress(self) -> bool:
        """Whether it has reported, and was not asked to stop."""
        return self.has_reported and not self.is_stopping

    @property
    def has_ended(self) -> bool:
        """Whether all ranks have."""
        return all(rank.code is not None for rank in self.ranks)

    @property
    def is_finishing(self) -> bool:
        """Whether all ranks have left their training loop: the programs go on to their ends."""
        return all(rank.finished for rank in self.ranks)

    @property
    def quiet_s(self) -> float:
        """How long a rank said that it may be silent."""
        return max(rank.quiet_s for rank in self.ranks)

    @property
    def stops(self) -> set[int]:
        """Steps at which ranks said that they end."""
        return {rank.stopped for rank in self.ranks if rank.stopped >= 0}

    @property
    def restart_s(self) -> float:
        """The seconds of its start and its end, without progress."""
        start_s = 0.0 if math.isnan(self.start_cost_s) else self.start_cost_s
        return start_s + (self.ended_s - self.stop_asked_s if self.is_stopping else 0.0)

    def heard(self, rank: int, report: Report, now_s: float) -> None:
        """A rank reported."""
        state = self.ranks[rank]
        state.stopped = max(state.stopped, report.stopped)
        state.error = report.error or state.error
        state.finished = state.finished or report.finished
        if not math.isnan(report.quiet_s):
            self.heard_s, state.quiet_s = now_s, report.quiet_s
        if report.step < 0:
            return
        if self.has_reported and not self.quiet_s:
            self.gap_s = float(np.fmax(self.gap_s, now_s - self.heard_s))
        self.heard_s, state.quiet_s = now_s, 0.0
        if rank == 0:
            self.step, self.samples = max(self.step, report.step), max(self.samples, report.samples)
            for name in ("step_s", "sync_s", "grad_sqr", "grad_var"):
                value = getattr(report, name)
                if not math.isnan(value):
                    setattr(self, name, value)
        if not self.has_reported:
            self.reported_s = now_s
            steps = (self.samples - self.plan.first_samples) / self.plan.batch
            worked_s = 0.0 if math.isnan(self.step_s) else steps * self.step_s
            self.start_cost_s = max(now_s - self.started_s - worked_s, 0.0)

    def ended(self, rank: int, code: int, why: str) -> None:
        """A rank ended. `why` it did not start, else empty."""
        state = self.ranks[rank]
        state.code, state.error = code, why or state.error
        self.ends.append(rank)

    def overdue(self) -> str:
        """What is wrong as it has to be killed: nothing where it was asked to stop and did not."""
        left = next(i for i, rank in enumerate(self.ranks) if rank.code is None)
        if self.is_finishing:
            return "" if self.is_stopping else f"rank {left} did not end after its training loop"
        ended = [i for i, rank in enumerate(self.ranks) if rank.code in (0, PREEMPTED)]
        return f"ranks disagree: rank {ended[0]} ended, rank {left} went on" if ended else ""

    def verdict(self, log: str) -> Verdict:
        """The verdict on the ends of all ranks; `log` says where the output of a rank is."""
        codes = [rank.code for rank in self.ranks]
        if self.lost:
            return Verdict(Ending.PREEMPTED, self.lost)
        if self.broken:
            is_doubtful = len(self.stops) > self.is_finishing
            return Verdict(Ending.FAILED, self.broken, is_doubtful, self.is_silent)
        if set(codes) <= {0, PREEMPTED}:
            return self._agreed(codes)
        if NOT_SAVED in codes and set(codes) <= {PREEMPTED, NOT_SAVED}:
            problem = self.ranks[0].error or "its checkpoint could not be written"
            return Verdict(Ending.PREEMPTED if self.is_stopping else Ending.FAILED, problem)
        if self.is_stopping and set(codes) & {-signal.SIGTERM, -signal.SIGKILL}:
            return Verdict(Ending.PREEMPTED, self._stopped_hard(codes))
        return self._first_failure(log)

    def _agreed(self, codes: list[int | None]) -> Verdict:
        if len(set(codes)) > 1:
            ends = ", ".join(f"rank {i} with {code}" for i, code in enumerate(codes))
            return Verdict(Ending.FAILED, f"ranks disagree: they ended {ends}", True)
        if len(self.stops) > 1:
            at = ", ".join(f"rank {i} at step {rank.stopped}" for i, rank in enumerate(self.ranks))
            return Verdict(Ending.FAILED, f"ranks disagree: they stopped {at}", True)
        if codes[0] == 0:
            return Verdict(Ending.FINISHED)
        if not self.is_stopping:
            return Verdict(Ending.FAILED, f"ended with {PREEMPTED}, preempted, without a request to stop")
        return Verdict(Ending.PREEMPTED)

    def _stopped_hard(self, codes: list[int | None]) -> str:
        if not self.has_reported:
            return ""  # it had not begun
        if self.is_finishing:
            return "stopped after its training loop, before its program ended: that part runs again"
        if -signal.SIGTERM in codes:
            return "ended by SIGTERM: it wrote no checkpoint"
        return f"did not stop on SIGTERM: killed after {self.kill_s - self.stop_asked_s:.3g} s"

    def _first_failure(self, log: str) -> Verdict:
        """The rank that failed first: others failed because of it, or were killed."""
        failed = (i for i in self.ends if self.ranks[i].code not in (0, PREEMPTED))
        i = next(failed, self.ends[0])
        code, error = self.ranks[i].code, self.ranks[i].error
        assert code is not None
        how = f"by {_signal_name(-code)}" if code < 0 else f"with code {code}"
        after = " after its training loop" if self.ranks[i].finished else ""
        problem = f"rank {i} ended {how}{after}{error and f': {error}'}; see {log.format(rank=i)}"
        return Verdict(Ending.FAILED, problem, False, code == NO_START, -1 if error else i)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # one of the real-time signals
        return f"signal {number}"
