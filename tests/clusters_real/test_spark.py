"""Policies over a real Spark cluster: what was chosen is where it ran, by REST and by the GPUs seen."""

from __future__ import annotations

import heapq
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed: make test-spark")

import pyarrow as pa
from pyspark import SparkContext, TaskContext

from support.spark_cluster import CORES, GPUS, SparkCluster, host_of_gpu
from trimtab.chains import chain, run, stage
from trimtab.clusters import spark
from trimtab.clusters.in_process import InProcess
from trimtab.clusters.spark.placed_jobs import planned_starts
from trimtab.clusters.spark.spark_driver import SparkHost
from trimtab.errors import UsageError
from trimtab.policies.catalogue import find

pytestmark = [
    pytest.mark.clusters,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore"),  # of Spark's own
]
SECONDS = [3.0, 1.0, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0, 4.0, 1.0, 1.0, 1.0]
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.cores": str(CORES),
    "spark.executor.resource.gpu.amount": str(GPUS),
    "spark.task.resource.gpu.amount": "1",
    "spark.locality.wait": "60s",
    "spark.ui.port": "0",
    "spark.ui.showConsoleProgress": "false",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("spark")) as started:
        yield started


@pytest.fixture(scope="module")
def sc(cluster: SparkCluster) -> Iterator[SparkContext]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        made = spark.connect(cluster.master, python=sys.executable, settings=SETTINGS)
    made.setLogLevel("OFF")
    yield made
    made.stop()


def sleeper(scale: float) -> Callable[[float], tuple[float, list[str]]]:
    def sleep(seconds: float) -> tuple[float, list[str]]:
        time.sleep(seconds * scale)
        return seconds, TaskContext.get().resources()["gpu"].addresses

    return sleep


@pytest.mark.parametrize("policy", ["least-expected-completion", "random", "late-binding+sjf"])
def test_each_task_runs_where_the_policy_chose(sc: SparkContext, policy: str) -> None:
    job = spark.placed(sc, SECONDS, policy=policy, seconds=SECONDS, gpus=1, min_hosts=3)
    assert [host.slots for host in job.hosts] == [2, 2, 2]
    found = job.collect(sleeper(0.05))
    assert [seconds for seconds, _ in found] == SECONDS
    assert tuple(host_of_gpu(gpu) for _, (gpu,) in found) == job.chosen
    assert job.deviations() == []
    runs = job.runs()
    assert [run.item for run in runs] == list(range(len(SECONDS)))
    assert tuple(run.host for run in runs) == job.chosen
    assert {run.locality for run in runs} == {"NODE_LOCAL"}


def test_a_job_with_other_resources_takes_whole_hosts(sc: SparkContext) -> None:
    job = spark.placed(sc, SECONDS[:6], cpus=2, gpus=2, min_hosts=3)
    assert [host.slots for host in job.hosts] == [1, 1, 1]

    def timed(seconds: float) -> tuple[float, float, list[str]]:
        begun_s = time.time()
        time.sleep(0.1 * seconds)
        return begun_s, time.time(), TaskContext.get().resources()["gpu"].addresses

    found = job.collect(timed)
    assert job.deviations() == []
    for host in job.hosts:
        (_, ended_s), (begun_s, _) = sorted(
            (begun_s, ended_s)
            for begun_s, ended_s, gpus in found
            if set(map(host_of_gpu, gpus)) == {host.name}
        )
        assert ended_s <= begun_s
    assert [len(gpus) for _, _, gpus in found] == [2] * 6


def test_a_job_is_a_trace_that_compare_and_replay_read(sc: SparkContext, tmp_path: Path) -> None:
    job = spark.placed(sc, SECONDS, seconds=SECONDS, gpus=1, speeds={"127.0.0.2": 2.0}, min_hosts=3)
    with pytest.raises(UsageError, match="rdd: no task has ended"):
        spark.record(job, tmp_path / "none")
    job.collect(sleeper(0.05))
    file = spark.record(job, tmp_path / "recording")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    head, items = rows[0], [row for row in rows if "record" not in row]
    names = [node["name"] for node in head["nodes"]]
    ran = {run.item: run.host for run in job.runs()}
    assert sorted(names[row["node"]] for row in items) == sorted(ran.values())
    assert all(row["candidates"] == [row["node"]] and row["outcome"] == "done" for row in items)
    for words in (["compare", "--trace", str(file), "-p", "random", "-p", "late-binding", "--no-sweep",
                   "--seeds", "1", "--out", str(tmp_path / "out")],
                  ["replay", str(file), "--policy", "late-binding", "--json"]):  # fmt: skip
        command = [sys.executable, "-m", "trimtab", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
        assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "out" / "results.json").read_text())
    assert str(len(SECONDS)) in json.dumps(told)


@pytest.mark.parametrize("n_slots", [1, 2])
def test_the_choice_is_list_scheduling_where_hosts_are_alike(n_slots: int) -> None:
    """Graham's list scheduling: each item, in their order, goes to the slot that is free first."""
    hosts = [SparkHost(f"host-{j}", n_slots) for j in range(3)]
    starts = planned_starts(hosts, SECONDS, {}, find("least-expected-completion"), 0)
    free_s = [0.0] * (3 * n_slots)
    expected_s = [free_s[0] + 0.0 * heapq.heapreplace(free_s, free_s[0] + seconds) for seconds in SECONDS]
    assert [start.start_s for start in starts] == expected_s
    for host in range(3):
        of_host = [(s.start_s, s.start_s + t) for s, t in zip(starts, SECONDS, strict=True) if s.node == host]
        for at_s, _ in of_host:
            assert sum(begun_s <= at_s < ended_s for begun_s, ended_s in of_host) <= n_slots


