"""The driver of a Spark application in this process, and its REST interface on executors and tasks."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import requests
from pyspark import SparkConf, SparkContext

from trimtab.errors import ClusterLost, UsageError

LOCALITY_WAIT_S: Final = 60  # that Spark keeps a task for its host while that one is busy
ANSWER_S: Final = 60.0  # for an answer of the REST interface, whose first takes long on a busy machine
EXECUTORS_S: Final = 300.0  # for the first executors to register
_REACH_S: Final = 5.0  # for a master to take a connection
_LOOK_S: Final = 0.2
_PORT: Final = 7077


def connect(
    master: str, *, app: str = "trimtab", python: str = "", settings: Mapping[str, str] | None = None
) -> SparkContext:
    """Start a Spark application whose tasks wait for the hosts that they prefer.

    Args:
        master: spark://HOST:PORT, or what else Spark takes, such as local[2] or yarn.
        app: its name.
        python: program that runs tasks on the hosts. Default: PYSPARK_PYTHON, else python3.
        settings: of Spark, over those that placement needs.

    Raises UsageError without Java, for a master that does not answer, and where an application runs here.
    """
    if (running := SparkContext._active_spark_context) is not None:
        expected = "one application a process: stop that one, or give it to `placed`"
        raise UsageError(
            "a Spark application runs here", field="spark", value=running.applicationId, expected=expected
        )
    java = os.environ.get("JAVA_HOME")
    if shutil.which(str(Path(java, "bin", "java")) if java else "java") is None:
        value = f"JAVA_HOME={java}" if java else "no program java on the path"
        raise UsageError(
            "Spark needs Java", field="spark", value=value, expected="a JDK, version 17 or newer"
        )
    _check_master(master)
    conf = SparkConf().setMaster(master).setAppName(app)
    for name, value in {"spark.locality.wait": f"{LOCALITY_WAIT_S}s", **(settings or {})}.items():
        conf.set(name, value)
    try:
        made = SparkContext(conf=conf)
    except Exception as error:  # py4j raises many kinds
        problem = f"the Spark application does not start: {str(error).strip().splitlines()[0]}"
        raise UsageError(problem, field="spark", value=master, expected="a master that takes it") from error
    made.pythonExec = python or made.pythonExec
    return made


def _check_master(master: str) -> None:
    """Raise UsageError for a master that takes no connection: Spark would try for a minute, then end."""
    if not master.startswith("spark://"):
        return
    reasons = []
    for place in master.removeprefix("spark://").split(","):  # with standby masters there are several
        host, _, port = place.rpartition(":") if ":" in place else (place, "", str(_PORT))
        try:
            with socket.create_connection((host.strip("[]"), int(port)), _REACH_S):
                return
        except ValueError:
            raise UsageError(
                "no address", field="spark", value=master, expected="spark://HOST:PORT"
            ) from None
        except OSError as error:
            reasons.append(f"{place}: {error.strerror or error}")
    raise UsageError(
        f"no master answers ({'; '.join(reasons)})", field="spark", value=master, expected="a running master"
    )


def epoch_s(told: str) -> float:
    """A time of the REST interface in seconds since the epoch."""
    return datetime.strptime(told.replace("GMT", "+0000"), "%Y-%m-%dT%H:%M:%S.%f%z").timestamp()


@dataclass(frozen=True)
class SparkHost:
    """A host with executors of an application."""

    name: str
    slots: int  # tasks of a job at a time
    executors: tuple[str, ...] = field(default=())


class SparkRest:
    """The REST interface of an application's driver. Raises UsageError for an application without one."""

    def __init__(self, sc: SparkContext) -> None:
        if sc._jsc is None or sc._jsc.sc().isStopped():
            raise UsageError("the Spark application has ended", field="spark", expected="a running one")
        if sc.uiWebUrl is None:
            expected = "spark.ui.enabled=true: where tasks ran is read there"
            raise UsageError(
                "the Spark application has no REST interface", field="spark.ui.enabled", expected=expected
            )
        self._url = f"{sc.uiWebUrl}/api/v1/applications/{sc.applicationId}"

    def _get(self, path: str) -> Any:
        try:
            answer = requests.get(f"{self._url}{path}", timeout=ANSWER_S)
            answer.raise_for_status()
            return answer.json()
        except (requests.RequestException, ValueError) as error:
            raise ClusterLost(f"the driver of Spark does not answer at {self._url}: {error}") from error

    def hosts(self, cpus: int, gpus: int, at_least: int) -> list[SparkHost]:
        """The hosts with room, by name, once so many have executors. Raises UsageError for too few, or none.

        Args:
            cpus: that a task takes.
            gpus: that a task takes.
        """
        until_s = time.monotonic() + EXECUTORS_S
        while len(found := self._hosts(cpus, gpus)) < at_least:
            if time.monotonic() > until_s:
                raise UsageError(
                    f"too few hosts of Spark have executors after {EXECUTORS_S:g} s", field="hosts",
                    value=len(found), expected=f"at least {at_least}",
                )  # fmt: skip
            time.sleep(_LOOK_S)
        able = [host for host in found if host.slots]
        if not able:
            told = f"{cpus} cores and {gpus} GPUs" if gpus else f"{cpus} cores"
            raise UsageError("a task fits no executor", field="spark", value=told, expected="less")
        return able

    def _hosts(self, cpus: int, gpus: int) -> list[SparkHost]:
        slots: dict[str, int] = {}
        executors: dict[str, list[str]] = {}
        for one in self._get("/executors"):
            name = one["hostPort"].rpartition(":")[0]
            if not one["isActive"] or one["totalCores"] == 0 or not name:  # the driver; one that registers
                continue
            room = one["totalCores"] // cpus
            if gpus:
                room = min(room, len(one["resources"].get("gpu", {}).get("addresses", ())) // gpus)
            slots[name] = slots.get(name, 0) + room
            executors.setdefault(name, []).append(one["id"])
        return [SparkHost(name, slots[name], tuple(executors[name])) for name in sorted(slots)]

    def lost_hosts_s(self) -> dict[str, float]:
        """When each host without executors lost its last one, in seconds since the epoch."""
        lost: dict[str, float] = {}
        for one in self._get("/allexecutors"):
            if not one["isActive"] and "removeTime" in one:
                name = one["hostPort"].rpartition(":")[0]
                lost[name] = max(lost.get(name, 0.0), epoch_s(one["removeTime"]))
        active = self.active_hosts()
        return {name: at_s for name, at_s in lost.items() if name not in active}

    def active_hosts(self) -> set[str]:
        """The hosts that have executors now."""
        return {host.name for host in self._hosts(1, 0)}

    def tasks(self, rdd_id: int) -> list[dict[str, Any]]:
        """The attempts at tasks of the last stage that computed an RDD, once they have ended."""
        stages = [one for one in self._get("/stages") if rdd_id in one["rddIds"]]
        if not stages:
            return []
        last = max(one["stageId"] for one in stages)
        found: list[dict[str, Any]] = []
        for stage in (one for one in stages if one["stageId"] == last):
            path = f"/stages/{last}/{stage['attemptId']}/taskList?length={2**31 - 1}"
            until_s = time.monotonic() + ANSWER_S
            listed = self._get(path)
            while stage["status"] != "ACTIVE" and any(one["status"] == "RUNNING" for one in listed):
                if time.monotonic() > until_s:
                    break
                time.sleep(_LOOK_S)  # the interface lags behind
                listed = self._get(path)
            found += listed
        return found
