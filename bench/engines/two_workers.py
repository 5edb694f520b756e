"""Two unequal workers, `fast` and `slow`, of one slot each, for every engine: started, and stopped again.

A worker is what the engine calls a machine: a Ray node, a Dask worker, a Spark worker, a node of Slurm, a
process. All are on this one, and each tells its tasks by an environment variable which one it is.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from bench.engines.workload import WORKERS

ROOT = Path(__file__).parents[2]

NAME = "BENCH_WORKER"
KFP = ROOT / ".venv-kfp" / "bin" / "python"  # kfp wants other versions than trimtab
UP_S = 120.0  # for a worker to be there
JAVA_HOME = "/usr/lib/jvm/java-17-openjdk-amd64"


@contextmanager
def program(
    command: list[str], folder: Path, name: str, **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a log in the folder; killed in the end."""
    with (folder / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            cwd=folder,
            env={**os.environ, **environment},
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 15)
        try:
            process.wait(10.0)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()


def until(is_up: Callable[[], bool], what: str) -> None:
    """Wait for something to be there. Raises TimeoutError."""
    begun_s = time.monotonic()
    while not is_up():
        if time.monotonic() - begun_s > UP_S:
            raise TimeoutError(f"{what} is not there after {UP_S:g} s")
        time.sleep(0.05)


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens at."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class _Names:
    """Names each process of a pool as it starts; one that takes the place of another gets none left."""

    def __init__(self) -> None:
        self.left: Any = multiprocessing.Manager().list(WORKERS)

    def __call__(self) -> None:
        os.environ[NAME] = self.left.pop(0)


@contextmanager
def pool(folder: Path) -> Iterator[Any]:
    """What names the two processes of a pool."""
    yield _Names()


@contextmanager
def ray_nodes(folder: Path) -> Iterator[str]:
    """A head without slots, and two nodes."""
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    cluster = Cluster(True, head_node_args={"num_cpus": 0, "node_name": "head", "include_dashboard": False})
    try:
        for name in WORKERS:
            cluster.add_node(num_cpus=1, num_gpus=int(name == "fast"), node_name=name, env_vars={NAME: name})
        yield cluster.address
    finally:
        cluster.shutdown()


@contextmanager
def dask_workers(folder: Path) -> Iterator[str]:
    """A scheduler and two workers, each with its nanny, as the command line starts them."""
    port = free_port()
    address, dask = f"tcp://127.0.0.1:{port}", [sys.executable, "-m", "dask"]
    scheduler = [*dask, "scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard"]
    with ExitStack() as stack:
        stack.enter_context(program(scheduler, folder, "scheduler"))
        for name in WORKERS:
            worker = [*dask, "worker", address, "--nthreads", "1", "--name", name, "--no-dashboard"]
            stack.enter_context(program(worker, folder, name, **{NAME: name}))
        from distributed import Client

        with Client(address, timeout=UP_S) as client:
            client.wait_for_workers(len(WORKERS), timeout=UP_S)
        yield address


@contextmanager
def spark_workers(folder: Path) -> Iterator[str]:
    """A standalone master and two workers, each with an address of its own, so that they are two hosts."""
    import json
    import urllib.request

    import pyspark

    port, web = free_port(), free_port()
    spark_class = str(Path(pyspark.__file__).parent / "bin/spark-class")
    address, deploy = f"spark://127.0.0.1:{port}", "org.apache.spark.deploy"
    java = {"JAVA_HOME": JAVA_HOME, "SPARK_DAEMON_MEMORY": "256m", "PYSPARK_PYTHON": sys.executable}
    os.environ.update(java, SPARK_LOCAL_IP="127.0.0.1")
    master = [spark_class, f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port)]
    master += ["--webui-port", str(web)]

    def alive() -> int:
        with (
            suppress(OSError, ValueError),
            urllib.request.urlopen(f"http://127.0.0.1:{web}/json/", timeout=5) as answer,
        ):
            return sum(worker["state"] == "ALIVE" for worker in json.load(answer)["workers"])
        return 0

    with ExitStack() as stack:
        stack.enter_context(program(master, folder, "master", **java))
        for k, name in enumerate(WORKERS):
            host = f"127.0.0.{k + 2}"
            worker = [spark_class, f"{deploy}.worker.Worker", "--host", host, "-c", "1", "-m", "1g", address]
            own = {NAME: name, "SPARK_LOCAL_IP": host, "SPARK_WORKER_DIR": str(folder / name)}
            stack.enter_context(program(worker, folder, name, **java, **own))
        until(lambda: alive() == len(WORKERS), "a worker of Spark")
        yield address


_SLURM = """ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={folder}/munge.sock
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
SchedulerParameters=sched_interval=1,batch_sched_delay=0,sched_min_interval=1000
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
{nodes}
PartitionName=two Nodes={names} Default=YES State=UP
"""
_NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} "
    "CPUs=1 Sockets=1 CoresPerSocket=1 ThreadsPerCore=1 RealMemory=1000"
)


