"""What the journal of a folder says of a run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NamedTuple

from trimtab.jobs.run_journal import RunJournal
from trimtab.jobs.run_rows import AttemptRecord, InputRecord, ResultRecord


class Recorded(NamedTuple):
    """The rows of a run."""

    results: list[ResultRecord]
    attempts: list[AttemptRecord]
    inputs: list[InputRecord]


def recorded(folder: Path, run_id: str) -> Recorded:
    """Read it, from outside of an event loop."""
    return asyncio.run(_read(folder, run_id))


async def _read(folder: Path, run_id: str) -> Recorded:
    journal = RunJournal(f"sqlite:///{folder / 'journal.db'}")
    await journal.open()
    try:
        found = await journal.results(run_id), await journal.attempts(run_id), await journal.inputs(run_id)
        return Recorded(*map(list, found))
    finally:
        await journal.close()
