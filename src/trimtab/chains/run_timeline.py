"""When the stages of a recorded run waited, were sent, loaded and computed, and on which worker.

All of it comes from the journal, so a run can be looked at while it goes on, and long after it.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from trimtab.chains.graph import Chain
from trimtab.domain.chains import Flow
from trimtab.jobs.run_journal import RunJournal
from trimtab.jobs.run_rows import ACTIVE, AttemptRecord, InputRecord, ResultRecord, RunRecord
from trimtab.metrics import StageRecords
from trimtab.metrics.chain_metrics import StageSummary, stage_summaries


@dataclass(frozen=True, slots=True)
class StageShape:
    """The record of a stage of a run's chain: its inputs, and its limits."""

    name: str
    after: Mapping[str, Flow]
    concurrency: int = 0
    rate_per_s: float = 0.0


class StageRun(NamedTuple):
    """An instance of a stage that has its result. Times are seconds since the run began."""

    number: int  # of the input
    stage: int
    instance: int
    attempts: int
    node: str
    worker: str
    ready_s: float  # its inputs were there
    first_s: float  # its first attempt was about to be sent
    sent_s: float  # the attempt that has the result was
    start_s: float  # a worker took it
    service_start_s: float  # what it needs was loaded
    finish_s: float
    bytes: int
    waited_for: int  # position of the one whose output came last; -1 = it has no inputs

    @property
    def waits_s(self) -> dict[str, float]:
        """Seconds by what it waited for, then those of its service."""
        waits_s = self.first_s - self.ready_s
        enters = self.waited_for < 0
        return {
            "entering": waits_s if enters else 0.0,
            "queue": 0.0 if enters else waits_s,
            "retries": self.sent_s - self.first_s,
            "transfer": self.start_s - self.sent_s,
            "loading": self.service_start_s - self.start_s,
            "service": self.finish_s - self.service_start_s,
        }


@dataclass(frozen=True)
class RunTimeline:
    """A run of the journal. `runs` are in the order in which they finished."""

    record: RunRecord
    stages: tuple[StageShape, ...]
    runs: tuple[StageRun, ...]
    open_attempts: tuple[AttemptRecord, ...]  # without a result
    running: frozenset[AttemptRecord]  # of them; the others failed or were lost
    inputs: Mapping[str, int]  # how many, by state
    failures: Mapping[int, str]
    end_s: float  # of the run; of one that goes on, until now

    @property
    def workers(self) -> list[tuple[str, str]]:
        """Nodes and their workers."""
        return sorted({(run.node, run.worker) for run in self.runs})

    def busy_frac(self) -> float:
        """Share of the time in which workers loaded or computed; nan without a result."""
        if not self.runs:
            return float("nan")
        spans_s = max(run.finish_s for run in self.runs) - min(run.start_s for run in self.runs)
        busy_s = sum(run.finish_s - run.start_s for run in self.runs)
        return busy_s / max(1e-9, spans_s * len(self.workers))

    def inputs_of(self) -> list[list[int]]:
        """For each of `runs` the positions of those whose outputs it read."""
        rows: defaultdict[tuple[int, int], dict[int, int]] = defaultdict(dict)
        for row, run in enumerate(self.runs):
            rows[run.number, run.stage][run.instance] = row
        numbers = {stage.name: k for k, stage in enumerate(self.stages)}
        found = []
        for run in self.runs:
            read: list[int] = []
            for name, flow in self.stages[run.stage].after.items():
                before = rows.get((run.number, numbers[name]), {})
                if flow is Flow.ALL:
                    read += before.values()
                elif run.instance in before:
                    read.append(before[run.instance])
            found.append(read)
        return found

    @cached_property
    def records(self) -> StageRecords:
        """The same as the simulator's records. Its runs are the inputs."""
        nodes = sorted({run.node for run in self.runs})

        def column(name: str) -> Any:
            return np.array([getattr(run, name) for run in self.runs], np.float64)

        return StageRecords(
            names=tuple(stage.name for stage in self.stages),
            is_last=np.array([not self._followers(stage.name) for stage in self.stages], np.bool_),
            stage_idx=np.array([run.stage for run in self.runs], np.int64),
            run_idx=np.array([run.number for run in self.runs], np.int64),
            ready_s=column("ready_s"),
            start_s=column("start_s"),
            service_start_s=column("service_start_s"),
            finish_s=column("finish_s"),
            node_idx=np.array([nodes.index(run.node) for run in self.runs], np.int64),
            moved_gib=np.zeros(len(self.runs)),
            best_work_s=column("finish_s") - column("service_start_s"),
            waited_for=np.array([run.waited_for for run in self.runs], np.int64),
        )

    @cached_property
    def summaries(self) -> list[StageSummary]:
        """The stages, as the simulator reports them; none without a result."""
        if not self.runs:
            return []
        most = max(run.number for run in self.runs)
        return stage_summaries(self.records, np.ones(most + 1, np.bool_))

    def _followers(self, name: str) -> list[str]:
        return [stage.name for stage in self.stages if name in stage.after]


def shapes_of(chain: Chain) -> list[dict[str, Any]]:
    """The stages of a chain, as JSON for the journal."""
    return [
        {
            "name": step.name,
            "after": {chain.steps[k].name: "each" if each else "all" for k, each in step.after.items()},
            "concurrency": step.stage.stage_options.concurrency,
            "rate_per_s": step.stage.stage_options.rate_per_s,
        }
        for step in chain.steps
    ]


async def timeline_of(journal: RunJournal, run_id: str) -> RunTimeline:
    """The journal's records of a run. Raises UsageError if there are none."""
    record = await journal.find(run_id)
    attempts, results = await journal.attempts(run_id), await journal.results(run_id)
    return made_timeline(record, await journal.inputs(run_id), attempts, results)


