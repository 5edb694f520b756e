"""`trimtab slurm scheduler` over real slurmctld and slurmd: nothing over-committed, lost or placed twice."""

from __future__ import annotations

import re
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.slurm.cluster import COMMAND, GPUS, TYPES, SlurmCluster
from support.waiting import wait_until
from trimtab.traces.gateway_recording import open_recording, read_requests
from trimtab.traces.slurm import node_names

pytestmark = pytest.mark.clusters


def nodes_of(job: dict[str, Any]) -> list[str]:
    return list(node_names(job["nodes"]))


def chosen(job: dict[str, Any]) -> list[str]:
    """The nodes that trimtab wrote on a job."""
    found = re.search(r"trimtab: on (\S+) by", job["admin_comment"])
    return found[1].split(",") if found else []


def gpus_of(job: dict[str, Any]) -> int:
    """GPUs that a job asks for on each node."""
    return int(job["tres_per_node"].rpartition(":")[2])


def comments(slurm: SlurmCluster, *names: str) -> list[str]:
    """What trimtab wrote on jobs, once it has on each."""
    return wait_until(lambda: [slurm.jobs()[name]["admin_comment"] for name in names], all)


def done(slurm: SlurmCluster, *names: str) -> bool:
    jobs = slurm.jobs()
    return all(jobs[name]["job_state"] == "COMPLETED" for name in names)


def over_committed(slurm: SlurmCluster) -> dict[str, int]:
    """Node → GPUs, where jobs that run, or were released to it, want more than it has."""
    taken: Counter[str] = Counter()
    for job in slurm.jobs().values():
        is_released = job["job_state"] == "PENDING" and job["state_reason"] != "JobHeldUser"
        for name in nodes_of(job) if job["job_state"] == "RUNNING" else chosen(job) if is_released else ():
            taken[name] += gpus_of(job)
    return {name: count for name, count in taken.items() if count > GPUS}


def test_forty_jobs_run_where_the_policy_chose_and_never_too_many(slurm: SlurmCluster) -> None:
    slurm.scheduler()
    sizes = [1 + i % 4 for i in range(40)]  # 100 GPUs for 16
    begun_s = time.monotonic()
    names = [slurm.submit(f"--gres=gpu:{size}", seconds=0.5) for size in sizes]
    while not done(slurm, *names):
        assert not over_committed(slurm)
        assert time.monotonic() - begun_s < 300
    print(f"40 jobs in {time.monotonic() - begun_s:.1f} s")
    jobs = slurm.jobs()
    assert [nodes_of(jobs[name]) for name in names] == [chosen(jobs[name]) for name in names]
    assert {node for name in names for node in chosen(jobs[name])} == set(TYPES)
    slurm.stop("scheduler", signal.SIGTERM)
    assert "placed 40 jobs" in slurm.log("scheduler")


def test_a_killed_scheduler_loses_nothing_and_the_next_places_nothing_twice(slurm: SlurmCluster) -> None:
    slurm.scheduler("first")
    names = [slurm.submit(f"--gres=gpu:{1 + i % 4}", seconds=1) for i in range(24)]
    wait_until(lambda: sum(bool(chosen(job)) for job in slurm.jobs().values()) >= 3)
    slurm.stop("first")  # in the middle of placements
    assert not over_committed(slurm)
    left = [name for name in names if slurm.jobs()[name]["job_state"] == "PENDING"]
    assert left
    slurm.scheduler("second")
    while not done(slurm, *names):
        assert not over_committed(slurm)
    jobs = slurm.jobs()
    assert [nodes_of(jobs[name]) for name in names] == [chosen(jobs[name]) for name in names]
    assert all(jobs[name]["restart_cnt"] == 0 for name in names)
    again = re.findall(r"^job (\d+): trimtab: on", slurm.log("first") + slurm.log("second"), re.M)
    twice = {name for name, count in Counter(again).items() if count > 1}
    assert len(twice) <= 1  # killed between the choice and the release, that one is chosen anew


def test_a_second_copy_is_refused_and_one_that_slept_ends(slurm: SlurmCluster) -> None:
    slurm.scheduler("first")
    slurm.scheduler("second", waits=False)
    assert slurm.processes["second"].wait(120) == 2
    assert "schedules it (got 'gpu'); expected one scheduler for each partition" in slurm.log("second")
    first = slurm.processes["first"]
    first.send_signal(signal.SIGSTOP)
    slurm.scheduler("third")  # once the claim of the first has not been renewed for its duration
    first.send_signal(signal.SIGCONT)
    assert first.wait(120) == 1
    assert "schedules partition gpu now" in slurm.log("first")
    name = slurm.submit("--gres=gpu:1")
    wait_until(lambda: done(slurm, name))


