"""Dask's workers as a host: chains on them, a worker that is lost, and what is refused."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

distributed = pytest.importorskip("distributed")

from support.dask_cluster import worker  # noqa: E402
from trimtab.chains import Session, chain, stage  # noqa: E402
from trimtab.clusters import backends  # noqa: E402
from trimtab.clusters.dask import dask_host  # noqa: E402
from trimtab.errors import UsageError  # noqa: E402


@stage
def where(n: int, wait_s: float) -> tuple[int, str]:
    time.sleep(wait_s)
    return n, os.environ["TRIMTAB_NODE"]


@chain
def places(n: int, wait_s: float) -> Any:
    return where(n, wait_s)


@pytest.fixture
def cluster() -> Iterator[Any]:
    made = {name: {**worker(), "options": {**worker()["options"], "name": name}} for name in ("one", "two")}
    scheduler = {
        "cls": distributed.Scheduler,
        "options": {"dashboard": False, "dashboard_address": ":0", "port": 0},
    }
    with distributed.SpecCluster(scheduler=scheduler, workers=made, silence_logs=40) as cluster:
        yield cluster


def test_a_chain_runs_on_its_workers_and_goes_on_where_one_is_lost(cluster: Any) -> None:
    address = cluster.scheduler_address.replace("tcp", "dask")
    with Session(places, on=address) as session:
        first = dict(session.run(places, [{"n": n, "wait_s": 0.3} for n in range(4)]).values())
        assert set(first.values()) == {"one", "two"}
        running = session.run(places, [{"n": n, "wait_s": 0.5} for n in range(6)])
        time.sleep(0.3)
        lost = cluster.workers["one"].address
        cluster.sync(cluster.scheduler.remove_worker, lost, stimulus_id="test", close=True)
        assert [n for n, _ in running.values()] == list(range(6))
        assert {node for _, node in session.run(places, [{"n": 0, "wait_s": 0.0}]).values()} == {"two"}
    assert not cluster.scheduler.tasks


def test_addresses_that_are_none_and_schedulers_that_do_not_answer_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dask_host, "CONNECT_S", 0.5)
    with pytest.raises(UsageError, match=r"--on: is no address .*got 'dask://here'.*dask://HOST:PORT"):
        backends.host("dask://here")
    with pytest.raises(UsageError, match=r"--on: no scheduler of Dask answers: .*got 'dask://127.0.0.1:1'"):
        backends.host("dask://127.0.0.1:1").nodes()
