"""`Placement` in a real scheduler of Dask, with its workers in this process: what it owes users."""

from __future__ import annotations

import asyncio
import gc
import json
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import pytest

distributed = pytest.importorskip("distributed")

from distributed import get_client, secede  # noqa: E402
from distributed.scheduler import NoValidWorkerError  # noqa: E402

from support.dask_cluster import Ran, add, most_at_once, sleeping, worker  # noqa: E402
from support.dask_cluster import dask as dask_cluster  # noqa: E402
from support.waiting import until  # noqa: E402
from trimtab.clusters.dask import Placement  # noqa: E402
from trimtab.clusters.dask.scheduler_plugin import refuse_lacking  # noqa: E402
from trimtab.errors import PolicyNotFound, UsageError  # noqa: E402
from trimtab.experiments.serving.replay import replay  # noqa: E402

POLICY = "least-connections"
LETTERS = "abcdefghijklmnopqrst"


async def results(client: Any, futures: Any) -> Any:
    async with asyncio.timeout(60.0):
        return await client.gather(futures)


async def told(client: Any, action: str) -> list[dict[str, Any]]:
    return [event for _, event in await client.get_events("trimtab") or () if event["action"] == action]


async def test_chosen_is_where_it_ran_and_nothing_is_over_committed(tmp_path: Path) -> None:
    sizes = {"small": worker(2, GPU=1), "large": worker(3, GPU=3)}
    async with dask_cluster(sizes) as (_, client):
        await client.register_plugin(Placement("random", record=tmp_path))
        futures, gpus = {}, {}
        for k, name in enumerate(LETTERS):
            gpus[name] = k % 4 / 2
            asked = {"GPU": gpus[name]} if gpus[name] else None
            futures[name] = client.submit(sleeping, k, 0.03, key=f"{name * 3}-{k}", resources=asked)
        ran = await results(client, futures)
    assert max(most_at_once((at, 1.0) for at in ran.values()).values()) <= 3
    assert most_at_once((at, 1.0) for at in ran.values())["small"] <= 2
    most = most_at_once((ran[name], gpus[name]) for name in ran)
    assert most["small"] <= 1
    assert most["large"] <= 3
    assert all(ran[name].worker == "large" for name in ran if gpus[name] > 1)
    (file,) = tmp_path.iterdir()
    head, *lines = [json.loads(line) for line in file.read_text().splitlines()]
    names = [node["name"] for node in head["nodes"]]
    chosen = {row["class"][0]: names[row["node"]] for row in lines if "record" not in row}
    assert chosen == {name: at.worker for name, at in ran.items()}
    assert {at.worker for at in ran.values()} == {"small", "large"}


async def test_a_recording_is_replayed(tmp_path: Path) -> None:
    async with dask_cluster({"a": worker(), "b": worker(2)}) as (_, client):
        await client.register_plugin(Placement(POLICY, record=tmp_path))
        await results(client, client.map(sleeping, range(12), pure=False))
    done = replay(tmp_path, [POLICY, "round-robin"], mode="interpreted")
    assert [(of.policy, of.served) for of in done.policies] == [(POLICY, 12), ("round-robin", 12)]
    assert done.live.mean_s > 0.02


async def test_tasks_are_held_until_a_worker_is_free_and_new_workers_get_those_that_wait() -> None:
    async with dask_cluster({"a": worker()}) as (cluster, client):
        await client.register_plugin(Placement(POLICY))
        futures = client.map(sleeping, range(12), wait_s=0.1, pure=False)
        states = await until(lambda: Counter(ts.state for ts in cluster.scheduler.tasks.values()))
        await until(lambda: any(ws.processing for ws in cluster.scheduler.workers.values()))
        states = Counter(ts.state for ts in cluster.scheduler.tasks.values())
        assert states["processing"] <= 1
        assert states["queued"] == 0
        late = await add(cluster, "b", worker())
        ran = await results(client, futures)
        assert {at.worker for at in ran} == {"a", "b"}
        assert max(most_at_once((at, 1.0) for at in ran).values()) == 1
        await late.close()


async def test_restrictions_of_users_stay_in_force() -> None:
    async with dask_cluster({"a": worker(4), "b": worker()}) as (_, client):
        await client.register_plugin(Placement(POLICY))
        futures = client.map(sleeping, range(6), workers=["b"], pure=False)
        gone = client.submit(sleeping, 6, workers=["127.0.0.9:1"], allow_other_workers=True, pure=False)
        preferred = client.submit(sleeping, 7, workers=["b"], allow_other_workers=True, pure=False)
        assert {at.worker for at in await results(client, [*futures, preferred])} == {"b"}
        assert (await results(client, [gone]))[0].worker in "ab"
        named = client.submit(sleeping, 8, workers=["a"], pure=False, key="again")
        assert (await results(client, [named]))[0].worker == "a"


