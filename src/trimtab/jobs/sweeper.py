"""Deletes expired results, and files that belong to no job."""

from __future__ import annotations

import asyncio
from functools import partial

from trimtab.jobs import job_rows
from trimtab.jobs.job_files import JobFiles
from trimtab.jobs.store.job_store import JobStore
from trimtab.jobs.store.processes import forget_silent

_STRAY_S = 3600.0  # younger files may belong to a job that is being created


async def sweep(store: JobStore, files: JobFiles, place: str, now_s: float, row_ttl_s: float) -> None:
    """Delete expired results, rows of old jobs, and files of no job. Raises StoreUnavailable, OSError."""
    over = await store.read(partial(job_rows.expired, place=place, now_s=now_s))
    for job in over:
        await asyncio.to_thread(files.drop_result, job.result_file)
    if over:
        await store.write(partial(job_rows.without_result, job_ids=[job.id for job in over]))
    await store.write(partial(job_rows.purge, ended_before_s=now_s - row_ttl_s))
    await store.write(partial(forget_silent, after_s=row_ttl_s))
    inputs, results = await store.read(partial(job_rows.known, place=place))
    await asyncio.to_thread(files.sweep, now_s - _STRAY_S, inputs, results)