def test_a_slurmctld_that_is_gone_for_a_while_is_waited_for(slurm: SlurmCluster) -> None:
    slurm.scheduler()
    names = [slurm.submit("--gres=gpu:2", seconds=1) for _ in range(12)]
    wait_until(lambda: sum(bool(chosen(job)) for job in slurm.jobs().values()) >= 2)
    slurm.stop("slurmctld", signal.SIGTERM)  # killed, it would lose what was submitted last
    wait_until(lambda: "again in" in slurm.log("scheduler"), timeout_s=120)
    slurm.start_controller()
    wait_until(lambda: done(slurm, *names), timeout_s=240)
    assert not over_committed(slurm)
    jobs = slurm.jobs()
    assert [nodes_of(jobs[name]) for name in names] == [chosen(jobs[name]) for name in names]


def test_what_jobs_demand_of_nodes_is_kept(slurm: SlurmCluster) -> None:
    slurm.scheduler()
    typed = slurm.submit("--gres=gpu:h100:1")
    featured = slurm.submit("--gres=gpu:1", "--constraint=a100&gpu2")
    either = slurm.submit("--gres=gpu:1", "--constraint=gpu3|gpu4", "--exclude=gpu3")
    listed = slurm.submit("--gres=gpu:1", "--nodelist=gpu4")
    wide = slurm.submit("--nodes=3", "--gres=gpu:4", "--nodelist=gpu2", seconds=1)
    whole = slurm.submit("--gres=gpu:1", "--exclusive", seconds=1)
    array = slurm.submit("--gres=gpu:1", "--array=0-3%2", seconds=0.5)
    names = [typed, featured, either, listed, wide, whole, *(f"{array}_{k}" for k in range(4))]
    wait_until(lambda: set(names) <= slurm.jobs().keys() and done(slurm, *names), timeout_s=120)
    jobs = slurm.jobs()
    assert [nodes_of(jobs[name]) for name in names] == [sorted(chosen(jobs[name])) for name in names]
    assert TYPES[chosen(jobs[typed])[0]] == "h100"
    assert [chosen(jobs[name]) for name in (featured, either, listed)] == [["gpu2"], ["gpu4"], ["gpu4"]]
    assert len(chosen(jobs[wide])) == 3
    assert "gpu2" in chosen(jobs[wide])


def test_gangs_begin_as_a_whole_and_the_urgent_come_first(slurm: SlurmCluster) -> None:
    full = [slurm.submit("--gres=gpu:4", f"--nodelist={name}", seconds=600, held=False) for name in TYPES]
    wait_until(lambda: {slurm.jobs()[name]["job_state"] for name in full} == {"RUNNING"})
    slurm.scheduler()
    later = slurm.submit("--gres=gpu:4", "--nice=100", seconds=600)
    gang = slurm.submit("--nodes=2", "--gres=gpu:4", seconds=600)
    comments(slurm, later, gang)
    slurm.call("scancel", full[0])
    wait_until(lambda: chosen(slurm.jobs()[later]))  # alone it fits, the gang does not
    told = slurm.jobs()[gang]
    assert (told["job_state"], told["state_reason"]) == ("PENDING", "JobHeldUser")
    assert "of 2 nodes that it needs are free: 4 too little gres/gpu" in told["admin_comment"]
    slurm.call("scancel", full[1])
    slurm.call("scancel", full[2])
    wait_until(lambda: slurm.jobs()[gang]["job_state"] == "RUNNING")
    assert sorted(nodes_of(slurm.jobs()[gang])) == sorted(chosen(slurm.jobs()[gang])) == ["gpu2", "gpu3"]
    first, second = (slurm.submit("--gres=gpu:4", f"--nice={nice}", seconds=600) for nice in (50, 5))
    comments(slurm, first, second)
    slurm.call("scancel", full[3])
    wait_until(lambda: chosen(slurm.jobs()[second]))
    assert not chosen(slurm.jobs()[first])


def test_unplaceable_jobs_say_why_and_others_are_not_touched(slurm: SlurmCluster) -> None:
    slurm.scheduler("scheduler", "--comment", "trimtab")
    ours = ("--comment", "for trimtab")
    many = slurm.submit("--gres=gpu:3", *ours, "--constraint=a100|h100", "--mem=3900")
    odd = slurm.submit("--gres=gpu:1", *ours, "--constraint=[gpu1|gpu2]")
    uneven = slurm.submit("--gpus=3", "--nodes=2", *ours)
    theirs = slurm.submit("--gres=gpu:1")  # held by its user, for reasons of its own
    wait_until(lambda: done(slurm, many))
    told = comments(slurm, odd, uneven)
    assert told[0].endswith("--constraint [gpu1|gpu2]: expected features joined by & or by |")
    assert "3 gres/gpu cannot be shared evenly by 2 nodes" in told[1]
    left = slurm.jobs()[theirs]
    assert (left["admin_comment"], left["state_reason"]) == ("", "JobHeldUser")