async def test_a_worker_that_is_lost_loses_no_task_and_others_run_once(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()

    def noted(n: int) -> str:
        with open(runs / f"{n}-{distributed.get_worker().name}", "a") as file:
            file.write("x")
        time.sleep(0.05)
        return str(distributed.get_worker().name)

    async with dask_cluster({"a": worker(2), "b": worker(2)}) as (cluster, client):
        await client.register_plugin(Placement(POLICY))
        futures = client.map(noted, range(20), pure=False)
        await until(lambda: len(list(runs.glob("*-a"))) >= 3)
        await cluster.scheduler.remove_worker(
            cluster.workers["a"].address, stimulus_id="test", close=True, expected=False
        )
        ran = await results(client, futures)
        for n in range(20):
            times = sum(len(path.read_text()) for path in runs.glob(f"{n}-b"))
            assert times <= 1, "run twice on the worker that stayed"
            assert (runs / f"{n}-{ran[n]}").exists()


async def test_another_policy_takes_over_in_the_middle() -> None:
    async with dask_cluster({"a": worker(2), "b": worker(1)}) as (_, client):
        await client.register_plugin(Placement(POLICY))
        futures = client.map(sleeping, range(24), wait_s=0.03, pure=False, workers=["a", "b"])
        await until(lambda: any(future.done() for future in futures))
        await client.unregister_scheduler_plugin("trimtab")
        await client.register_plugin(Placement("round-robin"))
        futures += client.map(sleeping, range(6), wait_s=0.03, pure=False)
        ran = await results(client, futures)
        most = most_at_once((at, 1.0) for at in ran)
        assert most["a"] <= 2
        assert most["b"] <= 1


async def test_without_the_plugin_dask_goes_on_with_what_was_held() -> None:
    async with dask_cluster({"a": worker(), "b": worker()}) as (cluster, client):
        futures = client.map(sleeping, range(8), pure=False)
        await client.register_plugin(Placement(POLICY))  # some of them are queued, others at workers
        futures += client.map(sleeping, range(8), wait_s=0.1, workers=["b"], pure=False)
        await until(lambda: any(future.done() for future in futures))
        await client.unregister_scheduler_plugin("trimtab")
        ran = await results(client, futures)
        assert {at.worker for at in ran[8:]} == {"b"}
        restricted = {frozenset(ts.worker_restrictions or ()) for ts in cluster.scheduler.tasks.values()}
        assert restricted == {frozenset(), frozenset({cluster.workers["b"].address})}


async def test_what_cannot_be_placed_is_told_and_runs_once_it_can() -> None:
    async with dask_cluster({"a": worker(2, GPU=1)}) as (cluster, client):
        await client.register_plugin(Placement(POLICY))
        large = client.submit(sleeping, 0, resources={"GPU": 2}, pure=False)
        gone = client.submit(sleeping, 1, workers=["10.9.8.7:6543"], pure=False, key="gone-1")
        events = await until(lambda: told_of(client, 2))
        reasons = {event["prefix"]: event["reason"] for event in events}
        assert reasons["sleeping"] == "it needs 2 GPU, and 1 workers have at most 1"
        assert reasons["gone"].endswith("is there, or takes tasks: tcp://10.9.8.7:6543")
        assert (await results(client, [client.submit(sleeping, 2, pure=False)]))[0].worker == "a"
        late = await add(cluster, "b", worker(1, GPU=2))
        assert (await results(client, [large]))[0].worker == "b"
        assert not gone.done()
        await late.close()


async def told_of(client: Any, count: int) -> list[dict[str, Any]]:
    events = await told(client, "unplaceable")
    return events if len(events) >= count else []


async def order_of(client: Any, kinds: list[tuple[str, int]]) -> list[str]:
    """In which order tasks of these (prefix, priority) ran that waited at the same time for one thread."""
    blocker = client.submit(time.sleep, 0.3, key="blocker", pure=False)
    futures = {
        f"{name}-{k}": client.submit(sleeping, k, key=f"{name}-{k}", priority=priority)
        for k, (name, priority) in enumerate(kinds)
    }
    ran: dict[str, Ran] = await results(client, futures)
    await client.cancel([blocker])
    return sorted(ran, key=lambda key: ran[key].begun_s)


async def test_priorities_of_users_come_first_then_the_order_of_the_policy() -> None:
    async with dask_cluster({"a": worker()}) as (_, client):
        await client.register_plugin(Placement(f"{POLICY}+sjf"))
        for name, wait_s in (("long", 0.3), ("short", 0.01)):
            await results(client, [client.submit(sleeping, 0, wait_s, key=f"{name}-99")])
        found = await order_of(client, [("long", 0), ("short", 0), ("long", 5), ("short", 5), ("long", 0)])
        assert found == ["short-3", "long-2", "short-1", "long-0", "long-4"]


async def test_a_task_that_leaves_its_thread_frees_it() -> None:
    def parent(n: int) -> Ran:
        secede()
        return get_client().submit(sleeping, n, key=f"child-{n}").result(timeout=30)

    async with dask_cluster({"a": worker()}) as (_, client):
        await client.register_plugin(Placement(POLICY))
        ran = await results(client, client.map(parent, range(3), pure=False))
        assert most_at_once((at, 1.0) for at in ran) == {"a": 1}


class Counting:
    def __init__(self) -> None:
        self.n = 0

    def more(self) -> int:
        self.n += 1
        return self.n


async def test_actors_work_beside_held_tasks() -> None:
    async with dask_cluster({"a": worker(), "b": worker()}) as (_, client):
        await client.register_plugin(Placement(POLICY))
        futures = client.map(sleeping, range(10), pure=False)
        counting = await client.submit(Counting, actor=True)
        assert [await counting.more() for _ in range(3)] == [1, 2, 3]
        assert len(await results(client, futures)) == 10


async def test_cancelled_and_ended_tasks_leave_nothing_behind() -> None:
    async with dask_cluster({"a": worker()}) as (cluster, client):
        await client.register_plugin(Placement(POLICY))
        tasks = cluster.scheduler.tasks
        ended = client.map(sleeping, range(3), wait_s=0.0, pure=False)
        await results(client, ended)
        futures = client.map(sleeping, range(8), wait_s=0.1, pure=False)
        never = client.map(sleeping, range(3), resources={"GPU": 1}, pure=False)
        await until(lambda: len(tasks) == 14)
        alive = [weakref.ref(ts) for ts in tasks.values()]
        await client.cancel([*futures, *never])
        for future in ended:
            future.release()
        await until(lambda: not tasks)
        await until(lambda: gc.collect() and not [ref for ref in alive if ref() is not None], poll_s=0.3)


async def test_a_task_that_fails_is_retried_as_its_user_says(tmp_path: Path) -> None:
    def failing(n: int) -> int:
        (tmp_path / str(time.monotonic_ns())).touch()
        if len(list(tmp_path.iterdir())) < 3:
            raise ValueError(n)
        return n

    async with dask_cluster({"a": worker()}) as (_, client):
        await client.register_plugin(Placement(POLICY))
        assert await results(client, [client.submit(failing, 7, retries=2)]) == [7]
        assert len(list(tmp_path.iterdir())) == 3


async def test_results_that_are_lost_are_made_again() -> None:
    async with dask_cluster({"a": worker(), "b": worker()}) as (cluster, client):
        await client.register_plugin(Placement(POLICY))
        first = client.submit(sleeping, 0, workers=["a"], allow_other_workers=True, pure=False)
        assert (await results(client, [first]))[0].worker == "a"
        await cluster.scheduler.remove_worker(cluster.workers["a"].address, stimulus_id="test", close=True)
        after = client.submit(lambda ran: ran.worker, first, pure=False)
        assert await results(client, [after]) == ["b"]


@pytest.fixture
def short_timeout() -> Iterator[None]:
    with dask.config.set({"distributed.scheduler.no-workers-timeout": "1s"}):
        yield


async def test_a_timeout_of_dask_is_for_tasks_without_a_worker_only(short_timeout: None) -> None:
    async with dask_cluster({"a": worker()}) as (_, client):
        await client.register_plugin(Placement(POLICY))
        futures = client.map(sleeping, range(6), wait_s=0.5, pure=False)
        never = client.submit(sleeping, 9, resources={"GPU": 1}, pure=False)
        with pytest.raises(NoValidWorkerError, match="GPU"):
            await results(client, [never])
        assert len(await results(client, futures)) == 6


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        ("auto", "needs held comparison .* which this Dask scheduler does not provide"),
        ("hungarian", "binds waiting requests by its plans"),
    ],
)
def test_a_policy_that_needs_more_is_refused(policy: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        Placement(policy)


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(PolicyNotFound, match="least-conections"):
        Placement("least-conections")


async def test_a_second_plugin_and_a_folder_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    async with dask_cluster({"a": worker()}) as (_, client):
        with pytest.raises(UsageError, match=r"record: .*expected a folder that can be written"):
            await client.register_plugin(Placement(POLICY, record=tmp_path / "file"))
        await client.register_plugin(Placement(POLICY))
        with pytest.raises(UsageError, match=r"is registered already .got 'least-connections'"):
            await client.register_plugin(Placement("random"), name="other")
        assert len(await results(client, client.map(sleeping, range(3), pure=False))) == 3


async def test_a_version_that_lacks_a_hook_is_refused_by_name() -> None:
    class OldPlugin:
        start = update_graph = transition = add_worker = restart = close = None

    async with dask_cluster({}) as (cluster, _):
        with pytest.raises(UsageError, match=rf"distributed {distributed.__version__} lacks .*remove_worker"):
            refuse_lacking(cluster.scheduler, OldPlugin)
        refuse_lacking(cluster.scheduler, distributed.diagnostics.plugin.SchedulerPlugin)


async def test_a_trace_is_whole_where_the_scheduler_ends_right_after_the_plugin(tmp_path: Path) -> None:
    """Before the next tick, by which a plugin that was taken out is noticed."""
    async with dask_cluster({"a": worker()}) as (_, client):
        await client.register_plugin(Placement(POLICY, record=str(tmp_path)))
        await results(client, client.map(sleeping, range(3), pure=False))
        await client.unregister_scheduler_plugin("trimtab")
    (file,) = tmp_path.iterdir()
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row.get("record") for row in rows[-2:]] == ["estimates", "signals"]
    assert [row["outcome"] for row in rows if "outcome" in row] == ["done"] * 3
