"""Tiny programs that show what an engine can express. Each fails where it can't, and says what was seen.

They take what the engine's program is connected by, and run after its measurements, on the same two workers.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.engines.shown_trimtab import TRIMTAB
from bench.engines.workload import Counter, nap


def _worker() -> str:
    return os.environ.get("BENCH_WORKER", "")


# Pool.


def _pool_fan_out(pool: Any) -> str:
    count = pool.submit(len, "abc").result()
    assert sorted(pool.map(abs, range(-count, 0))) == [1, 2, 3]
    return "a result said how many tasks came next; the program waited for it"


# Ray.


def _ray_fan_out(on: None) -> str:
    import ray

    @ray.remote
    def one(k: int) -> int:
        return k

    @ray.remote
    def many(count: int) -> int:
        return sum(ray.get([one.remote(k) for k in range(count)]))

    assert ray.get(many.remote(4)) == 6
    return "a task submitted four more and waited for them"


def _ray_actors(on: None) -> str:
    import ray

    counter = ray.remote(num_cpus=0)(Counter).remote()
    assert ray.get([counter.add.remote() for _ in range(3)]) == [1, 2, 3]
    return "three calls of one object counted to 3"


def _ray_gpu(on: None) -> str:
    import ray

    half = ray.remote(num_cpus=0, num_gpus=0.5)(_Holder)
    actors = [half.remote() for _ in range(2)]
    first, second = ray.get([actor.gpus.remote() for actor in actors])
    assert first == second
    assert first
    return "two actors of num_gpus=0.5 were there at a time, on one declared GPU"


class _Holder:
    def gpus(self) -> list[Any]:
        import ray

        return list(ray.get_gpu_ids())


def _ray_locality(on: None) -> str:
    import numpy as np
    import ray

    @ray.remote
    def make() -> tuple[str, Any]:
        return _worker(), np.zeros(4_000_000)

    @ray.remote
    def read(data: Any) -> str:
        return _worker()

    made, data = make.options(num_returns=2).remote()
    readers = ray.get([read.options(num_cpus=0.2).remote(data) for _ in range(4)])
    assert set(readers) == {ray.get(made)}, readers
    return "four tasks ran on the node that held their argument of 32 MB"


# Dask.


def _dask_fan_out(client: Any) -> str:
    def many(count: int) -> int:
        from distributed import worker_client

        with worker_client() as here:
            return sum(here.gather(here.map(abs, range(count))))

    assert client.submit(many, 4).result() == 6
    return "a task submitted four more and waited for them"


def _dask_actors(client: Any) -> str:
    counter = client.submit(Counter, actor=True).result()
    assert [counter.add().result() for _ in range(3)] == [1, 2, 3]
    return "three calls of one object counted to 3"


def _dask_priorities(client: Any) -> str:
    blocks = client.map(nap, range(90, 92), pure=False, priority=100)
    low = client.map(nap, range(100, 104), pure=False, priority=-1)
    high = client.map(nap, range(4), pure=False, priority=1)
    client.gather(blocks)
    naps = sorted(client.gather([*low, *high]), key=lambda nap: nap[1])
    order = [number for number, *_ in naps]
    assert max(map(order.index, range(4))) < min(map(order.index, (102, 103))), order
    return "four tasks that came last ran before those of the others that no worker had been sent"


def _dask_locality(client: Any) -> str:
    made = client.submit(bytes, 32_000_000, workers=["slow"])
    client.submit(len, made).result()
    readers = {client.submit(lambda data, k: _worker(), made, k).result() for k in range(4)}
    assert readers == {"slow"}, readers
    return "four tasks ran on the worker that held their argument of 32 MB"


# Spark.


def _spark_fan_out(spark: Any) -> str:
    rows = spark.parallelize([1, 2, 3], 1).flatMap(range)
    assert rows.count() == 6
    assert rows.getNumPartitions() == 1
    return "rows became six where they were three; the number of tasks stayed what the plan said"


# Kubeflow.


def _kfp_fan_out(on: None) -> str:
    import tempfile

    from kfp import dsl

    @dsl.component
    def names() -> list:
        return ["a", "b", "c"]

    @dsl.component
    def touch(folder: str, name: str):
        import pathlib

        pathlib.Path(folder, name).touch()

    @dsl.pipeline
    def fan_out(folder: str):
        with dsl.ParallelFor(names().output) as name:
            touch(folder=folder, name=name)

    with tempfile.TemporaryDirectory() as folder:
        fan_out(folder=folder)
        assert sorted(os.listdir(folder)) == ["a", "b", "c"]
    return "a loop over the list that a component returned, one after the other"


# Slurm.


def _slurm(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _batch(*options: str) -> str:
    return _slurm("sbatch", "--parsable", *options)


def _slurm_over() -> None:
    while _slurm("squeue", "--noheader"):
        time.sleep(0.05)


def _slurm_fan_out(folder: Path) -> str:
    _batch(f"--output={folder}/fan", "--wrap", "sbatch --array=0-2 --output=/dev/null --wrap true; sleep 1")
    _slurm_over()
    jobs = _slurm("scontrol", "--oneliner", "show", "job").splitlines()
    assert len([job for job in jobs if "Command=(null)" in job]) >= 4
    return "a job handed in an array of three"


def _slurm_deadlines(folder: Path) -> str:
    ran = folder / "late"
    job = _batch("--deadline=now+2minutes", "--time=10", "--output=/dev/null", "--wrap", f"touch {ran}")
    _slurm_over()
    assert "JobState=DEADLINE" in _slurm("scontrol", "show", "job", job)
    assert not ran.exists()
    return "a job of up to 10 minutes whose deadline was in 2 was removed without a start"


def _slurm_priorities(folder: Path) -> str:
    for _ in range(2):
        _batch("--output=/dev/null", "--wrap", "sleep 2")
    log = folder / "order"
    for name, priority in (("low", 10), ("low", 10), ("high", 1000), ("high", 1000)):
        _batch("--output=/dev/null", f"--priority={priority}", "--wrap", f"echo {name} >> {log}; sleep 1")
    _slurm_over()
    assert log.read_text().split() == ["high", "high", "low", "low"], log.read_text()
    return "two jobs that came after two others ran before them"


def _slurm_locality(folder: Path) -> str:
    place = folder / "place"
    _batch("--nodelist=slow", "--output=/dev/null", "--wrap", f"echo $SLURMD_NODENAME > {place}")
    _slurm_over()
    assert place.read_text().strip() == "slow"
    return "a job ran on the node that it named; where files lie Slurm does not know"


def _slurm_restart(folder: Path) -> str:
    done = folder / "after"
    submit = ["sbatch", "--output=/dev/null", "--wrap", f"sleep 1; touch {done}"]
    subprocess.run([sys.executable, "-c", f"import subprocess; subprocess.run({submit!r})"], check=True)
    _slurm_over()
    assert done.exists()
    return "a job ended though the process that handed it in was gone"


SHOWN: Mapping[str, Mapping[str, Callable[[Any], str]]] = {
    "plain_pool": {"fan-out": _pool_fan_out},
    "ray_tasks": {"fan-out": _ray_fan_out, "actors": _ray_actors, "gpu": _ray_gpu, "locality": _ray_locality},
    "dask_futures": {
        "fan-out": _dask_fan_out,
        "actors": _dask_actors,
        "priorities": _dask_priorities,
        "locality": _dask_locality,
    },
    "spark_rdd": {"fan-out": _spark_fan_out},
    "kfp_local": {"fan-out": _kfp_fan_out},
    "slurm_array": {
        "fan-out": _slurm_fan_out,
        "deadlines": _slurm_deadlines,
        "priorities": _slurm_priorities,
        "locality": _slurm_locality,
        "restart": _slurm_restart,
    },
    "trimtab_chain": TRIMTAB,
}


def shown(name: str, on: Any) -> dict[str, str]:
    """What each tiny program of an engine saw, by what it shows; what went wrong begins with "failed"."""
    seen = {}
    for what, show in SHOWN.get(name, {}).items():
        try:
            seen[what] = show(on)
        except Exception as error:
            seen[what] = f"failed: {type(error).__name__}: {error}"[:300]
    return seen
