"""A Ray cluster of two machines: two Ray nodes on this one stand for them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import psutil
import pytest

from trimtab.live.stage_backend import StageNode

POOLS = [StageNode("near", 1, machine="near"), StageNode("far", 1, machine="far")]
FAR = 1


class TwoMachines:
    """A Ray cluster; the machine of this process is "near"."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 2, "node_name": "near", "include_dashboard": False},
        )
        self.add_far()

    def add_far(self) -> None:
        self.far = self.cluster.add_node(num_cpus=2, node_name="far")

    def far_processes(self) -> list[psutil.Process]:
        raylet = psutil.Process(self.far.all_processes["raylet"][0].process.pid)
        return [raylet, *raylet.children(recursive=True)]

    def kill_far(self) -> None:
        for process in self.far_processes():
            process.kill()
        self.cluster.remove_node(self.far, allow_graceful=False)

    def freeze_far(self) -> Callable[[], None]:
        """Stop all of its processes: for others that is as a cut link. Returns what ends it."""
        stopped = self.far_processes()
        for process in stopped:
            process.suspend()
        return lambda: [process.resume() for process in stopped if process.is_running()] and None


@contextlib.contextmanager
def two_machines() -> Iterator[TwoMachines]:
    """A cluster that this process is connected to."""
    ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")
    if ray.is_initialized():
        pytest.skip("this process uses another Ray: run these tests with -m faults")
    made = TwoMachines()
    ray.init(address=made.cluster.address, log_to_driver=False, logging_level="ERROR")
    try:
        yield made
    finally:
        ray.shutdown()
        made.cluster.shutdown()
