"""Answers of a ResourceManager, as Hadoop's page has them: queues, clusters and jobs. None was met live."""

from __future__ import annotations

import csv
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pytest

from clusters.test_yarn_capacity import tree, why
from support.yarn_files import (
    ABSOLUTE_PARTS,
    PAGE_APPS,
    REST_PAGE,
    SCHEDULER,
    app,
    capacity,
    leaf,
    node,
    resource,
)
from trimtab.clusters.yarn.imported_cluster import ImportedCluster, imported_cluster
from trimtab.clusters.yarn.imported_queues import ImportedQueues
from trimtab.clusters.yarn.rest_answers import answer_of, fetched, saved
from trimtab.clusters.yarn.scheduler_answer import answered_queues
from trimtab.errors import UsageError


def of_page(path: str = "root") -> dict[str, Any]:
    """The example answer about the Capacity Scheduler, with its noise of single precision."""
    own = path.removeprefix("root.")
    names = [name.strip() for name in str(REST_PAGE.get(f"{path}.queues", "")).split(",") if name.strip()]
    capacity = float(str(REST_PAGE.get(f"{path}.capacity", 100.0)))
    most = float(str(REST_PAGE.get(f"{path}.maximum-capacity", 100.0)))
    table: dict[str, Any] = {
        "queueName": path.rpartition(".")[2],
        "capacity": capacity + (0.000002 if capacity in (30.0, 60.0) else 0.0),
        "maxCapacity": most if most > 0 else 100.0,
        "state": "RUNNING",
    }
    if path != "root":
        table["absoluteCapacity"], table["absoluteMaxCapacity"] = ABSOLUTE_PARTS[own]
    if names:
        return table | {"queues": {"queue": [of_page(f"{path}.{name}") for name in names]}}
    users = {"user": [{"username": "user2"}, {"username": "user1"}]} if own == "b.b1" else None
    factor = 1.0 if own.startswith("a.a1") else 100.0
    return table | {"userLimit": 100, "userLimitFactor": factor, "users": users}


def answered(info: Mapping[str, Any], **options: Any) -> ImportedQueues:
    data = json.dumps({"scheduler": {"schedulerInfo": info}}).encode()
    return answered_queues(answer_of(data, "scheduler.json", "scheduler"), "scheduler.json", **options)


def in_xml(tag: str, value: Any) -> str:
    """A value as the service writes it in XML."""
    if isinstance(value, Mapping):
        kind = f' xmlns:xsi="x" xsi:type="{value["type"]}"' if "type" in value else ""
        inner = "".join(in_xml(name, each) for name, each in value.items() if name != "type")
        return f"<{tag}{kind}>{inner}</{tag}>"
    if isinstance(value, list):
        return "".join(in_xml(tag, each) for each in value)
    return f"<{tag}>{escape('' if value is None else str(value))}</{tag}>"


def test_the_answer_of_the_page_gives_the_queues_of_its_file(tmp_path: Path) -> None:
    found = answered(of_page() | {"type": "capacityScheduler"})
    made = tree(found)
    from_file = tree(capacity(tmp_path, REST_PAGE))
    assert made.paths == from_file.paths
    assert made.guarantee == pytest.approx(from_file.guarantee)
    assert made.limit == pytest.approx(from_file.limit)
    assert made.tenants[made.leaf_paths.index("b.b1")] == ("user2", "user1")
    xml = in_xml("scheduler", {"schedulerInfo": of_page() | {"type": "capacityScheduler"}}).encode()
    assert answered_queues(answer_of(xml, "s.xml", "scheduler"), "s.xml").section == found.section


def test_weights_and_absolute_resources_of_newer_answers() -> None:
    """As in Hadoop's own tests: a weight beside a capacity of 0; amounts of the partition without a name."""
    weighted = [leaf("a", capacity=0, weight=10), leaf("b", capacity=0, weight=35, maxParallelApps=9)]
    found = answered({"type": "capacityScheduler", "queueName": "root", "queues": {"queue": weighted}})
    assert found.section["a"]["guarantee"] == pytest.approx(0.22222222)  # its normalizedWeight there
    assert found.section["b"]["max_running"] == 9
    least = {"partitionName": "", "configuredMinResource": resource(1024, 5)}
    absolute = leaf(
        "a",
        capacity=0,
        weight=-1,
        isAbsoluteResource=True,
        capacities={"queueCapacitiesByPartition": [{"partitionName": "x"}, least]},
        preemptionDisabled=False,
    )
    info = {
        "type": "capacityScheduler",
        "queueName": "root",
        "queues": {"queue": absolute},
    }  # one alone: no list
    one = answered(info)
    assert one.section["a"]["guarantee"] == {"memory_gib": 1.0, "cpus": 5.0, "gpus": 0.0}
    assert one.section["a"]["notice_s"] == 18.0
    assert why(one, "scheduler.monitor") == ["times of preemption are not in the answer: 18 s, the default"]


