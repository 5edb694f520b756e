"""Items on the hosts that a policy chose, as an RDD; and where its tasks really ran.

The policy sees the items as requests that have all arrived, and the hosts as nodes with as many slots as
they run tasks of the job at a time. The engine goes through their whole run on virtual time, by the expected
seconds; where an item starts there is the host that its task prefers.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
from pyspark import RDD, SparkContext
from pyspark.resource import ResourceProfile, ResourceProfileBuilder, TaskResourceRequests
from pyspark.serializers import BatchedSerializer, CPickleSerializer

from trimtab.clusters.backend_cluster import UNKNOWN_S, cluster_of
from trimtab.clusters.spark.spark_driver import SparkHost, SparkRest, epoch_s
from trimtab.domain.needs import Host, Need
from trimtab.domain.options import Options
from trimtab.domain.policy import Decider
from trimtab.domain.requests import TRUTH, Requests
from trimtab.domain.view import new_work
from trimtab.engine import simulator
from trimtab.errors import UsageError
from trimtab.live.stage_backend import StageCode, StageNode
from trimtab.policies.catalogue import find

SPARK: Final = Host(
    "Spark job",
    {
        Need.HOLDING: "",
        Need.CENTRAL_QUEUE: "",
        Need.HELD_COMPARISON: "",
        Need.FULL_SPEED: "",
    },
)
DEFAULT_POLICY: Final = "least-expected-completion"
ITEM: Final = "item"  # the class of all requests
Seconds = Sequence[float] | Callable[[Any], float]


class TaskRun(NamedTuple):
    """An attempt at the task of an item."""

    item: int
    attempt: int
    host: str
    locality: str  # Spark's word: NODE_LOCAL = where it preferred to be
    status: str  # SUCCESS, FAILED, KILLED, RUNNING
    begun_s: float  # since the epoch
    seconds: float


class Deviation(NamedTuple):
    """An item that ran elsewhere than the policy chose."""

    item: int
    chosen: str
    ran: str
    why: str


@dataclass(frozen=True)
class Placed:
    """Items as an RDD, one a partition, in the order in which the policy starts them."""

    rdd: RDD[Any]
    order: tuple[int, ...]  # item of each partition
    policy: str
    notes: tuple[str, ...]  # what the policy does without, as Spark does not provide it
    hosts: tuple[SparkHost, ...]
    chosen: tuple[str, ...]  # host of each item
    expected_s: tuple[float, ...]  # seconds of each item on a host of speed 1
    speeds: Mapping[str, float]  # of hosts; of others 1
    source_id: int  # of the RDD that has the preferred hosts

    def collect(self, code: Callable[[Any], Any]) -> list[Any]:
        """Run a job that calls a function with each item; its results in the order of the items."""
        found = self.rdd.map(code).collect()
        results = dict(zip(self.order, found, strict=True))
        return [results[item] for item in range(len(found))]

    def runs(self) -> list[TaskRun]:
        """All attempts of the last job over the items, by item. Asks Spark."""
        told = SparkRest(self.rdd.context).tasks(self.source_id)
        found = [
            TaskRun(
                self.order[one["partitionId"]],
                one["attempt"],
                one["host"],
                one["taskLocality"],
                one["status"],
                epoch_s(one["launchTime"]),
                one.get("duration", 0) / 1000.0,
            )
            for one in told
        ]
        return sorted(found, key=lambda run: (run.item, run.begun_s))

    def deviations(self) -> list[Deviation]:
        """The items whose last job ran elsewhere than chosen, and why. Asks Spark."""
        active = SparkRest(self.rdd.context).active_hosts()
        done = {run.item: run for run in self.runs() if run.status == "SUCCESS"}
        return [
            Deviation(item, self.chosen[item], run.host, _why(self.chosen[item], active))
            for item, run in sorted(done.items())
            if run.host != self.chosen[item]
        ]


def _why(chosen: str, active: set[str]) -> str:
    if chosen not in active:
        return f"{chosen} has no executor any more"
    return f"{chosen} was busy for longer than spark.locality.wait"


def placed(
    sc: SparkContext,
    items: Iterable[Any],
    *,
    policy: str = DEFAULT_POLICY,
    seconds: Seconds | None = None,
    speeds: Mapping[str, float] | None = None,
    cpus: int = 1,
    gpus: int = 0,
    min_hosts: int = 1,
    seed: int = 0,
) -> Placed:
    """The items as an RDD of one partition each, whose tasks prefer the hosts that a policy chooses.

    Args:
        sc: as from `connect`; else with a `spark.locality.wait` above the longest task.
        policy: NAME or NAME+ORDER.
        seconds: that each item is expected to take, or a function of an item. None = all alike.
        speeds: of hosts, where they differ: 2 = half the seconds.
        cpus: cores that a task takes. Other amounts than the application's are a resource profile of the job.
        gpus: that a task takes.
        min_hosts: of Spark's, to wait for.
        seed: of the policy's random numbers.

    Raises UsageError for a policy with a need that Spark does not meet, and for tasks that fit no executor.
    """
    listed = list(items)
    if not listed:
        raise UsageError("nothing to place", field="items", expected="at least one item")
    if cpus < 1 or gpus < 0:
        raise UsageError("out of range", field="cpus, gpus", value=(cpus, gpus), expected="from 1, from 0")
    decider = find(policy)
    degraded = decider.degraded(SPARK, SPARK.always())  # refuses before Spark is asked for anything
    expected = _expected(listed, seconds)
    hosts = SparkRest(sc).hosts(cpus, gpus, min_hosts)
    known = _speeds(hosts, speeds or {})
    planned = planned_starts(hosts, expected, known, decider, seed)
    order = sorted(range(len(listed)), key=lambda item: (planned[item].start_s, item))
    chosen = tuple(hosts[start.node].name for start in planned)
    rdd = _preferring(sc, [listed[item] for item in order], [chosen[item] for item in order])
    job = rdd.withResources(profile) if (profile := _profile(sc, cpus, gpus)) is not None else rdd
    return Placed(
        job,
        tuple(order),
        decider.label,
        tuple(map(str, degraded)),
        tuple(hosts),
        chosen,
        tuple(expected),
        known,
        rdd.id(),
    )


class Start(NamedTuple):
    """Where and when an item starts in the run that the engine goes through."""

    node: int  # position of its host
    start_s: float


def planned_starts(
    hosts: Sequence[SparkHost],
    expected_s: Sequence[float],
    speeds: Mapping[str, float],
    decider: Decider,
    seed: int,
) -> list[Start]:
    """The start of each item under the policy, if all take what is expected. Raises PolicyError."""
    rates = [speeds.get(host.name, 1.0) for host in hosts]
    nodes = [
        StageNode(host.name, host.slots, type=f"speed {rate:g}", machine=host.name)
        for host, rate in zip(hosts, rates, strict=True)
    ]
    cluster = cluster_of(nodes, [StageCode(ITEM, b"")], {ITEM: UNKNOWN_S})
    types = list(dict.fromkeys(rates))
    cluster = replace(cluster, unit_s=1.0 / np.array([types]))
    n = len(expected_s)
    work, truth = new_work(n), np.zeros(n, TRUTH)
    work["serial"], work["units"], work["deadline_s"] = np.arange(n), expected_s, np.inf
    work["estimate_s"] = work["rank_s"] = np.asarray(expected_s) / max(types)
    work["model_idx"] = work["adapter_idx"] = -1
    truth["units"], truth["factor"] = expected_s, 1.0
    driver = simulator.run(cluster, Requests(work, truth), Options(), decider, seed=seed)
    rows = driver.state.requests
    found = [Start(*row) for row in zip(rows["node_idx"].tolist(), rows["start_s"].tolist(), strict=True)]
    if (k := next((k for k, start in enumerate(found) if start.node < 0), None)) is not None:
        raise UsageError(
            f"policy {decider.label!r} places an item nowhere", field="policy", value=f"item {k}",
            expected="a policy that serves all",
        )  # fmt: skip
    return found


def _expected(items: Sequence[Any], seconds: Seconds | None) -> list[float]:
    if seconds is None:
        return [UNKNOWN_S] * len(items)
    found = [float(s) for s in (map(seconds, items) if callable(seconds) else seconds)]
    if len(found) != len(items):
        raise UsageError("not one for each item", field="seconds", value=len(found), expected=str(len(items)))
    if bad := [s for s in found if not 0.0 < s < float("inf")]:
        raise UsageError("no expected time", field="seconds", value=bad[0], expected="a number above 0")
    return found


def _speeds(hosts: Sequence[SparkHost], given: Mapping[str, float]) -> dict[str, float]:
    names = [host.name for host in hosts]
    for name, speed in given.items():
        if name not in names:
            expected = f"one of {', '.join(names)}"
            raise UsageError("no such host", field="speeds", value=name, expected=expected)
        if not 0.0 < speed < float("inf"):
            raise UsageError("no speed", field=f"speeds.{name}", value=speed, expected="a number above 0")
    return dict(given)


def _profile(sc: SparkContext, cpus: int, gpus: int) -> ResourceProfile | None:
    """The profile of the job's tasks; None = they take what those of the application do."""
    conf = sc.getConf()
    own = (int(conf.get("spark.task.cpus", "1")), float(conf.get("spark.task.resource.gpu.amount", "0")))
    if own == (cpus, gpus):
        return None
    wanted = TaskResourceRequests().cpus(cpus)
    return ResourceProfileBuilder().require(wanted.resource("gpu", gpus) if gpus else wanted).build


def _preferring(sc: SparkContext, items: Sequence[Any], hosts: Sequence[str]) -> RDD[Any]:
    """An RDD of one partition an item. Only the JVM's interface takes preferred hosts."""
    jvm, jsc = sc._jvm, sc._jsc
    assert jvm is not None
    of_bytes = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("[B"))
    to_seq = jvm.org.apache.spark.api.python.PythonUtils.toSeq
    preferring = {host: to_seq([host]) for host in set(hosts)}
    pairs = [
        jvm.scala.Tuple2(bytearray(pickle.dumps([item], pickle.HIGHEST_PROTOCOL)), preferring[host])
        for item, host in zip(items, hosts, strict=True)
    ]
    made = jsc.sc().makeRDD(to_seq(pairs), of_bytes).toJavaRDD()
    return RDD(made, sc, BatchedSerializer(CPickleSerializer(), 1))
