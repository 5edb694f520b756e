"""Reasons for the end time of a recorded run, and changes that would make it end earlier."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from trimtab.chains.run_timeline import RunTimeline, StageRun
from trimtab.metrics.chain_metrics import waiting_path
from trimtab.metrics.stage_summaries import bottleneck
from trimtab.words import counted

BUSY_FRAC = 0.8  # of the workers' time, from which on more of them are advised
MIB = float(1 << 20)
REASONS = {
    "queue": "waiting for a worker",
    "retries": "attempts that failed or were lost",
    "transfer": "the way to the worker and reading inputs",
    "loading": "loading code and models",
    "service": "computing",
}


class Bottleneck(NamedTuple):
    """The stage that takes most of the time on the deciding paths, and what it spends it on."""

    stage: str
    path_frac: float
    seconds: dict[str, float]  # on the deciding paths, by reason
    advice: str


def critical_path(timeline: RunTimeline) -> list[StageRun]:
    """The steps that decided when the last input ended, first to last: each waited for the one before."""
    if not timeline.runs:
        return []
    return [timeline.runs[row] for row in waiting_path(timeline.records, timeline.runs[-1].number)]


def found_bottleneck(timeline: RunTimeline) -> Bottleneck | None:
    """The bottleneck of a run; None without a result."""
    if not timeline.runs:
        return None
    first = bottleneck(timeline.summaries)
    k = [stage.name for stage in timeline.stages].index(first.stage)
    seconds = dict.fromkeys(REASONS, 0.0)
    last = {run.number: row for row, run in enumerate(timeline.runs)}  # of each input
    for row in last.values():
        while row >= 0:
            if timeline.runs[row].stage == k:
                for reason, spent_s in timeline.runs[row].waits_s.items():
                    seconds[reason] += spent_s
            row = timeline.runs[row].waited_for
    reason = max(seconds, key=lambda name: seconds[name])
    return Bottleneck(first.stage, first.path_frac, seconds, _advice(timeline, k, reason))


def bottleneck_text(found: Bottleneck) -> str:
    """The bottleneck and the advice in words."""
    total_s = max(1e-12, sum(found.seconds.values()))
    shares = sorted(found.seconds.items(), key=lambda item: -item[1])
    parts = [(name, seconds / total_s) for name, seconds in shares if seconds >= 0.01 * total_s]
    told = ", ".join(f"{100 * share:.0f} % {REASONS[name]}" for name, share in parts)
    return (
        f"{found.stage} is the bottleneck: {100 * found.path_frac:.0f} % of the time on the paths that "
        f"decide when inputs end ({told}). {found.advice}"
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
        longest, taken_s = max(seconds.items(), key=lambda item: item[1])
        share = 100 * taken_s / max(1e-12, sum(seconds.values()))
        name = timeline.stages[longest].name
        return f"{used}: add workers, or make {name} faster, which takes {share:.0f} % of their time."
    return (
        f"{used}, and yet it waited: it fits too few of them at a time (resources, labels), or calls are too "
        "short for the way to a worker."
    )