def test_the_fair_answer_of_the_page() -> None:
    """8,192 MB; a minimum of 10,000 MB is all of them, and one of 5,000 MB below it."""
    cluster = {"memory": 8192, "vCores": 8}
    none = {"memory": 0, "vCores": 0}

    def queue(name: str, least: int, max_apps: int = 2**31 - 1, **more: Any) -> dict[str, Any]:
        amounts = {"minResources": {"memory": least, "vCores": 0}, "maxResources": cluster}
        same = {"clusterResources": cluster, "fairResources": none, "usedResources": none}
        return {"queueName": name, "maxApps": max_apps, "schedulingPolicy": "fair", **same, **amounts, **more}

    sub = queue("root.sample_queue.sample_sub_queue", 5000)
    below = [queue("root.default", 0), queue("root.sample_queue", 10_000, 50, childQueues={"queue": sub})]
    found = answered({"type": "fairScheduler", "rootQueue": queue("root", 0, childQueues={"queue": below})})
    sample = found.section["sample_queue"]
    assert (sample["guarantee"], sample["max_running"]) == (1.0, 50)
    assert sample["queues"]["sample_sub_queue"]["guarantee"] == pytest.approx(5000 / 8192)
    assert "limit" not in sample
    assert "tenants" not in found.section["default"]
    assert why(found, "weights") == ["all 1: no steady fair shares in it"]


def test_steady_shares_stand_for_weights() -> None:
    total = resource(9000, 9)
    queues = [
        {"queueName": f"root.{name}", "steadyFairResources": resource(share, 0), "schedulingPolicy": "fair"}
        for name, share in (("a", 6000), ("b", 3000))
    ]
    root = {"queueName": "root", "clusterResources": total, "childQueues": queues}
    section = answered({"type": "fairScheduler", "rootQueue": root}).section
    assert section["a"]["weight"] == pytest.approx(2 * section["b"]["weight"])


def imported(nodes: Any, apps: Any, scheduler: Any = SCHEDULER, **options: Any) -> ImportedCluster:
    bodies = {"nodes": {"node": nodes}, "apps": {"app": apps}, "scheduler": {"schedulerInfo": scheduler}}
    files = {name: f"{name}.json" for name in bodies}
    answers = {
        name: answer_of(json.dumps({name: body}).encode(), files[name], name) for name, body in bodies.items()
    }
    return imported_cluster(answers, files, **options)


def rows(made: ImportedCluster) -> list[dict[str, str]]:
    return list(csv.DictReader(made.jobs.splitlines()))


def test_applications_become_jobs_with_the_mean_of_what_they_took() -> None:
    made = imported([node(), node("LOST")], PAGE_APPS)
    assert made.slots == "cpus"
    first, second = rows(made)
    assert first["job_id"].endswith("_0001")
    assert (first["submit_s"], first["gpus"], first["duration_s"]) == ("0.0", "4", "25.196")  # 4.09 vcores
    assert (second["submit_s"], second["gpus"], second["duration_s"]) == ("68.046", "3", "148.166")  # 2.98
    assert float(first["memory_gib_per_gpu"]) == pytest.approx(151730 / 25.196 / 1024 / 4, rel=1e-5)
    assert (first["tenant"], first["priority"], second["priority"]) == ("user1", "3", "0")
    assert made.left_out == ("1 node in state LOST",)
    types = made.scenario["cluster"]["types"]
    assert types["node-1"]["accelerators"] == 8
    assert types["node-1"]["resources"] == {"cpu_cores": 8.0, "ram_gib": 5.0}
    assert made.scenario["queues"]["a"]["tenants"] == ["a"]  # no job is in it
    assert made.scenario["queues"]["default"]["guarantee"] == 0.4


