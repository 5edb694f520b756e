"""How long a comparison takes: measured on short runs of the same work, corrected by the runs that ended."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from trimtab.errors import TrimtabError
from trimtab.experiments.compare.kind import AnyKind, Inputs, PolicySpec, Settings
from trimtab.experiments.compare.tasks import Task, TaskResult
from trimtab.words import counted, duration_text

LONG_S: Final = 30.0
SHORT_COST_FRAC: Final = 0.01  # of the comparison's own work, in short runs
MOST_SHORT_FRAC: Final = 0.1  # of the items of a run, in a short run
MEASURED_S: Final = 5.0  # after which no further policy is measured
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


def short_items(kind: AnyKind, n_items: int, n_runs: int, policies: int) -> int | None:
    """Items of a short run that tells how long all take; None for little work, where it tells nothing."""
    short = min(
        max(int(n_items * SHORT_COST_FRAC * n_runs / policies), LEAST_ITEMS),
        int(n_items * MOST_SHORT_FRAC),
    )
    if short < LEAST_ITEMS or n_runs * n_items <= kind.sweep_up_to:  # less work than one large run
        return None
    return short


def expected_of(
    kind: AnyKind, settings: Settings, policies: Sequence[PolicySpec], n_items: int, short: int, mode: str
) -> Expected | None:
    """Expected times, from a run of each policy on `short` items and one on half of them.

    Once this took `MEASURED_S`, the policies that are left count as the mean of the others. None for work
    that cannot be shortened.
    """
    begun_s = time.monotonic()
    run_s: dict[str, float] = {}
    record_bytes = 0.0
    try:
        _built(kind, settings, short // 2)  # reads files
        (half, half_s), (whole, whole_s) = (_built(kind, settings, items) for items in (short // 2, short))
        sizes = len(half), len(whole), n_items
        for policy in policies:
            if run_s and time.monotonic() - begun_s > MEASURED_S:
                break
            _timed(kind, half, policy, mode)  # loads what is compiled
            (of_half, half_run_s), (of_whole, whole_run_s) = (
                _timed(kind, inputs, policy, mode) for inputs in (half, whole)
            )
            run_s[kind.canonical(policy)] = _grown(half_run_s, whole_run_s, *sizes)
            if not record_bytes:
                record_bytes = _grown(
                    _table_bytes(kind, half, of_half), _table_bytes(kind, whole, of_whole), *sizes
                )
    except TrimtabError:  # if it is not because the work is short, the comparison will say it
        return None
    mean_s = sum(run_s.values()) / len(run_s)
    of_each = {name: run_s.get(name, mean_s) for name in map(kind.canonical, policies)}
    return Expected(_grown(half_s, whole_s, *sizes), of_each, record_bytes)


def _built(kind: AnyKind, settings: Settings, items: int) -> tuple[Inputs, float]:
    """Inputs of fewer items, and seconds of this process: others may use the machine too."""
    begun_s = time.process_time()
    shorter = kind.shortened(settings, items)
    inputs: Inputs = kind.build(shorter, shorter.seed_list()[0], None)
    return inputs, time.process_time() - begun_s


def _timed(kind: AnyKind, inputs: Inputs, policy: PolicySpec, mode: str) -> tuple[Any, float]:
    """The records of a run, and seconds of this process."""
    begun_s = time.process_time()
    records = kind.run(inputs, policy, mode)
    kind.measure(records)
    return records, time.process_time() - begun_s


def _table_bytes(kind: AnyKind, inputs: Inputs, records: Any) -> int:
    file = io.BytesIO()
    kind.table(inputs, records).write_parquet(file, compression="zstd")
    return file.tell()


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
    made yet. A run that already takes long, and longer than its policy's others, counts as one of them; less
    time may be the start of a process.

    Args:
        running_s: task that runs → for how long it has.
        at_once: tasks that run at a time.
    """
    ended = [(task, result) for task, result in zip(tasks, results, strict=True) if result is not None]
    if not ended and expected is None:
        return None
    took_s = [(task.name, result.run_s) for task, result in ended]
    expected_s = {} if expected is None else expected.run_s
    run_s = _run_times(took_s, expected_s)
    slow = [(tasks[i].name, so_far_s) for i, so_far_s in running_s.items() if so_far_s > LONG_S]
    late = [(name, so_far_s) for name, so_far_s in slow if so_far_s > run_s(name)]
    run_s = _run_times([*took_s, *late], expected_s)
    left = [i for i, result in enumerate(results) if result is None]
    total_s = sum(max(run_s(tasks[i].name) - running_s.get(i, 0.0), 0.0) for i in left)
    begun = {task.inputs for task, _ in ended} | {tasks[i].inputs for i in running_s}
    unbuilt = {tasks[i].inputs for i in left} - begun
    return (total_s + len(unbuilt) * _build_time(ended, expected)) / at_once


def _run_times(
    took_s: Sequence[tuple[str, float]], expected_s: Mapping[str, float]
) -> Callable[[str], float]:
    """Policy → seconds of a run of it."""
    took: dict[str, list[float]] = {}
    for name, each_s in took_s:
        took.setdefault(name, []).append(each_s)
    mean_s = {name: sum(each) / len(each) for name, each in took.items()}
    known = [name for name in mean_s if name in expected_s]
    more_s = sum(mean_s[name] - expected_s[name] for name in known) / max(len(known), 1)
    other_s = sum(mean_s.values()) / max(len(mean_s), 1)
    return lambda name: mean_s.get(name, expected_s[name] + more_s if name in expected_s else other_s)


def _build_time(ended: Sequence[tuple[Task, TaskResult]], expected: Expected | None) -> float:
    if not ended:
        return 0.0 if expected is None else expected.build_s
    return sum(result.build_s for _, result in ended) / len({task.inputs for task, _ in ended})
