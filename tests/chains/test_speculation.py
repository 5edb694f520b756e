"""Second attempts at slow instances: the first result counts, once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.run_journals import recorded
from trimtab.chains import RunHandle, Session, StageContext, chain, stage
from trimtab.clusters.in_process import InProcess
from trimtab.errors import ChainError
from trimtab.live.stage_backend import StageNode

FREE, COPIED, LOST = threading.Event(), threading.Event(), threading.Event()
ENDED: Counter[tuple[int, int]] = Counter()


@stage(speculate=3.0, retries=0)
def work(n: int, ctx: StageContext) -> tuple[int, int]:
    if n >= 7 and ctx.attempt == 2:
        COPIED.set()
    if n == 7 and ctx.attempt == 1:
        FREE.wait(60.0)
    if n == 8 and ctx.attempt == 2:
        LOST.set()
        raise RuntimeError("the copy fails")
    if n == 8:
        LOST.wait(60.0)
        FREE.wait(0.1)  # until the host has heard of it
    if n == 9 and ctx.attempt == 1:
        COPIED.wait(60.0)
        LOST.set()
        raise RuntimeError("the first fails")
    if n == 9:
        LOST.wait(60.0)
        FREE.wait(0.1)
    if n == 10:
        FREE.wait(0.4)
    ENDED[n, ctx.attempt] += 1
    return n, ctx.attempt


@chain
def line(n: int) -> Any:
    return work(n)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    for event in (FREE, COPIED, LOST):
        event.clear()
    ENDED.clear()
    yield
    FREE.set()


def numbers(handle: RunHandle) -> list[int]:
    """Whichever attempt gave them: on a busy machine a copy may be first."""
    return [n for n, _ in handle.values()]


def two() -> InProcess:
    return InProcess([StageNode("a", type="same"), StageNode("b", type="same")])


def test_a_slow_attempt_gets_a_copy_elsewhere_and_the_first_result_is_recorded_once(tmp_path: Path) -> None:
    with Session(line, on=two(), journal=tmp_path) as session:
        session.run(line, range(4)).wait()  # now its time is known
        handle = session.run(line, [7])
        assert handle.values() == [(7, 2)]
        assert handle.counts["work"].copies == 1
        FREE.set()
        while ENDED[7, 1] == 0:
            threading.Event().wait(0.01)
        # The places of the copy and of the attempt that lost are free again.
        assert numbers(session.run(line, range(6))) == list(range(6))

    rows = recorded(tmp_path, handle.id)
    assert sorted(row.attempt for row in rows.attempts) == [1, 2]
    assert [row.attempt for row in rows.results] == [2]
    assert {row.node for row in rows.attempts} == {"a", "b"}


@pytest.mark.parametrize(("n", "winner"), [(8, 1), (9, 2)])
def test_the_other_attempt_goes_on_when_one_fails(n: int, winner: int) -> None:
    with Session(line, on=two()) as session:
        session.run(line, range(4)).wait()
        handle = session.run(line, [n])
        assert handle.values() == [(n, winner)]
        assert (handle.counts["work"].copies, handle.counts["work"].retries) == (1, 0)
        assert numbers(session.run(line, range(6))) == list(range(6))


def test_without_another_node_there_is_no_copy() -> None:
    with Session(line, on=InProcess([StageNode("a", slots=2)])) as session:
        session.run(line, range(4)).wait()
        handle = session.run(line, [10])
        assert handle.values() == [(10, 1)]
        assert handle.counts["work"].copies == 0


def test_a_copy_would_break_a_limit() -> None:
    with pytest.raises(ChainError, match=r"speculate: out of range .*0 with concurrency, rate_per_s"):
        work.options(concurrency=1)
