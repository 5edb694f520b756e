"""Real jobs in queues: limits and guarantees as decisions are made, in a run that is stopped and goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from support.train_runs import decider_of, job, jobs_text
from trimtab.clusters.backends import host
from trimtab.errors import UsageError
from trimtab.training.runner.job_list import JobList, job_list_of, refuse_too_large, too_large
from trimtab.training.runner.live_job import JobRow
from trimtab.training.runner.run_ledger import KnownRun, RunSettings
from trimtab.training.runner.train_jobs import RunChoice, decisions_of, train_jobs
from trimtab.training.runner.train_reports import run_summary

QUEUES = {
    "research": {"guarantee": 0.5, "notice_s": 5, "tenants": ["r"]},
    "default": {"limit": 0.75, "max_running": 3},
}


def listed(*jobs: dict[str, Any], queues: dict[str, Any] = QUEUES, **rules: Any) -> JobList:
    told = yaml.safe_load(jobs_text(*jobs, **rules)) | {"queues": queues}
    return job_list_of(yaml.safe_dump(told), "jobs.yaml", Path())


def test_slots_follow_limits_counts_and_guarantees_also_after_jobs_and_nodes_come() -> None:
    jobs = [job(f"x{k}", 100, tenant="x") for k in range(5)]
    run = KnownRun("", RunSettings("fifo", {"here": 4}, "test"), listed(*jobs, stays=True))
    made = decisions_of(run)
    decide = decider_of(run, made)
    decide(0.0)
    assert made.wanted.sum() == 3  # limit 0.75 of 4, and 3 at once
    more = [*run.listed.jobs, *listed(*(job(f"r{k}", 100, tenant="r") for k in range(3))).jobs]
    made.grow(more)
    decide(1.0)
    assert [int(part.sum()) for part in (made.wanted[:5], made.wanted[5:])] == [3, 1]  # what was free
    decide(5.0)
    assert made.wanted[5:].sum() == 1  # short for 4 s
    decide(6.0)
    assert [int(part.sum()) for part in (made.wanted[:5], made.wanted[5:])] == [2, 2]
    made.add_node(4, run.listed.on({"here": 4, "there": 4}).nodes["there"].offer)
    made.node_changed(1, True, 7.0)
    decide(7.0)
    assert [int(part.sum()) for part in (made.wanted[:5], made.wanted[5:])] == [3, 3]
    assert made.queue_of(7) == "research"
    figures = made.records(9.0).queues
    assert figures is not None
    assert dict(zip(figures.paths, figures.preempted.tolist(), strict=True)) == {"default": 1, "research": 0}


def test_a_run_in_queues_that_is_stopped_goes_on_in_them(tmp_path: Path) -> None:
    """Two slots of four are guaranteed to research; its jobs come while others hold all that they may."""
    jobs = [job(f"x{k}", 240, "--step-s", 0.03, tenant="x") for k in range(3)]
    jobs += [job(f"r{k}", 40, "--step-s", 0.03, tenant="r", submit_s=1.5) for k in range(2)]
    queues = {"research": {"guarantee": 0.5, "notice_s": 0, "tenants": ["r"]}, "default": {"limit": 0.75}}
    choice = RunChoice(listed(*jobs, queues=queues), "jobs", "jobs.yaml", "fifo")
    most = {"research": 0, "default": 0}

    def watch(rows: Any, now_s: float) -> None:
        for queue in most:
            held = sum(row.gpus for row in rows if row.queue == queue)
            most[queue] = max(most[queue], held)
        if is_first and now_s > 0.5 and held_by(rows) >= 3:
            raise KeyboardInterrupt

    def held_by(rows: list[JobRow]) -> int:
        return sum(row.gpus for row in rows)

    is_first = True
    with pytest.raises(KeyboardInterrupt):
        train_jobs(choice, tmp_path, hosts=host, show=watch)
    is_first = False
    (folder,) = tmp_path.glob("train_*")
    again = train_jobs(RunChoice(resume=folder.name), tmp_path, hosts=host, show=watch)
    assert again.state == "done"
    assert most["default"] <= 3
    told = {row["queue"]: row for row in run_summary(tmp_path, folder.name)["queues"]}
    assert {queue: row["done"] for queue, row in told.items()} == {"research": 2, "default": 3}
    assert told["research"]["guaranteed_gpus"] == 2
    assert set(again.recording.queues) == {"research", "default"}
    scenario = yaml.safe_load((folder / "recording" / "scenario.yaml").read_text())
    assert scenario["queues"]["research"]["guarantee"] == 0.5


@pytest.mark.parametrize(
    ("queues", "message"),
    [
        (
            {"a": {"tenants": ["y"]}, "default": {}},
            r"jobs\.yaml: queues\.a\.tenants\[0\]: .*'y'.*known tenant",
        ),
        ({"a": {"tenants": ["r"]}}, r"jobs\.yaml: queues: .*'x'.*a queue for this tenant"),
        ({}, r"jobs\.yaml: queues: .*at least one queue"),
    ],
)
def test_queues_that_do_not_fit_the_jobs_are_refused(queues: dict[str, Any], message: str) -> None:
    jobs = job("a", 8, tenant="x"), job("b", 8, tenant="r")
    with pytest.raises(UsageError, match=message):
        listed(*jobs, queues=queues)


def test_jobs_that_their_queue_never_holds_are_refused() -> None:
    wide = job("wide", 80, tenant="x", gpus=4)
    with pytest.raises(UsageError, match=r"jobs\[0\]\.gpus: .*wants 4 slots; its queue.*has 3 at most"):
        refuse_too_large(listed(wide, job("r", 8, tenant="r")))
    over = {"research": {"guarantee": {"gpus": 5}, "tenants": ["r"]}}
    with pytest.raises(UsageError, match=r"queues\.research\.limit: .*4 gpus.*its guarantee, 5 gpus"):
        refuse_too_large(listed(job("r", 8, tenant="r"), queues=over))
    made = listed(job("r", 8, tenant="r"), queues={"research": {"tenants": ["r"]}})
    stranger = listed(job("s", 8, tenant="s"), job("r", 8, tenant="r")).jobs[0]
    assert too_large([stranger], made) == ["its tenant 's' has no queue"]
    assert np.isfinite(made.slots["here"])
