"""Resources that this process may use on its machine, and whether a comparison fits them."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil

from trimtab.errors import UsageError
from trimtab.words import counted

BYTES_PER_ITEM = 600  # of a run: state, records, metrics
BYTES_PER_RUN = 8_000  # kept of each run by the comparison
BYTES_PER_RECORD = 40  # of an item, compressed on disk
CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")


def cores() -> int:
    """Processors that this process may use: by its affinity, and by the quota of its container."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [_quota_cores(folder) for folder in _folders("cpu")]
    return min([allowed, *(math.ceil(quota) for quota in quotas if quota)])


def memory_bytes() -> int:
    """Available memory of this machine, within the limits of this process's container."""
    limits = [_limit_bytes(folder) for folder in _folders("memory")]
    return min([int(psutil.virtual_memory().available), *(limit for limit in limits if limit is not None)])


def _folders(controller: str) -> Iterator[Path]:
    """Control groups, version 1 or 2, of this process, from the innermost outwards.

    In a container the innermost may be invisible; its limits are those of the outermost then.
    """
    for line in _text(OWN_CGROUPS).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = CGROUPS / controller if controllers else CGROUPS
        inmost = root / path.lstrip("/")
        yield from (folder for folder in (inmost, *inmost.parents) if folder.is_relative_to(root))


def _quota_cores(folder: Path) -> float | None:
    """CPU quota of a group, in processors."""
    quota, _, period = _text(folder / "cpu.max").strip().partition(" ")
    if not period:
        quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
    limit, of = _number(quota), _number(period)
    return limit / of if limit and of and limit > 0 else None


def _limit_bytes(folder: Path) -> int | None:
    """Memory limit of a group."""
    return _number(_text(folder / "memory.max") or _text(folder / "memory.limit_in_bytes"))


def _number(text: str) -> int | None:
    """The integer in a control file; None for `max`, or without the file."""
    try:
        return int(text)
    except ValueError:
        return None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def check_memory(n_runs: int, n_items: int, jobs: int, items: str) -> None:
    """Refuse, before any work, a comparison that does not fit into memory. Raises UsageError."""
    needed = n_runs * BYTES_PER_RUN + min(jobs, n_runs) * n_items * BYTES_PER_ITEM
    _check(
        f"{counted(n_runs, 'run')} of {n_items:,} {items}",
        items,
        needed,
        memory_bytes(),
        "this machine",
        "memory",
    )


def check_disk(out: Path, n_runs: int, n_items: int, items: str) -> None:
    """Refuse, before any work, records that do not fit on the disk of `out`. Raises UsageError."""
    total, _, present = shutil.disk_usage(next(p for p in (out, *out.absolute().parents) if p.exists()))
    if total == 0:  # no disk, such as /proc: a write there fails
        return
    work = f"{counted(n_runs, 'run')} of {n_items:,} {items}"
    _check(work, items, n_runs * n_items * BYTES_PER_RECORD, present, str(out), "free disk")


def _check(work: str, items: str, needed: int, present: int, owner: str, resource: str) -> None:
    if needed > present:
        raise UsageError(
            f"{work} need about {needed / 2**30:,.1f} GiB",
            field="seeds",
            expected=f"fewer seeds, loads or {items}: {owner} has {present / 2**30:,.1f} GiB of {resource}",
        )
