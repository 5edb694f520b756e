"""A standalone Spark cluster on this machine: a master, and workers with addresses and fake GPUs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from support.ports import reserved_port
from support.waiting import wait_until

CORES, GPUS = 2, 2  # of each worker
START_S = 240.0
_SCRIPT = """#!/bin/sh
echo "{\\"name\\": \\"gpu\\", \\"addresses\\": [\\"${FAKE_HOST}0\\", \\"${FAKE_HOST}1\\"]}"
"""


class SparkCluster:
    """Workers at 127.0.0.2 and on; GPU 31 is the second one of 127.0.0.3."""

    def __init__(self, folder: Path, workers: int = 3) -> None:
        import pyspark

        self._folder, self._home = folder, Path(pyspark.__file__).parent
        self.hosts = [f"127.0.0.{2 + k}" for k in range(workers)]
        self._ports = ExitStack()
        self._port, self._web_port = (self._ports.enter_context(reserved_port()) for _ in range(2))
        self.master = f"spark://127.0.0.1:{self._port}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> SparkCluster:
        script = self._folder / "gpus.sh"
        script.write_text(_SCRIPT)
        script.chmod(0o755)
        settings = self._folder / "worker.conf"
        settings.write_text(
            f"spark.worker.resource.gpu.amount {GPUS}\nspark.worker.resource.gpu.discoveryScript {script}\n"
        )
        ports = ["--port", str(self._port), "--webui-port", str(self._web_port)]
        self._start("127.0.0.1", "master.Master", ["--host", "127.0.0.1", *ports])
        for host in self.hosts:
            room = ["-c", str(CORES), "-m", "1g", "--webui-port", "0", "--properties-file", str(settings)]
            self._start(host, "worker.Worker", ["--host", host, *room, self.master])
        wait_until(self.alive, lambda alive: len(alive) == len(self.hosts), timeout_s=START_S)
        return self

    def _start(self, host: str, program: str, arguments: list[str]) -> None:
        work = self._folder / host
        work.mkdir()
        env = os.environ | {
            "SPARK_HOME": str(self._home),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_IP": host,
            "SPARK_WORKER_DIR": str(work),
            "FAKE_HOST": host.rpartition(".")[2],
        }
        command = [str(self._home / "bin" / "spark-class"), f"org.apache.spark.deploy.{program}", *arguments]
        with (work / "log").open("wb") as log:
            self._processes[host] = subprocess.Popen(
                command, env=env, stdout=log, stderr=log, start_new_session=True
            )

    def alive(self) -> set[str]:
        """The hosts of the workers that the master knows."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._web_port}/json/", timeout=10) as answer:
                told: dict[str, Any] = json.load(answer)
        except (OSError, ValueError):
            return set()
        return {worker["host"] for worker in told["workers"] if worker["state"] == "ALIVE"}

    def kill(self, host: str) -> None:
        """Kill a worker; its executors end with it."""
        process = self._processes.pop(host)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def __exit__(self, *_: object) -> None:
        for host in list(self._processes):
            self.kill(host)
        self._ports.close()


def host_of_gpu(address: str) -> str:
    """The host that has a fake GPU."""
    return f"127.0.0.{address[:-1]}"
