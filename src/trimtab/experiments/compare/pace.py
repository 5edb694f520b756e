"""How long a comparison takes: measured on short runs of the same work, corrected by the runs that ended."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trimtab.errors import TrimtabError
from trimtab.experiments.compare.kind import AnyKind, PolicySpec, Settings
from trimtab.experiments.compare.tasks import Task, TaskResult
from trimtab.words import counted, duration_text

LONG_S: Final = 30.0
SHORT_COST_FRAC: Final = 0.01  # of the comparison's own work, in short runs
MOST_SHORT_FRAC: Final = 0.1  # of the items of a run, in a short run
LEAST_ITEMS: Final = 10  # of a short run; fewer tell nothing


@dataclass(frozen=True, slots=True)
class PlannedRuns:
    """What a comparison will run."""

    policies: int
    seeds: int
    loads: int  # the settings' own, and those of the sweep
    n_items: int
    items: str  # their name
    elapsed_s: float | None  # expected; None where it could not be measured
    disk_bytes: float | None
    left_out: tuple[float, ...]  # loads that a comparison of so many items does not sweep by default
    sweep_up_to: int  # items

    @property
    def is_long(self) -> bool:
        """Whether it takes so long that a user may want to know before."""
        return self.elapsed_s is not None and self.elapsed_s >= LONG_S

    def __str__(self) -> str:
        work = " × ".join(
            (
                counted(self.policies, "policy", "policies"),
                counted(self.seeds, "seed"),
                counted(self.loads, "load"),
            )
        )
        cost = ""
        if self.elapsed_s is not None and self.disk_bytes is not None:
            cost = f": about {duration_text(self.elapsed_s)}, {self.disk_bytes / 1e6:,.0f} MB"
        return f"{work} of {self.n_items:,} {self.items}{cost}"


@dataclass(frozen=True, slots=True)
class Expected:
    """Expected seconds of making inputs and of a run of each policy, and bytes of its record."""

    build_s: float
    run_s: Mapping[str, float]
    record_bytes: float


def expected_of(
    kind: AnyKind, settings: Settings, policies: Sequence[PolicySpec], n_items: int, n_runs: int, mode: str
) -> Expected | None:
    """Expected times, from a short run of each policy and one of half its items.

    None for little work, where a short run has too few items to tell anything, and for work that cannot be
    shortened.
    """
    short = min(
        max(int(n_items * SHORT_COST_FRAC * n_runs / len(policies)), LEAST_ITEMS),
        int(n_items * MOST_SHORT_FRAC),
    )
    if short < LEAST_ITEMS or n_runs * n_items <= kind.sweep_up_to:  # less work than one large run
        return None
    try:
        _timed(kind, settings, policies, short // 2, mode)  # loads what is compiled, and files
        half = _timed(kind, settings, policies, short // 2, mode)
        whole = _timed(kind, settings, policies, short, mode)
    except TrimtabError:  # if it is not because the work is short, the comparison will say it
        return None
    build_s = _grown(half.build_s, whole.build_s, half.items, whole.items, n_items)
    run_s = {
        name: _grown(half.run_s[name], once_s, half.items, whole.items, n_items)
        for name, once_s in whole.run_s.items()
    }
    return Expected(
        build_s, run_s, _grown(half.record_bytes, whole.record_bytes, half.items, whole.items, n_items)
    )


@dataclass(frozen=True, slots=True)
class _Short:
    items: int
    build_s: float
    run_s: Mapping[str, float]
    record_bytes: int


def _timed(
    kind: AnyKind, settings: Settings, policies: Sequence[PolicySpec], items: int, mode: str
) -> _Short:
    """A run of each policy on fewer items, in seconds of this process: others may use the machine too."""
    begun_s = time.process_time()
    shorter = kind.shortened(settings, items)
    inputs = kind.build(shorter, shorter.seed_list()[0], None)
    build_s, run_s, record_bytes = time.process_time() - begun_s, {}, 0
    for policy in policies:
        begun_s = time.process_time()
        records = kind.run(inputs, policy, mode)
        kind.measure(records)
        run_s[kind.canonical(policy)] = time.process_time() - begun_s
        if record_bytes == 0:
            file = io.BytesIO()
            kind.table(inputs, records).write_parquet(file, compression="zstd")
            record_bytes = file.tell()
    return _Short(len(inputs), build_s, run_s, record_bytes)


def _grown(at_half: float, at_whole: float, half: int, whole: int, n_items: int) -> float:
    """A cost of `n_items`, on a line through two measured points, which leaves out fixed costs."""
    of_one = max(at_whole - at_half, 0.0) / max(whole - half, 1)
    return at_whole + of_one * (n_items - whole)


def left_s(
    tasks: Sequence[Task],
    results: Sequence[TaskResult | None],
    running_s: Mapping[int, float],
    expected: Expected | None,
    at_once: int,
) -> float | None:
    """Seconds until all tasks have ended; None while nothing is known.

    A policy whose runs have ended takes their mean. Others take what is expected of them, and as much more as
    the ended ones took in the mean; without an expectation, the mean of all ended. So do inputs that are not
    made yet.

    Args:
        running_s: task that runs → for how long it has.
        at_once: tasks that run at a time.
    """
    ended = [(task, result) for task, result in zip(tasks, results, strict=True) if result is not None]
    if not ended and expected is None:
        return None
    run_s = _run_times(ended, {} if expected is None else expected.run_s)
    left = [i for i, result in enumerate(results) if result is None]
    total_s = sum(max(run_s(tasks[i].name) - running_s.get(i, 0.0), 0.0) for i in left)
    begun = {task.inputs for task, _ in ended} | {tasks[i].inputs for i in running_s}
    unbuilt = {tasks[i].inputs for i in left} - begun
    return (total_s + len(unbuilt) * _build_time(ended, expected)) / at_once


def _run_times(
    ended: Sequence[tuple[Task, TaskResult]], expected_s: Mapping[str, float]
) -> Callable[[str], float]:
    """Policy → seconds of a run of it."""
    took: dict[str, list[float]] = {}
    for task, result in ended:
        took.setdefault(task.name, []).append(result.run_s)
    mean_s = {name: sum(each) / len(each) for name, each in took.items()}
    known = [name for name in mean_s if name in expected_s]
    more_s = sum(mean_s[name] - expected_s[name] for name in known) / max(len(known), 1)
    other_s = sum(mean_s.values()) / max(len(mean_s), 1)
    return lambda name: mean_s.get(name, expected_s[name] + more_s if name in expected_s else other_s)


def _build_time(ended: Sequence[tuple[Task, TaskResult]], expected: Expected | None) -> float:
    if not ended:
        return 0.0 if expected is None else expected.build_s
    return sum(result.build_s for _, result in ended) / len({task.inputs for task, _ in ended})
