"""YARN's files and answers for tests: the examples of Hadoop's pages, typed anew."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trimtab.clusters.yarn.imported_queues import ImportedQueues
from trimtab.clusters.yarn.read_queues import queues_of_files

PREFIX = "yarn.scheduler.capacity."

REST_PAGE: Mapping[str, object] = {
    # "ResourceManager REST APIs", Capacity Scheduler API: the queues of the example answer
    "root.queues": "a,b",
    "root.a.queues": "a1, a2",
    "root.a.a1.queues": "a1a,a1b",
    "root.b.queues": "b1,b2,b3",
    "root.a.capacity": 10.5,
    "root.a.maximum-capacity": 50,
    "root.a.a1.capacity": 30,
    "root.a.a1.maximum-capacity": 50,
    "root.a.a1.a1a.capacity": 85,
    "root.a.a1.a1b.capacity": 15,
    "root.a.a2.capacity": 70,
    "root.b.capacity": 89.5,
    "root.b.maximum-capacity": -1,
    "root.b.b1.capacity": 60,
    "root.b.b2.capacity": 39.5,
    "root.b.b3.capacity": 0.5,
}

ABSOLUTE_PARTS = {
    # absoluteCapacity and absoluteMaxCapacity of that answer, in per cent
    "a": (10.5, 50.0),
    "b": (89.5, 100.0),
    "a.a1": (3.15, 25.0),
    "a.a1.a1a": (2.6775, 25.0),
    "a.a1.a1b": (0.4725, 25.0),
    "a.a2": (7.35, 50.0),
    "b.b1": (53.7, 100.0),
    "b.b2": (35.3525, 100.0),
    "b.b3": (0.4475, 100.0),
}

FAIR_PAGE = """<?xml version="1.0"?>
<allocations>
  <!-- "Fair Scheduler", the example allocation file -->
  <queue name="sample_queue">
    <minResources>10000 mb, 0 vcores</minResources>
    <maxResources>90000 mb, 0 vcores</maxResources>
    <maxRunningApps>50</maxRunningApps>
    <maxAMShare>0.1</maxAMShare>
    <weight>2.0</weight>
    <schedulingPolicy>fair</schedulingPolicy>
    <queue name="sample_sub_queue">
      <aclSubmitApps>someone</aclSubmitApps>
      <minResources>5000 mb, 0 vcores</minResources>
    </queue>
    <queue name="sample_reservable_queue"><reservation/></queue>
  </queue>
  <queueMaxAMShareDefault>0.5</queueMaxAMShareDefault>
  <queueMaxResourcesDefault>40000 mb, 0 vcores</queueMaxResourcesDefault>
  <queue name="secondary_group_queue" type="parent">
    <weight>3.0</weight>
    <maxChildResources>4096 mb, 4 vcores</maxChildResources>
  </queue>
  <user name="sample_user"><maxRunningApps>30</maxRunningApps></user>
  <userMaxAppsDefault>5</userMaxAppsDefault>
  <queuePlacementPolicy>
    <rule name="specified"/>
    <rule name="primaryGroup" create="false"/>
    <rule name="nestedUserQueue"><rule name="secondaryGroupExistingQueue" create="false"/></rule>
    <rule name="default" queue="sample_queue"/>
  </queuePlacementPolicy>
</allocations>
"""


def configuration(properties: Mapping[str, object], prefix: str = PREFIX) -> str:
    """A `<configuration>` of these properties, one a line."""
    lines = [
        f"<property><name>{prefix}{name}</name><value>{value}</value></property>"
        for name, value in properties.items()
    ]
    return "\n".join(["<configuration>", *lines, "</configuration>"])


def capacity(
    folder: Path, properties: Mapping[str, object], total: str = "", site: str = ""
) -> ImportedQueues:
    """The queues of a capacity-scheduler.xml, with a yarn-site.xml of this text where there is one."""
    files = [folder / "capacity-scheduler.xml"]
    files[0].write_text(configuration(properties))
    if site:
        files.append(folder / "yarn-site.xml")
        files[1].write_text(site)
    return queues_of_files(files, total)


def fair(folder: Path, body: str, total: str = "", site: str = "") -> ImportedQueues:
    """The queues of an allocation file: its text, or what is between its root's tags."""
    files = [folder / "fair-scheduler.xml"]
    files[0].write_text(body if "<allocations>" in body else f"<allocations>{body}</allocations>")
    if site:
        files.append(folder / "yarn-site.xml")
        files[1].write_text(site)
    return queues_of_files(files, total)


def resource(memory_mb: int, cores: int, gpus: int = 0) -> dict[str, Any]:
    """A resource of newer versions."""
    named = (("memory-mb", memory_mb, "Mi"), ("vcores", cores, ""), ("yarn.io/gpu", gpus, ""))
    listed = [{"name": name, "value": value, "units": units} for name, value, units in named]
    return {"memory": memory_mb, "vCores": cores, "resourceInformations": {"resourceInformation": listed}}


def leaf(name: str, **values: Any) -> dict[str, Any]:
    """A leaf of an answer about the Capacity Scheduler."""
    return {"queueName": name, "state": "RUNNING", "userLimit": 100, "userLimitFactor": 1, **values}


def node(state: str = "RUNNING", gpus: int = 0, **more: Any) -> dict[str, Any]:
    """A node of 8 vcores and 5 GiB."""
    table = {"state": state, "usedMemoryMB": 1024, "availMemoryMB": 4096}
    cores = {"usedVirtualCores": 3, "availableVirtualCores": 5}
    return {**table, **cores, "totalResource": resource(5120, 8, gpus), **more}


def app(name: str, queue: str, user: str, **more: Any) -> dict[str, Any]:
    """An application that ended."""
    return {"id": name, "queue": queue, "user": user, "state": "FINISHED", **more}


# The two applications of the page: 103 vcore seconds in 25.196 s, 442 in 148.166 s
PAGE_APPS = [
    app(
        "application_1326815542473_0002",
        "default",
        "user1",
        startedTime=1326815641380,
        finishedTime=1326815789546,
        memorySeconds=640064,
        vcoreSeconds=442,
        applicationPriority=0,
    ),
    app(
        "application_1326815542473_0001",
        "default",
        "user1",
        startedTime=1326815573334,
        finishedTime=1326815598530,
        memorySeconds=151730,
        vcoreSeconds=103,
        applicationPriority=3,
    ),
]
SCHEDULER = {
    "type": "capacityScheduler",
    "queueName": "root",
    "queues": {"queue": [leaf("default", capacity=40), leaf("a", capacity=60)]},
}


def save_answers(folder: Path, **changed: Any) -> Path:
    """The three answers about one node and the applications of the page, as files; some of them changed."""
    folder.mkdir()
    answers = {
        "nodes": {"node": [node()]},
        "apps": {"app": PAGE_APPS},
        "scheduler": {"schedulerInfo": SCHEDULER},
    }
    for name, body in (answers | changed).items():
        (folder / f"{name}.json").write_text(json.dumps({name: body}))
    return folder