def made_timeline(
    record: RunRecord,
    inputs: Sequence[InputRecord],
    attempts: Sequence[AttemptRecord],
    results: Sequence[ResultRecord],
) -> RunTimeline:
    """The timeline of what the journal has."""
    stages = stages_of(record, attempts)
    number = {stage.name: k for k, stage in enumerate(stages)}
    begun: defaultdict[tuple[int, str, int], dict[int, AttemptRecord]] = defaultdict(dict)
    for attempt in attempts:
        if attempt.stage in number:
            begun[attempt[:3]][attempt.attempt] = attempt
    runs: list[StageRun] = []
    ends = _Ends(stages, runs)
    for result in sorted(results, key=lambda r: r.ended_s):
        if result.stage in number:
            tried = begun[result[:3]]
            runs.append(_run(result, number[result.stage], tried, ends, record.created_s))
            ends.add(len(runs) - 1)
    active = {row.number for row in inputs if row.state == ACTIVE} if record.owner else set()
    kept = {r[:3]: r.attempt for r in results}
    states = [row.state for row in inputs]
    open_attempts = tuple(
        a for at, tried in begun.items() for n, a in sorted(tried.items()) if n != kept.get(at)
    )
    last = [tried[max(tried)] for at, tried in begun.items() if at not in kept]
    return RunTimeline(
        record=record,
        stages=stages,
        runs=tuple(_with_workers(runs)),
        open_attempts=open_attempts,
        running=frozenset(a for a in last if a.number in active),  # only the last can still run
        inputs={state: states.count(state) for state in dict.fromkeys(states)},
        failures={row.number: row.error for row in inputs if row.error},
        end_s=(record.ended_s or time.time()) - record.created_s,
    )


def stages_of(record: RunRecord, attempts: Sequence[AttemptRecord]) -> tuple[StageShape, ...]:
    """The stages of a recorded run. Runs that earlier versions recorded have them without what they read."""
    told = json.loads(record.options).get("stages")
    if told is None:
        return tuple(StageShape(name, {}) for name in dict.fromkeys(a.stage for a in attempts))
    return tuple(
        StageShape(
            stage["name"],
            {name: Flow[flow.upper()] for name, flow in stage["after"].items()},
            stage["concurrency"],
            stage["rate_per_s"],
        )
        for stage in told
    )


class _Ends:
    """Which result came last among those that an instance reads.

    What was skipped, or answered by a kept result, has no row: then what it would have read counts.
    """

    def __init__(self, stages: Sequence[StageShape], runs: Sequence[StageRun]) -> None:
        self._stages, self._runs = stages, runs
        self._number = {stage.name: k for k, stage in enumerate(stages)}
        self._rows: dict[tuple[int, int, int], int] = {}
        self._last: dict[tuple[int, int], int] = {}  # of all instances so far

    def add(self, row: int) -> None:
        run = self._runs[row]
        self._rows[run.number, run.stage, run.instance] = row
        self._last[run.number, run.stage] = row

    def finish_s(self, row: int) -> float:
        return self._runs[row].finish_s

    def last(self, number: int, stage: int, instance: int) -> int:
        """Row of the last input; -1 = none."""
        found = -1
        for name, flow in self._stages[stage].after.items():
            before = self._number[name]
            if flow is Flow.ALL:
                row = self._last_of_all(number, before)
            elif (row := self._rows.get((number, before, instance), -1)) < 0:
                row = self.last(number, before, instance)
            found = self._later(found, row)
        return found

    def _last_of_all(self, number: int, stage: int) -> int:
        """Row of the last output of a stage, or of what its instances without a row read."""
        found = self._last.get((number, stage), -1)
        for name in self._stages[stage].after:
            found = self._later(found, self._last_of_all(number, self._number[name]))
        return found

    def _later(self, one: int, other: int) -> int:
        if one < 0 or other < 0:
            return max(one, other)
        return other if self._runs[other].finish_s > self._runs[one].finish_s else one


def _run(
    result: ResultRecord, stage: int, tried: Mapping[int, AttemptRecord], ends: _Ends, begun_s: float
) -> StageRun:
    finish_s = result.ended_s - begun_s
    service_start_s = finish_s - result.service_s
    start_s = service_start_s - result.load_s
    last = ends.last(result.number, stage, result.instance)
    ready_s = min(start_s, 0.0 if last < 0 else ends.finish_s(last))
    # An attempt that followed another one was noted before its inputs were there.
    sent = {n: min(start_s, max(ready_s, a.started_s - begun_s)) for n, a in tried.items()}
    return StageRun(
        result.number, stage, result.instance, len(tried), result.node, result.worker,
        ready_s, min(sent.values(), default=start_s), sent.get(result.attempt, start_s),
        start_s, service_start_s, finish_s, result.bytes, last,
    )  # fmt: skip


def _with_workers(runs: Sequence[StageRun]) -> list[StageRun]:
    """Where a backend names no workers, as many as run at a time on a node, by number."""
    named = list(runs)
    free_s: defaultdict[str, list[float]] = defaultdict(list)  # of each worker of a node, when it is free
    for row in sorted(range(len(runs)), key=lambda row: runs[row].start_s):
        run, ends_s = runs[row], free_s[runs[row].node]
        if not run.worker:
            worker = next((w for w, end_s in enumerate(ends_s) if end_s <= run.start_s), len(ends_s))
            ends_s[worker : worker + 1] = [run.finish_s]
            named[row] = run._replace(worker=f"{worker + 1}")
    return named
