"""Views of runs from the journal, for people: lists, summaries, cancelling."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from trimtab.chains.model_reports import models_of_run
from trimtab.chains.recording import default_folder, journal_url
from trimtab.chains.run_timeline import RunTimeline, stages_of, timeline_of
from trimtab.errors import UsageError
from trimtab.jobs.run_journal import RunJournal
from trimtab.jobs.run_rows import RunRecord

T = TypeVar("T")


def listed(place: str | Path | None, limit: int) -> list[dict[str, Any]]:
    """The newest runs."""
    return [_run(record) for record in with_journal(place, lambda journal: journal.newest(limit))]


def summary(place: str | Path | None, run_id: str) -> dict[str, Any]:
    """A run, its inputs by state, and its stages."""
    return with_journal(place, lambda journal: _summary(journal, run_id))


def timeline(place: str | Path | None, run_id: str) -> RunTimeline:
    """When each stage of a run waited and ran."""
    return with_journal(place, lambda journal: timeline_of(journal, run_id))


def cancel(place: str | Path | None, run_id: str) -> None:
    """Ask for a run to be cancelled. Raises UsageError if no process works on it."""

    async def asked(journal: RunJournal) -> None:
        await journal.find(run_id)
        if not await journal.request_cancel(run_id):
            raise UsageError(
                "no process works on this run", field="run", value=run_id, expected="a running one"
            )

    with_journal(place, asked)


def with_journal(place: str | Path | None, work: Callable[[RunJournal], Awaitable[T]]) -> T:
    """The result of `work` on a journal."""

    async def main() -> T:
        journal = RunJournal(journal_url(place or default_folder()))
        await journal.open()
        try:
            return await work(journal)
        finally:
            await journal.close()

    return asyncio.run(main())


async def _summary(journal: RunJournal, run_id: str) -> dict[str, Any]:
    record = await journal.find(run_id)
    inputs = await journal.inputs(run_id)
    attempts = sorted(await journal.attempts(run_id), key=lambda a: a.started_s)
    stages: dict[str, dict[str, Any]] = {shape.name: _no_work() for shape in stages_of(record, attempts)}
    for attempt in attempts:  # of a changed chain, after a resume, also those that it did not begin with
        stages.setdefault(attempt.stage, _no_work())["attempts"] += 1
    for result in await journal.results(run_id):
        stage = stages.setdefault(result.stage, _no_work())
        stage["done"] += 1
        stage["service_s"] += result.service_s
        stage["load_s"] += result.load_s
        stage["bytes"] += result.bytes
        stage["peak_gib"] = max(stage["peak_gib"], result.peak_gib)
    return {
        **_run(record),
        "inputs": dict(Counter(row.state for row in inputs)),
        "failures": {row.number: row.error for row in inputs if row.error},
        "stages": stages,
        "models": {
            stage: [record._asdict() for record in records]
            for stage, records in models_of_run(record).items()
        },
    }


def _no_work() -> dict[str, Any]:
    """Of a stage that did not run."""
    return {"done": 0, "attempts": 0, "service_s": 0.0, "load_s": 0.0, "peak_gib": 0.0, "bytes": 0}


def _run(record: RunRecord) -> dict[str, Any]:
    return {
        "run": record.id,
        "chain": record.chain,
        "state": record.state,
        "tenant": record.tenant,
        "key": record.key,
        "created_s": record.created_s,
        "ended_s": record.ended_s,
        "source": record.source,
        "tags": json.loads(record.options)["tags"],
    }
