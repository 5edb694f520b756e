"""Holds an allocator to what there is: an allocation that breaks a rule stops the run, named."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, NoReturn

import numpy as np

from trimtab.compiled.kernel import kernel
from trimtab.domain.allocator import Allocation, Allocator
from trimtab.domain.training_jobs import Flags, Floats, GpuCluster, Held, Ints, Records
from trimtab.engine.policy_errors import place_of
from trimtab.errors import PolicyError
from trimtab.training.shared_gpus import is_second, partners_of
from trimtab.words import counted

TOLD: Final = 80  # characters of a wrong value in a message
_WHOLE: Final = frozenset({"gpus", "counts", "accumulation", "partner_row", "admitted"})
_ONE_EACH: Final = (
    "local_batch",
    "accumulation",
    "partner_row",
    "share_frac",
    "planned_end_s",
    "planned_finish_s",
)
_COLUMNS: Final = ("gpus", "counts", "admitted", *_ONE_EACH)

_RULES = (  # as in `first_broken`
    "takes its GPUs from the online service",
    "splits the gang of",
    "exceeds the most GPUs of",
    "scales the fixed",
)


class AllocationCheck:
    """Checks the allocations of one run. `ids` names the jobs in messages."""

    def __init__(self, allocator: Allocator, ids: tuple[str, ...]) -> None:
        self._allocator, self._ids = allocator, ids

    @property
    def n_jobs(self) -> int:
        """Jobs of the run."""
        return len(self._ids)

    def shape(self, jobs: Records, cluster: GpuCluster, made: object, now_s: float) -> Allocation:
        """What the allocator returned, with numbers of the right kind and shape, no more than there is.

        Either `gpus` or `counts`.
        """
        if not isinstance(made, Allocation):
            self._wrong(now_s, f"returned {_told(made)}; expected an Allocation")
        allocation = self._read(made, len(jobs), now_s)
        if (allocation.gpus is None) == (allocation.counts is None):
            self._wrong(now_s, "returned both gpus and counts, or neither; expected one of the two")
        given, columns = allocation.gpus, len(cluster.nodes)
        if allocation.counts is not None:
            given, columns = allocation.counts, len(cluster.type_names)
        assert given is not None
        if given.shape != (len(jobs), columns):
            self._wrong(now_s, f"returned shape {given.shape}; expected {(len(jobs), columns)}")
        if given.size and given.min() < 0:
            negative: Flags = np.any(given < 0, axis=1)
            self._stop(now_s, f"gave {self._name(jobs, int(np.argmax(negative)))} a negative number of GPUs")
        second = None
        if allocation.partner_row is not None:
            partner = partners_of(allocation, len(jobs))
            self._pairs(jobs, allocation, given, partner, now_s)
            second = is_second(partner)
        if allocation.counts is not None:
            used = (given if second is None else given[~second]).sum(axis=0)
            self._within(used, cluster.type_gpus, cluster.type_names.__getitem__, now_s)
        return allocation

    def _read(self, made: Allocation, n_jobs: int, now_s: float) -> Allocation:
        """The fields as arrays of their kinds."""
        wake_s = made.wake_s
        if isinstance(wake_s, bool) or not isinstance(wake_s, int | float | np.number) or math.isnan(wake_s):
            self._wrong(now_s, f"returned wake_s = {_told(wake_s)}; expected seconds")
        for name in ("rejected", "stopped", "reasons"):
            texts = getattr(made, name)
            if not isinstance(texts, Mapping) or not all(_is_row(row, n_jobs) for row in texts):
                self._wrong(
                    now_s, f"returned {name} = {_told(texts)}; expected rows of jobs with a text each"
                )
        given: dict[str, Any] = {}
        for name in _COLUMNS:
            if (column := getattr(made, name)) is not None:
                read = self._whole if name in _WHOLE else self._numbers
                given[name] = values = read(name, column, now_s)
                if name in _ONE_EACH and values.shape != (n_jobs,):
                    self._wrong(now_s, f"returned {name} of shape {values.shape}; expected {(n_jobs,)}")
        admitted = np.asarray(made.admitted)
        if "admitted" in given and (admitted.dtype.kind == "b" or not _are_rows(given["admitted"], n_jobs)):
            self._wrong(now_s, f"returned admitted = {_told(made.admitted)}; expected rows of jobs")
        is_as_read = all(values is getattr(made, name) for name, values in given.items())
        return made if is_as_read else replace(made, **given)

    def _numbers(self, name: str, given: object, now_s: float) -> Floats:
        try:
            values = np.asarray(given)
            numbers = values.astype(np.float64, copy=False)
        except (TypeError, ValueError):
            self._wrong(now_s, f"returned {name} = {_told(given)}; expected an array of numbers")
        if np.isnan(numbers).any():
            at = np.argwhere(np.isnan(numbers))[0].tolist()
            self._wrong(now_s, f"returned nan in {name}, at {at}; expected numbers")
        return numbers

    def _whole(self, name: str, given: object, now_s: float) -> Ints:
        if isinstance(given, np.ndarray) and given.dtype.kind in "iu":
            return given
        numbers = self._numbers(name, given, now_s)
        odd = np.argwhere(numbers != np.round(numbers))
        if len(odd) or np.isinf(numbers).any():
            at = odd[0].tolist() if len(odd) else np.argwhere(np.isinf(numbers))[0].tolist()
            self._wrong(now_s, f"returned {numbers[tuple(at)]:g} in {name}, at {at}; expected whole numbers")
        return numbers.astype(np.int64)

    def _pairs(self, jobs: Records, allocation: Allocation, given: Ints, partner: Ints, now_s: float) -> None:
        """Partners name each other, hold the same GPUs, and take no more than their time."""
        rows = np.flatnonzero(partner >= 0)
        if not len(rows):
            return
        if not self._allocator.shares:
            self._stop(now_s, "lets jobs share GPUs; an allocator that does has shares = True")
        other = partner[rows]
        mutual = (other < len(jobs)) & (other != rows)
        mutual &= partner[np.where(mutual, other, 0)] == rows
        same = mutual & (given[rows] == given[np.where(mutual, other, rows)]).all(axis=1)
        same &= given[rows].sum(axis=1) > 0
        share = np.ones(len(jobs)) if allocation.share_frac is None else np.asarray(allocation.share_frac)
        both = share[rows] + share[np.where(mutual, other, rows)]
        hosts = jobs["service"][np.stack([rows, np.where(mutual, other, rows)])]
        hosted = (hosts[0] & (share[rows] == 1.0)) | (hosts[1] & (share[rows] > 0))
        fair = hosted | ((share[rows] == 1.0) & (both == 2.0)) | ((share[rows] > 0) & (both <= 1.0 + 1e-9))
        for holds, what in (
            (mutual, "gives a partner that does not name it back to"),
            (same, "gives other GPUs than its partner's, or none, to"),
            (fair, "gives shares that are neither 1 for both nor sum to at most 1 to"),
        ):
            if not holds.all():
                self._stop(now_s, f"{what} {self._name(jobs, int(rows[~holds][0]))}")

    def placed(
        self, jobs: Records, cluster: GpuCluster, held: Held, allocation: Allocation, now_s: float
    ) -> None:
        """Nodes hold no more than they have; gangs, limits, pins and quotas are kept."""
        used = held.per_node
        if allocation.partner_row is not None:
            second = is_second(partners_of(allocation, len(jobs)))[held.rows]
            used = held.gpus[~second].sum(axis=0)
        self._within(used, cluster.capacity, "node {}".format, now_s)
        counts = held.counts(len(jobs))
        rule, row = first_broken(jobs, counts)
        if row >= 0:
            self._stop(
                now_s, f"{_RULES[rule]} {self._name(jobs, row)}: it gave {counted(counts[row], 'GPU')}"
            )
        self._kept(jobs, cluster, held, counts, now_s)
        if cluster.places is not None:
            elsewhere = np.zeros(len(jobs), np.bool_)
            elsewhere[held.rows] = ((held.gpus > 0) & ~cluster.places.allowed[held.rows]).any(axis=1)
            self._forbid(jobs, elsewhere, "uses nodes without the labels of", counts, now_s)
        if len(cluster.quota_gpus):
            of_tenant = np.bincount(jobs["tenant_idx"], counts, len(cluster.quota_gpus))
            over = (of_tenant > cluster.quota_gpus)[jobs["tenant_idx"]] & (counts > 0)
            self._forbid(jobs, over, "exceeds the quota of the tenant of", counts, now_s)

    def _kept(self, jobs: Records, cluster: GpuCluster, held: Held, counts: Ints, now_s: float) -> None:
        before = cluster.now_held
        is_fixed = ~jobs["preemptible"][before.rows] | jobs["pinned"][before.rows]
        if not is_fixed.any():
            return
        if not cluster.is_all_up:
            is_fixed &= ~before.on_down(cluster.nodes)
        for i in np.flatnonzero(is_fixed):
            row = before.rows[i]
            is_row = np.arange(len(jobs)) == row
            self._forbid(jobs, is_row & (counts == 0), "preempts the fixed", counts, now_s)
            at = np.searchsorted(held.rows, row)
            if jobs["pinned"][row] and (held.gpus[at] != before.gpus[i]).any():
                self._forbid(jobs, is_row, "moves the pinned", counts, now_s)

    def _within(self, used: Ints, capacity: Ints, name: Callable[[int], str], now_s: float) -> None:
        over = used > capacity
        if over.any():
            j = int(np.argmax(over))
            self._stop(now_s, f"gave {counted(used[j], 'GPU')} of {name(j)}, which has {capacity[j]}")

    def _forbid(self, jobs: Records, broken: Flags, what: str, counts: Ints, now_s: float) -> None:
        if broken.any():
            row = int(np.argmax(broken))
            self._stop(now_s, f"{what} {self._name(jobs, row)}: it gave {counted(counts[row], 'GPU')}")

    def _name(self, jobs: Records, row: int) -> str:
        asked, least, most = (jobs[row][name] for name in ("gpus_requested", "gpus_min", "gpus_max"))
        return f"job {self._ids[jobs[row]['job_idx']]!r} (asked {asked}, least {least}, most {most})"

    def _wrong(self, now_s: float, what: str) -> NoReturn:
        """Stop: what was returned is no allocation at all. Names the user's function."""
        place = place_of(type(self._allocator).allocate)
        self._stop(now_s, what + (f"\n  {place}" if place else ""))

    def _stop(self, now_s: float, what: str) -> NoReturn:
        name = self._allocator.label
        raise PolicyError(f"allocator {name!r} at {now_s:g} s: {what}")


def _is_row(row: object, n_jobs: int) -> bool:
    return isinstance(row, int | np.integer) and 0 <= int(row) < n_jobs


def _are_rows(rows: Ints, n_jobs: int) -> bool:
    return rows.ndim == 1 and bool(((rows >= 0) & (rows < n_jobs)).all())


def _told(value: object) -> str:
    text = repr(value)
    return text if len(text) <= TOLD else f"{text[:TOLD]}…"


@kernel
def first_broken(jobs: Any, counts: Any) -> Any:
    """The first rule that counts [jobs] break, and the first job of which they do; -1 = none."""
    broken, row = len(_RULES), -1
    for i in range(len(counts)):
        n, job = counts[i], jobs[i]
        rule = len(_RULES)
        if n == 0:
            rule = 0 if job.service else rule
        elif n < job.gpus_min:
            rule = 1
        elif n > job.gpus_max:
            rule = 2
        elif not job.scales and n != job.gpus_requested:
            rule = 3
        if rule < broken:
            broken, row = rule, i
    return broken, row
