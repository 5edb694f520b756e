"""Reasons for the end time of a recorded run, and changes that would make it end earlier."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from trimtab.chains.run_timeline import RunTimeline, StageRun
from trimtab.metrics.chain_metrics import waiting_path
from trimtab.words import counted

BUSY_FRAC = 0.8  # of the workers' time, from which on more of them are advised
MIB = float(1 << 20)
ENTERING = "waiting to enter"
REASONS = {
    "queue": "waiting for a worker",
    "retries": "attempts that failed or were lost",
    "transfer": "the way to the worker and reading inputs",
    "loading": "loading code and models",
    "service": "computing",
}


class Bottleneck(NamedTuple):
    """The stage that most of the time on the deciding paths is laid on.

    A wait for a worker, or to enter, is laid on the stages that the workers serve, by their shares in the
    workers' time. What waits for a limit of its own stage is laid on that.
    """

    stage: str
    path_frac: float
    seconds: dict[str, float]  # laid on it, by reason; `queue` is what any stage or input waited
    entering_s: float  # mean of the inputs' waits to enter
    advice: str


def critical_path(timeline: RunTimeline) -> list[StageRun]:
    """The steps that decided when the last input ended, first to last: each waited for the one before."""
    if not timeline.runs:
        return []
    return [timeline.runs[row] for row in waiting_path(timeline.records, timeline.runs[-1].number)]


class PathRow(NamedTuple):
    """A row of the critical path: waiting to enter, or an instance of a stage."""

    name: str
    number: int  # of the input
    worker: str
    waits_s: dict[str, float]  # by reason


def path_rows(timeline: RunTimeline) -> list[PathRow]:
    """The critical path. That its first input waited to enter is a row of its own."""
    rows = []
    for run in critical_path(timeline):
        waits_s = run.waits_s
        if entering_s := waits_s.pop("entering"):
            rows.append(PathRow(ENTERING, run.number, "", {"queue": entering_s}))
        name = f"{timeline.stages[run.stage].name}[{run.instance}]"
        rows.append(PathRow(name, run.number, f"{run.node} {run.worker}", waits_s))
    return rows


def found_bottleneck(timeline: RunTimeline) -> Bottleneck | None:
    """The bottleneck of a run; None without a result."""
    if not timeline.runs:
        return None
    filled, laid = _filled(timeline), [dict.fromkeys(REASONS, 0.0) for _ in timeline.stages]
    rows, entering_s = _deciding(timeline), 0.0
    for run in rows:
        waits_s = run.waits_s
        entering_s += (entered_s := waits_s.pop("entering"))
        waited_s = entered_s + waits_s.pop("queue")
        for reason, spent_s in waits_s.items():
            laid[run.stage][reason] += spent_s
        own = timeline.stages[run.stage]
        shares = {run.stage: 1.0} if own.concurrency or own.rate_per_s else filled[run.node]
        for stage, share in shares.items():
            laid[stage]["queue"] += share * waited_s
    totals_s = [sum(seconds.values()) for seconds in laid]
    k = max(range(len(laid)), key=totals_s.__getitem__)
    reason = max(laid[k], key=laid[k].__getitem__)
    return Bottleneck(
        timeline.stages[k].name,
        totals_s[k] / max(1e-12, sum(totals_s)),
        laid[k],
        entering_s / len({run.number for run in rows}),
        _advice(timeline, k, reason),
    )


def _deciding(timeline: RunTimeline) -> list[StageRun]:
    """What decided when each input ended."""
    found, last = [], {run.number: row for row, run in enumerate(timeline.runs)}  # of each input
    for row in last.values():
        while row >= 0:
            found.append(timeline.runs[row])
            row = timeline.runs[row].waited_for
    return found


def _filled(timeline: RunTimeline) -> dict[str, dict[int, float]]:
    """Of each node, the shares of stages in the time of its workers."""
    busy_s: defaultdict[str, defaultdict[int, float]] = defaultdict(lambda: defaultdict(float))
    for run in timeline.runs:
        busy_s[run.node][run.stage] += run.finish_s - run.start_s
    return {
        node: {stage: own_s / max(1e-12, sum(stages.values())) for stage, own_s in stages.items()}
        for node, stages in busy_s.items()
    }


def bottleneck_text(found: Bottleneck) -> str:
    """The bottleneck and the advice in words."""
    total_s = max(1e-12, sum(found.seconds.values()))
    shares = sorted(found.seconds.items(), key=lambda item: -item[1])
    parts = [(name, seconds / total_s) for name, seconds in shares if seconds >= 0.01 * total_s]
    words = {**REASONS, "queue": "what waited for a worker"}
    told = ", ".join(f"{100 * share:.0f} % {words[name]}" for name, share in parts)
    return (
        f"{found.stage} is the bottleneck: {100 * found.path_frac:.0f} % of the time on the paths that "
        f"decide when inputs end is laid on it ({told}). Inputs waited {found.entering_s:.3g} s to enter on "
        f"average. {found.advice}"
    )


def _advice(timeline: RunTimeline, k: int, reason: str) -> str:
    stage, runs = timeline.stages[k], [run for run in timeline.runs if run.stage == k]
    if reason == "queue":
        return _queue_advice(timeline, k)
    if reason == "retries":
        lost = sum(run.attempts - 1 for run in runs)
        came = f"{counted(lost, 'attempt')} at {stage.name} came to nothing"
        return f"{came}: see what `trimtab chain show` says of it."
    if reason == "transfer":
        mib = sum(run.bytes for run in timeline.runs) / len(timeline.runs) / MIB
        return (
            f"Values have {mib:.3g} MiB on average: pass on only what the next stage reads, keep the stages "
            "on one machine, or do more in one stage."
        )
    if reason == "loading":
        return (
            f"Each worker loads {stage.name} once: keep a session open over several runs, or give the stage "
            "to fewer workers with a label or a resource."
        )
    mean_s = sum(run.finish_s - run.service_start_s for run in runs) / len(runs)
    return (
        f"A call of {stage.name} takes {mean_s:.3g} s: make it faster, give it more of the machine, or map "
        "it over parts so that several workers share it."
    )


def _queue_advice(timeline: RunTimeline, k: int) -> str:
    stage = timeline.stages[k]
    if stage.concurrency or stage.rate_per_s:
        limits = [f"concurrency={stage.concurrency}"] if stage.concurrency else []
        limits += [f"rate_per_s={stage.rate_per_s:g}"] if stage.rate_per_s else []
        return f"Its own limit {' and '.join(limits)} holds it back: raise it."
    busy_frac, workers = timeline.busy_frac(), len(timeline.workers)
    used = f"{counted(workers, 'worker')}, busy {100 * busy_frac:.0f} % of the time"
    if busy_frac >= BUSY_FRAC:
        seconds: defaultdict[int, float] = defaultdict(float)
        for run in timeline.runs:
            seconds[run.stage] += run.finish_s - run.start_s
        share = 100 * seconds[k] / max(1e-12, sum(seconds.values()))
        return f"{used}: add workers, or make {stage.name} faster, which takes {share:.0f} % of their time."
    return (
        f"{used}, and yet it waited: it fits too few of them at a time (resources, labels), or calls are too "
        "short for the way to a worker."
    )
