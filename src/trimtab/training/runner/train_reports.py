"""Summaries of runs of training jobs from the journal, for people."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from trimtab.errors import UsageError
from trimtab.jobs.run_rows import RunRecord
from trimtab.training.queue_shares import capacity_of
from trimtab.training.runner.batch_plan import checkpoint_work
from trimtab.training.runner.checkpoint_files import newest_checkpoint
from trimtab.training.runner.live_job import job_folder, model_link
from trimtab.training.runner.run_ledger import KnownRun, RunLedger, default_runs
from trimtab.training.runner.run_recording import RECORDING, SUMMARY

T = TypeVar("T")


def listed_runs(folder: Path | None, limit: int) -> list[dict[str, Any]]:
    """The newest runs."""
    records = _with_ledger(folder, lambda ledger: ledger.journal.newest(limit))
    return [_run(record) for record in records]


def run_summary(folder: Path | None, run_id: str) -> dict[str, Any]:
    """A run and its jobs: where each is, its generations, and what went wrong. Raises UsageError."""

    async def read(ledger: RunLedger) -> tuple[RunRecord, KnownRun]:
        return await ledger.journal.find(run_id), await ledger.known(run_id)

    record, known = _with_ledger(folder, read)
    place = (folder or default_runs()) / run_id
    summary = place / RECORDING / SUMMARY
    told = json.loads(summary.read_text()) if summary.exists() else {}
    return {
        **_run(record),
        "folder": str(place),
        "slots": known.settings.slots,
        "jobs": [_job(known, k, place) for k in range(len(known.listed.jobs))],
        "queues": _queues(known),
        "recording": told,
    }


def run_state(folder: Path | None, run_id: str) -> str:
    """The state of a run. Raises UsageError if there is none."""

    async def read(ledger: RunLedger) -> str:
        return (await ledger.journal.find(run_id)).state

    return _with_ledger(folder, read)


def _job(known: KnownRun, k: int, place: Path) -> dict[str, Any]:
    spec = known.listed.jobs[k]
    state, error = known.states[k]
    ended = [end for end in known.ended if end.job == k]
    folder = job_folder(place, spec.id)
    checkpoint, problems = newest_checkpoint(folder / "checkpoints", may_rename=False)
    predicted_s = next((e.predicted_end_s - spec.submit_s for e in ended if e.predicted_end_s > 0), None)
    completion_s = next((e.ended_s - spec.submit_s for e in ended if e.ending == "finished"), None)
    work = 0.0 if checkpoint is None else checkpoint_work(checkpoint)
    return {
        "job_id": spec.id,
        "state": state,
        "error": error,
        "samples": int(spec.samples if state == "done" else work),
        "samples_total": spec.samples,
        "checkpoint": None if checkpoint is None else str(checkpoint.path),
        "model": str(model_link(folder)) if model_link(folder).exists() else None,
        "generations": known.generations.get(k, 0),
        "predicted_s": predicted_s,
        "completion_s": completion_s,
        "run_s": sum(end.seconds_s for end in ended),
        "gpu_s": sum(end.seconds_s * end.gpus for end in ended),
        "restart_s": sum(end.restart_s for end in ended),
        "endings": _endings([end.ending for end in ended]),
        "problems": [end.problem for end in ended if end.problem] + problems,
    }


def _queues(known: KnownRun) -> list[dict[str, Any]]:
    """The leaves, with their jobs and the slot seconds of these."""
    jobs = known.listed.jobs
    tenants = list(dict.fromkeys(job.tenant for job in jobs))
    queues = known.listed.on(known.settings.slots).job_queues(tenants)
    if queues is None:
        return []
    leaf = [int(queues.leaf_of[tenants.index(job.tenant)]) for job in jobs]
    guarantee = queues.tree.amounts(capacity_of(queues, sum(known.settings.slots.values()))).guarantee
    rows = []
    for k, path in enumerate(queues.tree.leaf_paths):
        own = [job for job, its in enumerate(leaf) if its == k]
        slot_s = sum(end.seconds_s * end.gpus for end in known.ended if end.job in own)
        done = sum(known.states[job][0] == "done" for job in own)
        has = float(guarantee[queues.tree.shape.leaf_row[k], 0])
        rows.append({"queue": path, "jobs": len(own), "done": done, "gpu_s": slot_s, "guaranteed_gpus": has})
    return rows


def _endings(endings: list[str]) -> dict[str, int]:
    counts: defaultdict[str, int] = defaultdict(int)
    for ending in endings:
        counts[ending] += 1
    return dict(counts)


def _run(record: RunRecord) -> dict[str, Any]:
    return {
        "run": record.id,
        "name": record.chain,
        "policy": json.loads(record.options)["policy"],
        "state": record.state,
        "created_s": record.created_s,
        "ended_s": record.ended_s,
        "source": record.source,
    }


def _with_ledger(folder: Path | None, work: Callable[[RunLedger], Awaitable[T]]) -> T:
    async def main() -> T:
        ledger = RunLedger(folder or default_runs())
        await ledger.open()
        try:
            return await work(ledger)
        finally:
            await ledger.close()

    try:
        return asyncio.run(main())
    except KeyError as error:
        raise UsageError("is no run of training jobs", field="run", value=str(error)) from error
