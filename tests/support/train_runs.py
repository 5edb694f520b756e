"""Runs of real training jobs for tests."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from trimtab.clusters.backends import host
from trimtab.training.runner.checkpoint_files import newest_checkpoint
from trimtab.training.runner.deciding import AllocatorChoice, decided_by
from trimtab.training.runner.job_list import job_list_of
from trimtab.training.runner.live_decisions import LiveDecisions
from trimtab.training.runner.live_job import JobRow
from trimtab.training.runner.run_ledger import KnownRun
from trimtab.training.runner.train_jobs import RunChoice, RunOutcome, train_jobs

SUPPORT = Path(__file__).parent
WORKER = [sys.executable, str(SUPPORT / "numpy_worker.py")]
PACED = [sys.executable, "-m", "trimtab.training.runner.paced_job"]
RULES = {"clock": "events(slot_s=0)", "grace_s": 5, "retry_s": 0.05, "checkpoint_period_s": 0}
BY_PROGRESS = f"{SUPPORT / 'scripted_allocator.py'}:ByProgress"


def job(id: str, samples: int, *words: Any, command: Sequence[str] = WORKER, **more: Any) -> dict[str, Any]:
    told = {"id": id, "command": [*command, *map(str, words)], "samples": samples, "batch": 8}
    return told | {"preload": ["numpy", "trimtab.training.elastic"]} | more


def jobs_text(*jobs: dict[str, Any], nodes: dict[str, Any] | None = None, **rules: Any) -> str:
    told = {"nodes": {"here": 4} if nodes is None else nodes, "rules": {**RULES, **rules}, "jobs": list(jobs)}
    return yaml.safe_dump(told)


def train(
    runs: Path,
    policy: str,
    *jobs: dict[str, Any],
    nodes: dict[str, Any] | None = None,
    say: Callable[[str], None] = lambda text: None,
    show: Callable[[Sequence[JobRow], float], None] = lambda rows, now_s: None,
    on: str = "",
    **rules: Any,
) -> RunOutcome:
    listed = job_list_of(jobs_text(*jobs, nodes=nodes, **rules), "jobs.yaml", runs)
    choice = RunChoice(listed, "jobs", "jobs.yaml", policy, on=on)
    return train_jobs(choice, runs, hosts=host, say=say, show=show)


def last_state(runs: Path, run_id: str, job_id: str) -> dict[str, Any]:
    """The state in a job's newest checkpoint."""
    found, problems = newest_checkpoint(runs / run_id / "jobs" / job_id / "checkpoints")
    assert found is not None, problems
    state: dict[str, Any] = json.loads((found.path / "state").read_text())
    return state


def decider_of(run: KnownRun, made: LiveDecisions) -> Callable[[float], None]:
    """What has the allocator of a run decide, in this process."""
    decider = AllocatorChoice(run.settings.policy, run.listed.rules).decider(made.rehearsal())

    def decide(now_s: float) -> None:
        if (asked := made.question(now_s)) is not None:
            made.decided(asked, decided_by(decider, asked))

    return decide
