"""Pools of actors: where they go, what becomes of dead ones and of values, and code that goes along."""

from __future__ import annotations

import asyncio
import marshal
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.stage_backends import Bench, codes, demand, on
from support.waiting import until
from trimtab.chains import Session, chain, stage
from trimtab.clusters import backends
from trimtab.errors import MissingExtra, UsageError
from trimtab.live.stage_backend import Argument, Cause, StageBackend, StageCode, StageNode
from trimtab.live.stage_execution import Imported
from trimtab.live.value_codec import decode, encode

needs_ray = pytest.mark.usefixtures("shared_ray")
pytestmark = pytest.mark.xdist_group("ray")


def ray_backend(nodes: Sequence[StageNode] = (), **options: Any) -> StageBackend:
    return backends.backend("ray", nodes=nodes, **options)


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n == "ray" or n.startswith("trimtab.clusters.ray")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"pip install 'trimtab\[ray\]'"):
        backends.backend("ray")


async def test_a_worker_that_starts_while_its_machine_is_asked_is_not_taken_for_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("ray")
    from trimtab.clusters.ray.actor_pools import ActorPools
    from trimtab.clusters.ray.connection import Machine

    answer: asyncio.Future[dict[int, int]] = asyncio.get_running_loop().create_future()
    watch = SimpleNamespace(alive=SimpleNamespace(remote=lambda pids: answer))
    made = SimpleNamespace(remote=lambda: watch)
    monkeypatch.setattr(ActorPools, "_made", lambda *_, **__: made)
    dead: list[int] = []
    old, new = (SimpleNamespace(pid=pid, die=lambda _, pid=pid: dead.append(pid)) for pid in (1, 2))
    nothing: Any = lambda *_: None  # noqa: E731
    pools: Any = ActorPools([StageNode("n")], (), nothing, nothing, nothing, {}, 60.0, 0.0)
    pools.machines, pools.pools.workers = ["m"], [[old]]
    pools._watch_machine(Machine("m", "id", {}, {}))
    _, _, pulse = pools._watches["m"]
    pulse.beat()
    await asyncio.sleep(0)
    pools.pools.workers[0].append(new)
    answer.set_result({})  # of those that were asked about
    await pulse._asked
    assert dead == [1]


@needs_ray
async def test_a_profiled_stage_runs_many_times_on_a_worker_after_a_cancelled_attempt_too() -> None:
    backend: Any = ray_backend([StageNode("one")])
    bench = Bench(backend)
    await backend.open([replace(code, profile="calls") for code in codes()], bench.changes.append)
    try:
        for k in range(3):
            attempt = bench.attempt("sleep")
            started = asyncio.ensure_future(
                backend.start(0, attempt, [Argument("seconds", (await bench.value(0.3),))])
            )
            await asyncio.sleep(0.1)
            backend.cancel(attempt)
            assert (await started).error is not None
            async with asyncio.timeout(30.0):  # it never came back
                outcome = await bench.start("total", items=[k, 2])
            assert await bench.output(outcome) == k + 2
            stats = marshal.loads(outcome.profile)
            assert [row[0] for key, row in stats.items() if key[2] == "total"] == [1]
    finally:
        await backend.close()


