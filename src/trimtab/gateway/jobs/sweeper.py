"""Deletes what nobody may fetch any more."""

from __future__ import annotations

import asyncio
from functools import partial

from trimtab.gateway.jobs import rows
from trimtab.gateway.jobs.results import JobFiles
from trimtab.gateway.store.gateways import forget_silent
from trimtab.gateway.store.store import Store

_STRAY_S = 3600.0  # a file of no job may be one that is being made


async def sweep(store: Store, files: JobFiles, place: str, now_s: float, row_ttl_s: float) -> None:
    """Delete expired results, rows of old jobs, and files of no job. Raises StoreUnavailable, OSError."""
    over = await store.read(partial(rows.expired, place=place, now_s=now_s))
    for job in over:
        await asyncio.to_thread(files.drop_result, job.result_file)
    if over:
        await store.write(partial(rows.without_result, job_ids=[job.id for job in over]))
    await store.write(partial(rows.purge, ended_before_s=now_s - row_ttl_s))
    await store.write(partial(forget_silent, after_s=row_ttl_s))
    bodies, results = await store.read(partial(rows.known, place=place))
    await asyncio.to_thread(files.sweep, now_s - _STRAY_S, bodies, results)