def test_gpu_seconds_count_where_nodes_have_gpus_and_tenants_have_one_queue() -> None:
    entries = [{"key": "memory-mb", "value": "409600"}, {"key": "yarn.io/gpu", "value": "200"}]
    took = {"resourceSecondsMap": {"entry": entries}, "memorySeconds": 409600, "vcoreSeconds": 400}
    times = {"startedTime": 1000, "launchTime": 11_000, "finishedTime": 111_000}
    apps = [
        app("a1", "root.a", "user1", **took, **times),
        app("a2", "default", "user1", **took, **times),
        app("a3", "a", "user2", **took, **times),
        app("a4", "a", "user2", **times, vcoreSeconds=100),
        app("a5", "gone", "user2", **took, **times),
        app("a6", "a", "user2", **took, **times) | {"state": "RUNNING"},
    ]
    made = imported([node(gpus=4, nodeLabels=["fast"]), node(gpus=4), node()], apps)
    assert made.slots == "gpus"
    assert [row["tenant"] for row in rows(made)] == ["a/user1", "default/user1", "user2"]
    one = rows(made)[0]
    assert (one["gpus"], one["duration_s"], one["cpus_per_gpu"]) == ("2", "100.0", "2")
    assert float(one["memory_gib_per_gpu"]) == 2.0
    assert made.scenario["queues"]["a"]["tenants"] == ["a/user1", "user2"]
    assert "tenants" not in made.scenario["queues"]["default"]
    assert made.scenario["queues"]["a"]["user_limit"] == pytest.approx(0.6)
    assert set(made.left_out) == {
        "1 node without gpus",
        "1 application that have not ended",
        "1 application of gone, which is no leaf of the scheduler's answer",
        "1 application that took no gpus",
    }
    assert made.scenario["cluster"]["nodes"][0] == {"type": "node-1", "count": 1, "labels": ["fast"]}
    assert [row["gpus"] for row in rows(imported([node(gpus=4)], apps, slots="cpus"))] == ["4"] * 3 + ["1"]


def test_a_map_whose_entries_share_one_key_is_read_whole() -> None:
    """Some versions write `"entry"` again for each resource; a plain reader keeps the last only."""
    entries = b"""{"entry": {"key": "yarn.io/gpu", "value": "7"}, "entry": {"key": "vcores", "value": "8"}}"""
    text = b'{"apps": {"app": {"id": "x", "resourceSecondsMap": ' + entries + b"}}}"
    table = answer_of(text, "apps.json", "apps")["app"]
    assert [one["key"] for one in table["resourceSecondsMap"]["entry"]] == ["yarn.io/gpu", "vcores"]


REFUSED = [
    ({"apps": []}, r"apps\.json: apps: no jobs; expected at least one application that ended"),
    ({"nodes": [node("LOST")]}, r"nodes\.json: nodes: no node that runs has gpus"),
    ({"nodes": [node(availMemoryMB="x")]}, r"nodes\.json: nodes\.node\[0\], availMemoryMB: no number.*'x'"),
    ({"apps": [PAGE_APPS[0] | {"finishedTime": 5}]}, r"apps\.app\[0\], finishedTime: ended before it began"),
    ({"scheduler": {"type": "fifoScheduler"}}, r"schedulerInfo\.type: no queues.*'fifoScheduler'"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_answers_that_give_nothing_are_refused(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"nodes": [node()], "apps": PAGE_APPS, "scheduler": SCHEDULER}
    slots = {"slots": "gpus"} if "LOST" in str(change) else {}
    with pytest.raises(UsageError, match=message):
        imported(**given | change, **slots)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", r"n\.json: no JSON"),
        (b'{"apps": 1}', r"another answer.*'apps'.*the key 'nodes'"),
        (b"[]", "list"),
    ],
)
def test_other_documents_are_no_answer(data: bytes, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        answer_of(data, "n.json", "nodes")


@contextmanager
def served(bodies: Mapping[str, bytes]) -> Iterator[str]:
    """A server that answers these paths; others with 401."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = bodies.get(self.path)
            self.send_response(401 if body is None else 200)
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_answers_come_from_an_address_or_a_folder(tmp_path: Path) -> None:
    bodies = {name: json.dumps({name: {}}).encode() for name in ("nodes", "scheduler", "apps")}
    with served({f"/ws/v1/cluster/{name}": body for name, body in bodies.items()}) as address:
        assert fetched(address) == bodies
    with (
        served({}) as address,
        pytest.raises(UsageError, match=r"cluster/nodes: refused: HTTP 401.*curl --neg"),
    ):
        fetched(address)
    with pytest.raises(UsageError, match=r"cluster/nodes: no answer.*the address of a ResourceManager"):
        fetched(address)
    (tmp_path / "nodes.xml").write_bytes(b"<nodes/>")
    with pytest.raises(UsageError, match=r"scheduler\.json: an answer is missing.*/ws/v1/cluster/scheduler"):
        saved(tmp_path)