@contextmanager
def slurm_nodes(folder: Path) -> Iterator[str]:
    """A controller and two nodes; the configuration's file."""
    host, conf = socket.gethostname(), folder / "slurm.conf"
    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o400)
    nodes = [_NODE.format(name=name, host=host, port=free_port()) for name in WORKERS]
    conf.write_text(
        _SLURM.format(
            host=host, port=free_port(), folder=folder, nodes="\n".join(nodes), names=",".join(WORKERS)
        )
    )
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    os.environ["SLURM_CONF"] = str(conf)
    files = [f"--{kind}-file={folder}/munge.{kind}" for kind in ("pid", "log", "seed")]
    munge = [
        "munged",
        "--force",
        "--foreground",
        f"--key-file={key}",
        f"--socket={folder}/munge.sock",
        *files,
    ]
    with ExitStack() as stack:
        stack.enter_context(program(munge, folder, "munged"))
        until((folder / "munge.sock").exists, "munge")
        stack.enter_context(program(["slurmctld", "-c", "-D"], folder, "controller"))
        for name in WORKERS:
            (folder / f"spool-{name}").mkdir()
            stack.enter_context(program(["slurmd", "-D", "-N", name], folder, f"node-{name}"))
        until(lambda: _idle_nodes() == len(WORKERS), "a node of Slurm")
        yield str(conf)


def _idle_nodes() -> int:
    done = subprocess.run(["sinfo", "-hN", "-o", "%T"], capture_output=True, text=True, check=False)
    return done.stdout.split().count("idle")


@contextmanager
def folder_only(folder: Path) -> Iterator[str]:
    """Nothing to start."""
    yield str(folder)


@contextmanager
def trimtab_processes(folder: Path) -> Iterator[Any]:
    """Worker processes of trimtab."""
    from trimtab.clusters.processes import Processes

    yield Processes(stage_nodes())


@contextmanager
def dask_placement(folder: Path) -> Iterator[str]:
    """Workers of Dask; a policy of trimtab in their scheduler places tasks."""
    from distributed import Client

    from trimtab.clusters.dask import Placement

    with dask_workers(folder) as address:
        with Client(address) as client:
            client.register_plugin(Placement())
        yield address


@contextmanager
def trimtab_dask(folder: Path) -> Iterator[Any]:
    """Worker processes of trimtab on workers of Dask."""
    from trimtab.clusters.backends import backend

    with dask_workers(folder) as address:
        yield backend(address.replace("tcp://", "dask://"))


@contextmanager
def trimtab_slurm(folder: Path) -> Iterator[Any]:
    """Worker processes of trimtab in jobs of Slurm."""
    from trimtab.clusters.backends import backend

    with slurm_nodes(folder):
        settings = folder / "slurm.yaml"
        settings.write_text(f"partition: two\noutput: {folder}/trimtab-%j.out\n")
        yield backend(f"slurm://{settings}")


@contextmanager
def kfp_imported(folder: Path) -> Iterator[Any]:
    """Worker processes of trimtab, and the two pipelines of `kfp_local` as chains."""
    source = ROOT / "bench/engines/programs/kfp_local.py"
    sys.path.append(str(folder))
    found = []
    for name in ("images_pipeline", "paced_pipeline"):
        made = folder / f"{name}.yaml"
        compiled = ["dsl", "compile", "--py", str(source), "--function", name, "--output", str(made)]
        subprocess.run([KFP, KFP.with_name("kfp"), *compiled], check=True, capture_output=True)
        imported = ["chain", "import", "kfp", str(made), "--out", str(folder / f"imported_{name}.py")]
        subprocess.run([sys.executable, "-m", "trimtab", *imported], check=True, capture_output=True)
        found.append(getattr(importlib.import_module(f"imported_{name}"), name))
    with trimtab_processes(folder) as backend:
        yield backend, *found


@contextmanager
def trimtab_ray(folder: Path) -> Iterator[Any]:
    """Actors of trimtab on the same nodes of Ray."""
    import ray

    from trimtab.clusters.ray.ray_backend import Ray

    with ray_nodes(folder) as address:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        yield Ray(stage_nodes(is_machine=True))
        ray.shutdown()


def stage_nodes(*, is_machine: bool = False, depth: int = 1) -> list[Any]:
    """The two as nodes of trimtab; each is a machine of that name, or both are on this one."""
    from trimtab.live.stage_backend import StageNode

    return [
        StageNode(name, type=name, machine=name if is_machine else "local", depth=depth) for name in WORKERS
    ]


TWO_WORKERS: Mapping[str, Callable[[Path], Any]] = {
    "pool": pool,
    "ray": ray_nodes,
    "dask": dask_workers,
    "spark": spark_workers,
    "kfp": folder_only,
    "slurm": slurm_nodes,
    "kfp-imported": kfp_imported,
    "trimtab-processes": trimtab_processes,
    "trimtab-ray": trimtab_ray,
    "dask-placement": dask_placement,
    "trimtab-dask": trimtab_dask,
    "trimtab-slurm": trimtab_slurm,
}