def test_items_start_in_the_order_of_the_policy(sc: SparkContext) -> None:
    """The longest item is the ninth. By shortest first it starts last, with one in another slot."""
    options: dict[str, Any] = {"seconds": SECONDS, "gpus": 1, "min_hosts": 3}
    longest = SECONDS.index(4.0)
    assert spark.placed(sc, SECONDS, **options).order.index(longest) == longest
    job = spark.placed(sc, SECONDS, policy="least-expected-completion+sjf", **options)
    assert longest in job.order[-2:]
    assert [seconds for seconds, _ in job.collect(sleeper(0.02))] == SECONDS
    assert job.deviations() == []


def test_rows_of_arrow_come_back_in_their_order(sc: SparkContext) -> None:
    jobs: list[spark.Placed] = []
    texts = [f"text {k}" for k in range(25)] + [None]
    found = spark.arrow_map(sc, lambda text: text and [len(text), 1], texts, block_rows=4, told=jobs.append)
    assert found == [text and [len(text), 1] for text in texts]
    assert len(jobs[0].chosen) == 7
    assert jobs[0].deviations() == []
    table = pa.table({"x": [1, 2, 3, 4, 5]})
    doubled = spark.arrow_map(
        sc, lambda block: pa.table({"y": [2 * x.as_py() for x in block["x"]]}), table, block_rows=2
    )
    assert doubled == pa.table({"y": [2, 4, 6, 8, 10]})
    assert spark.arrow_map(sc, len, []) == []


def test_a_stage_of_a_chain_is_a_spark_job(sc: SparkContext, cluster: SparkCluster) -> None:
    @stage
    def words(text: str) -> list[str]:
        return text.split()

    lengths = stage(spark.ArrowCall(len, cluster.master, block_rows=2), name="lengths", concurrency=1)

    @stage
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    @chain
    def letters(text: str) -> Any:
        return total(lengths(words(text)))

    assert run(letters, ["a bc def ghij klmno", "xy"], on=InProcess()).values() == [15, 2]


def test_what_cannot_be_placed_is_refused(sc: SparkContext, cluster: SparkCluster) -> None:
    with pytest.raises(UsageError, match=r"needs rollout .* which this Spark job does not provide"):
        spark.placed(sc, [1], policy="auto")
    with pytest.raises(UsageError, match=r"a task fits no executor \(got '1 cores and 3 GPUs'\)"):
        spark.placed(sc, [1], gpus=3)
    with pytest.raises(UsageError, match="items: nothing to place"):
        spark.placed(sc, [])
    with pytest.raises(UsageError, match=r"seconds: not one for each item \(got 1\); expected 2"):
        spark.placed(sc, [1, 2], seconds=[1.0])
    with pytest.raises(UsageError, match=r"seconds: no expected time \(got 0.0\)"):
        spark.placed(sc, [1], seconds=lambda item: 0.0)
    with pytest.raises(UsageError, match=r"speeds: no such host \(got 'a'\); expected one of 127.0.0.2, "):
        spark.placed(sc, [1], speeds={"a": 1.0})
    with pytest.raises(UsageError, match="a Spark application runs here"):
        spark.connect(cluster.master)
    with pytest.raises(UsageError, match="no column of Arrow"):
        spark.arrow_map(sc, len, [1, "a"])


def test_work_of_a_worker_that_is_lost_runs_elsewhere_and_is_told(
    sc: SparkContext, cluster: SparkCluster, tmp_path: Path
) -> None:
    job = spark.placed(sc, SECONDS, policy="random", gpus=1, min_hosts=3)
    lost = job.chosen[0]
    begun = tmp_path / "begun"

    def killed_meanwhile(item: float) -> float:
        begun.touch()
        time.sleep(2.0)
        return item

    def kill() -> None:
        while not begun.exists():
            time.sleep(0.05)
        cluster.kill(lost)

    killer = threading.Thread(target=kill)
    killer.start()
    assert job.collect(killed_meanwhile) == SECONDS
    killer.join()
    deviations = {deviation.item: deviation for deviation in job.deviations()}
    assert set(deviations) == {k for k, host in enumerate(job.chosen) if host == lost}
    for deviation in deviations.values():
        assert deviation.ran in set(cluster.hosts) - {lost}
        assert deviation.why == f"{lost} has no executor any more"
    rows = [json.loads(line) for line in spark.record(job, tmp_path / "recording").read_text().splitlines()]
    names = [node["name"] for node in rows[0]["nodes"]]
    assert [names[r["node"]["idx"]] for r in rows if r.get("what") == "down"] == [lost]
    assert sum(row.get("retries", 0) > 0 for row in rows) >= 1
    again = spark.placed(sc, SECONDS[:4], gpus=1, min_hosts=2)
    assert lost not in again.chosen
    assert [seconds for seconds, _ in again.collect(sleeper(0.05))] == SECONDS[:4]
    assert again.deviations() == []


def test_an_application_that_cannot_start_says_why(sc: SparkContext, monkeypatch: pytest.MonkeyPatch) -> None:
    sc.stop()
    with pytest.raises(UsageError, match="the Spark application has ended"):
        spark.placed(sc, [1])
    with pytest.raises(UsageError, match=r"no master answers \(127.0.0.1:1: Connection refused\)"):
        spark.connect("spark://127.0.0.1:1")
    with pytest.raises(UsageError, match=r"no address \(got 'spark://127.0.0.1:x'\)"):
        spark.connect("spark://127.0.0.1:x")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match=r"Spark needs Java .*no program java on the path"):
        spark.connect("local[1]")
