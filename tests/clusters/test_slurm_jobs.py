"""What Slurm's programs say, read without Slurm: texts of gres, JSON of two versions, marks on jobs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from trimtab.clusters.placement.ledger import CPU, MEMORY
from trimtab.clusters.slurm.able_nodes import Feasibility
from trimtab.clusters.slurm.cluster_view import rules_of
from trimtab.clusters.slurm.commands import read_json
from trimtab.clusters.slurm.job_table import FILE, JobTable
from trimtab.clusters.slurm.slurm_jobs import MARK, Job, Rules, SlurmLedger, jobs_of, pin_mark
from trimtab.clusters.slurm.slurm_nodes import RESOURCES, gres, node_of
from trimtab.errors import ClusterLost, UsageError
from trimtab.traces.read_jobs import read_jobs

MIB = 1 << 20
WAITS: dict[str, Any] = {
    "job_id": 12, "job_state": "PENDING", "state_reason": "JobHeldUser", "partition": "gpu", "user_name": "a",
    "submit_time": 1000, "eligible_time": 0, "time_limit": 5, "node_count": 2, "tasks": 4, "cpus": 8,
    "cpus_per_task": 2, "minimum_cpus_per_node": 2, "memory_per_node": None, "memory_per_cpu": 100,
    "tres_per_node": "gres:gpu:a100:2", "nice": 7, "required_nodes": "gpu[1-2]", "excluded_nodes": "",
    "features": "a100&fast", "dependency": "afterok:9(unfulfilled),afterany:3_*", "admin_comment": "",
}  # fmt: skip


def job_of(**more: Any) -> Job:
    (job,) = jobs_of({**WAITS, **more}, Rules())
    return job


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu:a100:4(S:0-1),nic:2", {"gres/gpu": 4, "gres/gpu:a100": 4, "gres/nic": 2}),
        ("gpu:a100:2(IDX:0,3),gpu:h100:1(IDX:2)", {"gres/gpu": 3, "gres/gpu:a100": 2, "gres/gpu:h100": 1}),
        ("gres:gpu:1,gres:gpu:1", {"gres/gpu": 2}),
        ("gres/gpu:4", {"gres/gpu": 4}),
        ("gpu", {"gres/gpu": 1}),
        ("gpu:a100:0(IDX:N/A)", {"gres/gpu": 0, "gres/gpu:a100": 0}),
        ("(null)", {}),
        ("", {}),
    ],
)
def test_amounts_of_gres_are_read(text: str, expected: dict[str, int]) -> None:
    assert gres(text) == expected


def test_what_a_job_takes_of_each_of_its_nodes() -> None:
    job = job_of()
    assert job.needs == {CPU: 4000, MEMORY: 400 * MIB, "jobs": 1, "gres/gpu": 2, "gres/gpu:a100": 2}
    assert (job.n_nodes, job.priority, job.expected_s) == (2, -7, 300.0)
    assert (job.required, job.parents) == (("gpu1", "gpu2"), {"9", "3"})
    assert job.features == ({"a100", "fast"},)
    assert not job.is_exclusive
    (threaded,) = jobs_of(
        {**WAITS, "cpus_per_task": 1, "cpus": 3, "tasks": 3, "node_count": 1}, Rules(), threads=2
    )
    assert threaded.needs[CPU] == 4000  # whole cores
    assert job_of(tres_per_node="", tres_per_task="gres:gpu:1").needs["gres/gpu"] == 2
    assert job_of(memory_per_node=0).is_exclusive  # --mem=0


def test_later_versions_write_numbers_and_states_otherwise() -> None:
    def set_to(value: int) -> dict[str, Any]:
        return {"set": True, "infinite": False, "number": value}

    later = {name: set_to(value) for name, value in WAITS.items() if isinstance(value, int)}
    unset = {"set": False, "infinite": False, "number": 0}
    assert job_of(**later, job_state=["PENDING"], memory_per_node=unset) == job_of()
    node = {"name": "gpu1", "cpus": 8, "real_memory": 4000, "gres": "gpu:4", "features": "a,b", "threads": 1}
    old = node_of({**node, "state": "mixed", "state_flags": ["DRAIN"]})
    new = node_of({**node, "state": ["MIXED", "DRAIN"], "features": ["a", "b"]})
    assert old == new
    assert (old.is_up, old.state) == (False, "drain")


def test_each_task_of_an_array_that_waits_is_a_job() -> None:
    found = jobs_of(
        {**WAITS, "array_job_id": 12, "array_task_string": "0,2-3%2", "array_max_tasks": 2}, Rules()
    )
    assert [job.id for job in found] == ["12_0", "12_2", "12_3"]
    assert found[0].tasks_at_once == 2


def test_a_mark_keeps_what_its_user_and_others_wrote() -> None:
    mark = f"asked by Ada; {MARK}{pin_mark(['gpu3', 'gpu4'], 'best-fit+fifo(a=1, b=2)', ['gpu3'])}"
    held = job_of(admin_comment=mark, required_nodes="gpu[3-4]")
    assert (held.pin, held.asked, held.other_comment) == (("gpu3", "gpu4"), ("gpu3",), "asked by Ada; ")
    assert not held.is_pinned  # not released yet
    assert job_of(admin_comment=mark, required_nodes="gpu[3-4]", state_reason="Resources").is_pinned
    assert not job_of(admin_comment=mark, required_nodes="gpu[3-4]", state_reason="BeginTime").is_pinned
    waits = job_of(admin_comment=f"{MARK}waits: no room")
    assert (waits.pin, waits.asked) == ((), ("gpu1", "gpu2"))


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"resv_name": "maint"}, "a reservation: is for Slurm's own scheduler"),
        ({"het_job_id": 7}, "a heterogeneous job"),
        ({"tres_per_socket": "gres:gpu:1"}, "GPUs per socket"),
        ({"contiguous": True}, "--contiguous"),
        ({"tres_per_node": "gres:shard:2"}, "shares of GPUs"),
        ({"features": "[a|b]"}, "--constraint [a|b]: expected features joined by & or by |"),
        ({"features": "a&b|c"}, "--constraint a&b|c"),
        ({"tres_per_job": "gres:gpu:3"}, "3 gres/gpu cannot be shared evenly by 2 nodes"),
    ],
)
def test_what_is_not_decided_about_is_refused(more: dict[str, Any], expected: str) -> None:
    assert expected in job_of(**more).refusal


def test_nodes_that_may_take_a_job() -> None:
    def node(name: str, **more: Any) -> Any:
        told = {"name": name, "cpus": 8, "real_memory": 4000, "gres": "gpu:a100:2", "features": "a100,fast"}
        return node_of({**told, "state": "idle", **more})

    ledger = SlurmLedger(RESOURCES)
    ledger.reset_nodes(
        [node("gpu1"), node("gpu2"), node("gpu3"), node("gpu4", features="a100"), node("gpu5", state="down")]
    )
    feasible = Feasibility(ledger)
    (part, second) = job_of(required_nodes="", excluded_nodes="gpu3").parts()
    assert feasible.mask(part).tolist() == [True, True, False, False, False]
    ledger.hold(second, "gpu2")
    assert feasible.mask(part).tolist() == [True, False, False, False, False]
    assert feasible.summary(part) == (
        "1 of 2 nodes that it needs are free: 1 down, 1 excluded by the job, "
        "1 too little gres/gpu, gres/gpu:a100, 1 without its features"
    )
    alone = job_of(required_nodes="", tres_per_node="", features="", shared="none").parts()[0]
    assert feasible.mask(alone).tolist() == [True, False, True, True, False]
    ledger.hold(alone, "gpu1")
    assert not feasible.mask(part)[0]


def test_rules_of_a_configuration() -> None:
    shared = "SelectType              = select/cons_tres\nSelectTypeParameters    = CR_CORE_MEMORY\n"
    assert rules_of(shared) == Rules(counts_memory=True, whole_cores=True, whole_nodes=False)
    assert rules_of("SelectType = select/linear\n") == Rules(False, False, True)


def fake(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """An `squeue` that does this."""
    program = folder / "squeue"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_an_answer_without_slurmctld_is_no_empty_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = {"errors": [{"description": "Failed while looking for jobs"}], "jobs": []}
    fake(tmp_path, monkeypatch, f"echo '{json.dumps(errors)}'")
    with pytest.raises(ClusterLost, match="squeue: Failed while looking for jobs"):
        read_json("squeue")


@pytest.mark.parametrize("said", ["unrecognized option '--json'", "Unable to load JSON serializer plugin"])
def test_a_version_without_json_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    fake(tmp_path, monkeypatch, f'echo "squeue: error: {said}" >&2; exit 1')
    with pytest.raises(UsageError, match=r"squeue: has no --json .*; expected Slurm 21.08 or later"):
        read_json("squeue")


def test_slurm_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="squeue: is not installed; expected Slurm's programs"):
        read_json("squeue")


class Seen:
    """A view that shows these jobs."""

    partition = "gpu"

    def __init__(self, *jobs: Job) -> None:
        self.jobs = {job.id: job for job in jobs}


def test_jobs_that_ended_are_a_table_that_the_reader_of_sacct_reads(tmp_path: Path) -> None:
    ran = {"job_state": "COMPLETED", "start_time": 1100, "end_time": 1160, "nodes": "gpu[1-2]"}
    failed = {**ran, "job_id": 13, "job_state": "FAILED", "end_time": 1130, "submit_time": 1010}
    table = JobTable(Seen(job_of(**ran), job_of(**failed), job_of(job_id=14)))  # type: ignore[arg-type]
    table.note()
    assert table.write(tmp_path, since="") == 2
    jobs = read_jobs(tmp_path / FILE).jobs
    assert jobs["gpus"].to_list() == [4, 4]
    assert jobs["duration_s"].to_list() == [60.0, 30.0]
    assert jobs["submit_s"].to_list() == [0.0, 10.0]
