"""Partitions, labels, CPUs, memory and strict priorities: every allocator and placement rule keeps them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from trimtab.cli.app import app
from trimtab.domain.job_places import JobAsk, JobPlaces, NodeOffer, misfit, places_of
from trimtab.domain.training_jobs import JOBS, GpuCluster, Held, Ints, Records, gpu_nodes
from trimtab.training.allocator_catalogue import allocator_class, allocator_names, find_allocator
from trimtab.training.decisions import Decider
from trimtab.training.gang_placement import PLACEMENT_RULES
from trimtab.training.runner.adaptive_speed import AdaptiveSpeed
from trimtab.training.runner.job_list import JobSpec

JOB = JobSpec(id="j", command=("x",), samples=100, batch=8, gpus_max=4)
PLAIN = AdaptiveSpeed([JOB] * 6)
LARGE = NodeOffer(frozenset({"gold"}), frozenset({"a100", "nvlink"}), 32.0, 256.0)
SMALL = NodeOffer(frozenset({"iron", "gold"}), frozenset({"a100"}), 8.0)


def records(n: int, gpus: int = 1, priority: tuple[int, ...] = ()) -> Records:
    jobs = np.zeros(n, JOBS)
    jobs["job_idx"], jobs["submit_s"], jobs["deadline_s"] = np.arange(n), np.arange(n), math.inf
    for name in ("gpus_requested", "gpus_min", "gpus_max"):
        jobs[name] = gpus
    jobs["batch"], jobs["work_left"], jobs["work_total"] = 8, 100.0, 100.0
    jobs["age_s"], jobs["preemptible"] = 10.0 - np.arange(n), True
    jobs["priority"] = priority or 0
    return jobs


def given(
    allocator: str,
    jobs: Records,
    nodes: list[int],
    places: JobPlaces | None,
    held: Ints | None = None,
    rule: str = "consolidated",
    *,
    strict: bool = False,
) -> list[list[int]]:
    """GPUs of each job on each node."""
    now = Held.of(np.zeros((len(jobs), len(nodes)), np.int64) if held is None else held)
    cluster = GpuCluster(gpu_nodes(0, nodes), ("gpu",), now, len(jobs), places=places)
    ids = tuple(f"j{k}" for k in range(len(jobs)))
    placement = PLACEMENT_RULES[rule]
    decider = Decider.of(find_allocator(allocator), cluster, ids, placement, strict_priority=strict)
    gpus = np.zeros((len(jobs), len(nodes)), np.int64)
    made = decider.decide(jobs, cluster, 10.0, PLAIN).held
    gpus[made.rows] = made.gpus
    return gpus.tolist()


def test_a_node_is_for_a_job_with_one_of_its_partitions_and_all_of_its_labels() -> None:
    asks = (
        JobAsk(),
        JobAsk(("gold",), ("nvlink",)),
        JobAsk(("iron", "gold")),
        JobAsk(("iron",), ("nvlink",)),
    )
    places = places_of(asks, [LARGE, SMALL])
    assert places is not None
    assert places.allowed.tolist() == [[True, True], [True, False], [True, True], [False, False]]
    assert places_of([JobAsk(), JobAsk(("gold",))], [LARGE, SMALL]) is None  # nothing is restricted


def test_gpus_that_a_job_can_use_are_those_with_cpus_and_memory() -> None:
    """32 CPUs and 256 GiB: of 8 GPUs at 8 CPUs each 4, at 100 GiB each 2; the small node has any memory."""
    asks = [JobAsk(cpus_per_gpu=8.0), JobAsk(memory_gib_per_gpu=100.0), JobAsk(("gold",), cpus_per_gpu=0.5)]
    places = places_of(asks, [LARGE, SMALL])
    assert places is not None
    assert places.most(np.array([8, 8])).tolist() == [4 + 1, 2 + 8, 8 + 8]
    left = places.left(np.array([[2, 0], [1, 0], [0, 0]]))
    assert left.tolist() == [[16.0, 156.0], [8.0, math.inf]]
    assert places.usable(0, np.array([8, 8]), left).tolist() == [2, 1]
    assert misfit(asks[0], 6, 5) == "wants 6 GPUs with 8 CPUs a GPU; the nodes have 5 at most"
    assert misfit(JobAsk(("tin",)), 1, 0) == "no node has partition tin"


PROVIDED = PLAIN.provides


@pytest.mark.parametrize("name", [n for n in allocator_names() if allocator_class(n).needs <= PROVIDED])
def test_every_allocator_keeps_partitions_and_labels(name: str) -> None:
    """Two jobs want the first node, two the second, two either: all six GPUs are used, each in its place."""
    asks = [JobAsk(("a",)), JobAsk(("b",)), JobAsk(), JobAsk(labels=("b",)), JobAsk(("a",)), JobAsk()]
    nodes = [NodeOffer(frozenset({"a"})), NodeOffer(frozenset({"b"}), frozenset({"b"}))]
    places = places_of(asks, nodes)
    gpus = np.array(given(name, records(6), [3, 3], places))
    assert (gpus.sum(axis=0) <= 3).all()
    assert gpus[[0, 4], 1].sum() == 0 == gpus[[1, 3], 0].sum()
    shares = allocator_class(name).shares or "chronus" in name  # it may take other jobs first
    assert shares or gpus[[0, 1, 3, 4]].sum() == 4, gpus
    held = np.zeros((6, 2), np.int64)
    held[2], held[5] = (2, 0), (1, 0)  # jobs of any node hold what others want
    jobs = records(6)
    jobs["gpus_requested"][2] = jobs["gpus_min"][2] = jobs["gpus_max"][2] = 2
    again = np.array(given(name, jobs, [3, 3], places, held))
    assert (again.sum(axis=0) <= 3).all()
    assert again[[0, 4], 1].sum() == 0


@pytest.mark.parametrize("rule", PLACEMENT_RULES)
@pytest.mark.parametrize("name", ["fifo", "srtf", "tiresias(place=spread)", "weighted-goodput"])
def test_no_node_is_asked_for_more_cpus_than_it_has(name: str, rule: str) -> None:
    """Two nodes of 4 GPUs and 8 CPUs, jobs of 1 GPU and 4 CPUs: four run, whoever places them."""
    places = places_of([JobAsk(cpus_per_gpu=4.0)] * 6, [NodeOffer(cpus=8.0)] * 2)
    gpus = np.array(given(name, records(6), [4, 4], places, rule=rule))
    assert (gpus.sum(axis=0) <= 2).all()
    assert gpus.sum() == 4 or "spread" in name or name == "weighted-goodput"
    assert gpus.sum() >= 2
    held = np.zeros((6, 2), np.int64)
    held[5], held[4] = (1, 0), (1, 0)
    again = np.array(given(name, records(6), [4, 4], places, held, rule=rule))
    assert (again.sum(axis=0) <= 2).all()


def test_strict_priorities_go_first_and_those_who_may_not_be_preempted_stay() -> None:
    jobs = records(4, priority=(0, 5, 1, 5))
    assert given("fifo", jobs, [2], None) == [[1], [1], [0], [0]]
    assert given("fifo", jobs, [2], None, strict=True) == [[0], [1], [0], [1]]
    held = np.array([[1], [0], [0], [0]])
    assert given("fifo", jobs, [2], None, held, strict=True) == [[0], [1], [0], [1]]
    jobs["preemptible"][0] = False
    assert given("fifo", jobs, [2], None, held, strict=True) == [[1], [1], [0], [0]]


CLUSTER = """\
types: {big: {accelerators: 4, memory_gib: 1, resources: {cpu_cores: 16, ram_gib: 64}}}
nodes: [{type: big, name: gold, partition: gold}, {type: big, name: iron, labels: [cheap]}]
"""
ROWS = "job_id,submit_s,gpus,duration_s,partition,labels,cpus_per_gpu\n"


def run(tmp_path: Path, command: str, rows: str, *words: str) -> tuple[int, str, str]:
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "jobs.csv").write_text(ROWS + rows)
    place = "--trace" if command == "compare" else "--jobs"
    given = [command, place, f"{tmp_path}/jobs.csv", "--cluster", f"{tmp_path}/cluster.yaml", *words]
    result = CliRunner().invoke(app, given)
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("b,0,1,60,tin,,", "job b can never run: no node has partition tin"),
        (
            "b,0,8,60,gold,,",
            "job b can never run: wants 8 GPUs with partition gold; the nodes have 4",
        ),
        ("b,0,4,60,,cheap,8", "wants 4 GPUs with labels cheap and 8 CPUs a GPU; the nodes have 2 at most"),
    ],
)
def test_the_simulator_refuses_what_fits_nowhere_with_the_reason(tmp_path: Path, row: str, told: str) -> None:
    code, _, stderr = run(tmp_path, "compare", f"a,0,1,60,,,\n{row}\n", "--policy", "fifo", "--no-sweep")
    assert code == 2
    assert told in stderr


def test_single_decisions_keep_places_and_say_why_a_job_waits(tmp_path: Path) -> None:
    rows = "a,0,4,60,gold,,4\nb,0,4,60,gold,,\nc,0,2,60,,cheap,8\nd,0,1,60,tin,,\n"
    code, stdout, stderr = run(tmp_path, "allocate", rows, "--policy", "fifo(backfill=True)")
    assert code == 0, stderr
    jobs = {job["job_id"]: job for job in json.loads(stdout)["jobs"]}
    assert jobs["a"]["nodes"] == {"gold": 4}
    assert jobs["c"]["nodes"] == {"iron": 2}
    assert jobs["b"]["reason"] == "other jobs go first"
    assert jobs["d"]["reason"] == "no node has partition tin"


def test_the_simulated_queue_of_a_partition_is_its_own(tmp_path: Path) -> None:
    """Gold serves its three jobs one after the other, iron its one at once: ends at 60, 120, 180 and 60 s."""
    rows = "".join(f"g{k},0,4,60,gold,,\n" for k in range(3)) + "i,0,4,60,,cheap,\n"
    out = tmp_path / "out"
    words = "--policy", "fifo", "--no-sweep", "--out", str(out), "--seeds", "1", "--json"
    code, stdout, stderr = run(tmp_path, "compare", rows, *words)
    assert code == 0, stderr
    told = json.loads(stdout)
    assert str((60 + 120 + 180 + 60) / 4) in json.dumps(told)  # mean completion