def test_a_job_whose_node_goes_down_is_placed_anew(slurm: SlurmCluster) -> None:
    slurm.scheduler()
    blocker = slurm.submit("--gres=gpu:1", "--nodelist=gpu1", "--mem=3500", seconds=600)
    wait_until(lambda: slurm.jobs()[blocker]["job_state"] == "RUNNING")
    slurm.stop("scheduler", signal.SIGTERM)
    name = slurm.submit("--gres=gpu:1", "--mem=3500", seconds=1)  # as if released to gpu1 just before
    comment = "AdminComment=trimtab: on gpu1 by best-fit"
    slurm.call("scontrol", "update", f"JobId={name}", "ReqNodeList=gpu1", comment)
    slurm.call("scontrol", "release", name)
    slurm.stop("gpu1")
    slurm.call("scontrol", "update", "NodeName=gpu1", "State=DOWN", "Reason=test")
    slurm.scheduler()
    wait_until(lambda: done(slurm, name), timeout_s=120)
    assert nodes_of(slurm.jobs()[name]) == chosen(slurm.jobs()[name]) != ["gpu1"]
    assert f"job {name} has not begun on gpu1: placed anew" in slurm.log("scheduler")
    lost = slurm.jobs()[blocker]  # Slurm has queued it again
    assert (lost["job_state"], lost["restart_cnt"]) == ("PENDING", 1)
    slurm.call("scontrol", "update", f"JobId={blocker}", "StartTime=now")  # else after two minutes
    wait_until(lambda: "gpu1" not in chosen(slurm.jobs()[blocker]), timeout_s=120)
    for other in ("gpu2", "gpu3", "gpu4"):
        slurm.call("scontrol", "update", f"NodeName={other}", "State=DRAIN", "Reason=test")
    stuck = slurm.submit("--gres=gpu:1")
    (told,) = comments(slurm, stuck)
    assert "0 of 1 nodes that it needs are free: 1 down, 3 drain; it can never run here" in told


def test_decisions_are_a_trace_that_compare_and_replay_read(slurm: SlurmCluster, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    slurm.scheduler("scheduler", "--record", str(trace))
    names = [slurm.submit(f"--gres=gpu:{1 + i % 4}", seconds=1) for i in range(10)]
    wait_until(lambda: done(slurm, *names))
    waits = slurm.submit("--nodes=5", "--gres=gpu:1")
    comments(slurm, waits)
    slurm.stop("scheduler", signal.SIGTERM)
    table, _ = read_requests(open_recording(trace))
    assert Counter(table["outcome"]) == {"done": 10, "refused": 5}
    for command in (("compare", "--trace"), ("replay",)):
        result = slurm.trimtab(*command, str(trace), "--policy", "best-fit", "--json")
        assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("scheduler", "--partition", "nope"), "or it has no nodes (got 'nope'); expected one of cpu, gpu"),
        (("check", "--partition", "cpu"), "1 node, 1 up: 0 GPUs; GPUs need GresTypes=gpu"),
        (("scheduler", "--partition", "gpu", "--policy", "what-if"), "what-if"),
        (("record", "/proc/none", "--partition", "gpu", "--duration", "1"), "a folder that can be written"),
    ],
)  # fmt: skip
def test_bad_input_is_named(slurm: SlurmCluster, arguments: tuple[str, ...], expected: str) -> None:
    result = slurm.trimtab("slurm", *arguments)
    assert result.returncode == (0 if arguments[-1] == "cpu" else 2)
    assert expected in " ".join((result.stdout + result.stderr).split())


def test_without_munge_or_slurmctld_commands_say_so(slurm: SlurmCluster) -> None:
    slurm.stop("munged")
    result = slurm.trimtab("slurm", "scheduler", "--partition", "gpu")
    assert result.returncode == 2
    assert "Munge encode failed" in result.stderr
    slurm.start_munge()
    slurm.stop("slurmctld", signal.SIGTERM)
    for command in ("scheduler", "check"):
        result = slurm.trimtab("slurm", command, "--partition", "gpu")
        assert result.returncode == 2
        assert "controller" in result.stdout + result.stderr
        assert "Traceback" not in result.stderr
    slurm.start_controller()
    wait_until(lambda: set(slurm.states().values()), lambda states: states == {"idle"}, timeout_s=120)


def test_a_partition_without_gpus_tells_who_asks_for_some(slurm: SlurmCluster) -> None:
    slurm.run("cpu-scheduler", [*COMMAND, "slurm", "scheduler", "--partition", "cpu", "--period", "0.2"])
    slurm.await_active("cpu-scheduler")
    plain = slurm.submit("--partition=cpu")
    wait_until(lambda: done(slurm, plain))
    (told,) = comments(slurm, slurm.submit("--partition=cpu", "--gres=gpu:1"))
    assert told.endswith(
        "waits: 0 of 1 nodes that it needs are free: 1 too little gres/gpu; it can never run here"
    )
