"""Memory of stages: what is measured as theirs, the limit that they declare, what earlier runs correct."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from trimtab.chains import chain, run, stage
from trimtab.chains.run_reports import summary
from trimtab.clusters.backend_cluster import PEAK_MARGIN, placed_by_peaks
from trimtab.clusters.processes import Processes
from trimtab.errors import UsageError
from trimtab.live.stage_backend import Cause, StageCode, StageNode

MB = 1_000_000

pytestmark = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="measures by /proc")


def touched(megabytes: int) -> list[bytearray]:
    """So much memory, step by step."""
    return [bytearray(b"x") * (10 * MB) for _ in range(megabytes // 10)]


@stage(memory_gib=0.2)
def takes(megabytes: int) -> int:
    kept = touched(megabytes)
    time.sleep(0.1)  # the watch looks every 20 ms
    return len(kept)


@stage(memory_gib=0.1)
def bursts(megabytes: int) -> int:
    return len(bytes(megabytes * MB))


class Model:
    """Keeps 60 MB in its worker."""

    def __init__(self) -> None:
        self.weights = touched(60)

    def __call__(self, n: int) -> int:
        time.sleep(0.02)
        return n


class Other(Model):
    """A second one in the same worker."""


first, second = stage(Model, memory_gib=0.1, name="first"), stage(Other, memory_gib=0.1, name="second")


@chain
def taking(megabytes: int) -> Any:
    return takes(megabytes)


@chain
def bursting(megabytes: int) -> Any:
    return bursts(megabytes)


@chain
def models(n: int) -> Any:
    return second(first(n))


def one() -> Processes:
    return Processes([StageNode("one")])


def test_what_takes_more_than_it_declares_ends_with_that_error_and_is_not_tried_again() -> None:
    small, large = run(taking, [50, 600], on=one()).wait()
    assert small.value == 5
    assert large.failure is not None
    assert (large.failure.attempts, large.failure.error.cause) == (1, Cause.MEMORY_LIMIT)
    assert "GiB, more than its memory_gib=0.2" in str(large.failure)


def test_one_large_allocation_is_refused_and_its_worker_stays() -> None:
    backend = one()
    small, large = run(bursting, [10, 2_000], on=backend).wait()
    assert small.value == 10 * MB
    assert large.failure is not None
    assert large.failure.error.cause is Cause.MEMORY_LIMIT
    assert "asked for more memory than its memory_gib=0.1 allows" in str(large.failure)


def test_a_stage_answers_for_its_own_memory_not_for_that_of_others_in_its_worker(tmp_path: Path) -> None:
    """Both models are in one worker, 0.12 GB and its interpreter, and each of them declares 0.1 GiB."""
    handle = run(models, range(6), on=one(), journal=tmp_path)
    assert handle.values() == list(range(6))
    for told in summary(tmp_path, handle.id)["stages"].values():
        assert 0.05 < told["peak_gib"] < 0.1


def test_a_stage_that_declares_more_than_the_machine_has_is_refused() -> None:
    @stage(memory_gib=1e6)
    def huge(n: int) -> int:
        return n

    @chain
    def alone(n: int) -> Any:
        return huge(n)

    with pytest.raises(UsageError, match=r"fits no node.*memory_gib, wanted 1e\+06"):
        run(alone, [1], on=one())


def test_stages_are_placed_by_what_they_took_but_never_by_more_than_they_declare_or_nodes_have() -> None:
    nodes = [StageNode("one", capacity={"memory_gib": 4.0})]
    codes = [
        StageCode("less", b"", demand={"memory_gib": 2.0}),
        StageCode("more", b"", demand={"memory_gib": 0.5}),
        StageCode("silent", b""),
        StageCode("vast", b""),
        StageCode("new", b"", demand={"memory_gib": 1.0}),
    ]
    placed = placed_by_peaks(codes, {"less": 0.2, "more": 1.0, "silent": 0.4, "vast": 9.0}, nodes)
    wanted = [PEAK_MARGIN * 0.2, 0.5, PEAK_MARGIN * 0.4, 4.0, 1.0]
    assert [code.demand["memory_gib"] for code in placed] == wanted