@needs_ray
async def test_a_worker_that_stands_still_loses_its_attempt_and_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Stopped, it neither answers nor uses the processor. One that does use it is left alone."""
    monkeypatch.setattr("trimtab.clusters.ray.actor_pools.CUT_BEATS", 10_000)  # a loaded machine answers late
    async with on(ray_backend, StageNode("one"), StageNode("two")) as bench:
        backend: Any = bench.backend
        busy = asyncio.ensure_future(bench.start("hold_interpreter", node=1, seconds=8.0))
        started = asyncio.ensure_future(bench.start("sleep", seconds=30.0))
        await asyncio.sleep(0.5)
        (pid,) = (worker.pid for worker in backend._pools.pools.workers[0])
        os.kill(pid, signal.SIGSTOP)
        try:
            outcome = await started
            assert outcome.error is not None
            assert outcome.error.message == f"worker {pid} is out of reach"
            assert (await bench.start("add", a=1)).error is not None  # it gets none meanwhile
        finally:
            os.kill(pid, signal.SIGCONT)
        while len(bench.changes) < 2:
            await asyncio.sleep(0.05)
        assert [(change.node, change.places) for change in bench.changes] == [(0, -1), (0, 1)]
        assert await bench.call("add", a=1) == 1
        assert (await busy).error is None


def test_what_ray_tells_of_its_own_processes_is_logged_not_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    ray = pytest.importorskip("ray")
    from trimtab.clusters.ray import connection

    told: list[Any] = []
    monkeypatch.setattr(ray._private.worker, "print_to_stdstream", lambda data, **_: told.append(data))
    monkeypatch.setattr(connection, "_users", 1)
    connection._log_raylet()
    with caplog.at_level("INFO", logger="trimtab"):
        paragraph = {"lines": ["A worker died.\nDetails …"], "pid": "raylet", "is_err": False}
        ray._private.worker.print_to_stdstream(paragraph, ignore_prefix=False)
    assert "Ray: A worker died.\nDetails …" in caplog.text
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(connection, "_users", 0)  # a connection of the user's own is as it was
    ray._private.worker.print_to_stdstream(paragraph, ignore_prefix=False)
    assert told == [paragraph]


@pytest.mark.parametrize(
    ("mode", "hint"), [("", "RAY_AUTH_MODE=token, and the token"), ("token", "this token")]
)
def test_a_cluster_that_does_not_answer_may_want_a_token(
    mode: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray")
    from trimtab.clusters.ray import connection

    def refused(**_: Any) -> None:
        raise ConnectionError("ray client connection timeout")

    monkeypatch.setenv("RAY_AUTH_MODE", mode)
    monkeypatch.setattr(ray, "init", refused)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(connection, "_users", 0)
    with pytest.raises(UsageError, match=f"does not answer: ray client .*'ray://head:1'.*{hint}"):
        connection.connect("ray://head:1", num_cpus=None, dashboard=False, options={})


@needs_ray
async def test_a_pool_grows_and_shrinks_with_the_queue(tmp_path: Path) -> None:
    waiting = {"held": 0}

    async def size_is(backend: Any, size: int) -> None:
        while len(backend.pids) != size:
            await asyncio.sleep(0.02)

    async with on(
        lambda nodes: ray_backend(nodes, idle_s=0.3), StageNode("one", slots=2, slots_min=1)
    ) as bench:
        backend: Any = bench.backend
        backend.follow_queue(lambda: demand(waiting))
        running = asyncio.ensure_future(bench.start("held", file=str(tmp_path / "go")))
        waiting["held"] = 1
        await size_is(backend, 2)
        waiting["held"] = 0
        (tmp_path / "go").touch()
        assert (await running).error is None
        await size_is(backend, 1)
        assert [change.places for change in bench.changes] == [-1, 1, -1]
        assert await bench.call("add", a=2) == 2


@needs_ray
async def test_values_outlive_the_worker_that_made_them_and_are_freed_when_released() -> None:
    async with on(ray_backend) as bench:
        backend: Any = bench.backend
        made = await bench.start("blob", size=200_000)
        small = await bench.start("blob", size=200)
        assert small.outputs[0].place == ""
        os.kill(backend.pids[0], signal.SIGKILL)
        assert len(await bench.output(made)) == 200_000
        assert len(backend._values) == 1
        backend.release(made.outputs)
        assert len(backend._values) == 0


@needs_ray
async def test_an_attempt_that_waits_behind_another_is_cancelled_without_running(tmp_path: Path) -> None:
    async with on(ray_backend, StageNode("one", depth=2)) as bench:
        backend: Any = bench.backend
        first = asyncio.ensure_future(bench.start("held", file=str(tmp_path / "go")))
        await until((tmp_path / "go.begun").exists)
        behind = bench.attempt("Counter")
        waiting = asyncio.ensure_future(backend.start(0, behind, []))
        await until(lambda: len(backend._pools.pools.workers[0][0].queue) == 2, "the second is at the worker")
        backend.cancel(behind)
        cancelled = await waiting
        assert cancelled.error is not None
        assert cancelled.error.cause is Cause.CANCELLED
        (worker,) = backend._pools.pools.workers[0]
        await worker._actor.ping.remote()  # an answer: the actor has heard of it before
        (tmp_path / "go").touch()
        assert (await first).error is None
        assert (await bench.call("Counter"))[0] == 1  # the cancelled call did not count


@needs_ray
async def test_what_cannot_be_placed_is_said_with_what_is_missing() -> None:
    pools = (StageNode("a", 4, {"cpu": 4.0}), StageNode("b", capacity={"cpu": 1.0, "gpu": 2.0}))
    said = r"has 4 cpu, the pools there want 5; .*has 0 gpu, .* want 2"
    with pytest.raises(UsageError, match=said) as told:
        async with on(ray_backend, *pools):
            pass
    assert told.value.exit_code == 2
    with pytest.raises(UsageError, match="far: there is no machine moon"):
        async with on(ray_backend, StageNode("far", machine="moon")):
            pass


@needs_ray
def test_by_default_a_machine_is_a_pool_with_a_worker_for_each_cpu() -> None:
    backend = ray_backend()
    (node,) = backend.nodes
    assert (node.slots, node.depth, node.capacity["cpu"]) == (4, 1, 4.0)
    asyncio.run(backend.close())


@stage
def parts(n: int) -> list[bytes]:
    return [bytes([k]) * 100_000 for k in range(n)]


@stage
def digit(part: bytes) -> int:
    return len(part) + part[0]


@stage
def total(found: list[int]) -> int:
    return sum(found)


@chain
def summed(n: int) -> Any:
    return total(digit.map(parts(n)))


@needs_ray
def test_a_chain_gives_the_same_on_ray_as_in_threads(tmp_path: Path) -> None:
    """Also where the object store may take nearly nothing: then its inputs go on one after another."""
    import ray

    with Session(summed, on="in-process") as session:
        expected = session.run(summed, [1, 2, 3]).values()
    assert expected == [100_000, 200_001, 300_003]
    backend: Any = ray_backend([StageNode("one", slots=2, depth=2)])
    with Session(summed, on=backend, journal=tmp_path, values_gib=1e-9) as session:
        assert session.run(summed, [1, 2, 3]).values() == expected
        assert len(backend._values) == 0
        assert backend.value_bytes == 0.5 * ray.cluster_resources()["object_store_memory"]


@needs_ray
async def test_metrics_of_stages_are_where_prometheus_scrapes_ray() -> None:
    import ray

    (node,) = ray.nodes()
    address = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    attempts = re.compile(r'ray_trimtab_stage_attempts(?:_total)?{(.*node="counted".*)} 3\.0')
    workers = re.compile(r'ray_trimtab_node_workers{.*node="counted".*} 1\.0')

    def scraped() -> str:
        with urllib.request.urlopen(address, timeout=10.0) as answer:
            text: str = answer.read().decode()
            return text

    async with on(ray_backend, StageNode("counted")) as bench:
        for n in range(3):
            await bench.call("add", a=n)
        text = ""
        while (found := attempts.search(text)) is None or workers.search(text) is None:
            await asyncio.sleep(0.5)
            text = await asyncio.to_thread(scraped)
        for label in ('outcome="done"', 'stage="add"'):
            assert label in found[1]


def test_modules_that_are_not_installed_go_along_by_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    from trimtab.clusters.code_by_value import by_value

    (tmp_path / "my_stages.py").write_text("from my_helper import twice\ndef four(): return twice(2)\n")
    (tmp_path / "my_helper.py").write_text("def twice(n): return 2 * n\n")
    monkeypatch.syspath_prepend(tmp_path)
    code = by_value(StageCode("four", encode(Imported("my_stages", "four"))))
    elsewhere = "import pickle, sys; print(pickle.loads(sys.stdin.buffer.read())())"
    found = subprocess.run(
        [sys.executable, "-c", elsewhere], input=code.code, capture_output=True, cwd="/", check=True
    )
    assert found.stdout == b"4\n"
    installed = StageCode("dumps", encode(Imported("json", "dumps")))
    assert decode(by_value(installed).code) == Imported("json", "dumps")
