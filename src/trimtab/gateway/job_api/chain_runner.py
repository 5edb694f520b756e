"""The runner of jobs that are runs of chains. A run goes on where it was when its process died."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from typing import Any, Final

import orjson

from trimtab.chains.results import Result
from trimtab.errors import UsageError
from trimtab.gateway.job_api.chain_workers import ChainWorkers, inputs_of
from trimtab.gateway.job_api.job_exchange import JobExchange
from trimtab.gateway.job_api.job_handlers import METHOD
from trimtab.gateway.job_api.node_runner import Surroundings
from trimtab.gateway.model import Observers, Outcome, Refusal
from trimtab.gateway.observe.usage_observer import Usages
from trimtab.jobs import Job, JobResult, JobState, RunProgress, TooLarge

CHAIN_KIND: Final = "chain"
JSON_TYPE: Final = "application/json"
_HERE: Final = "gateway"  # the worker of a run
_AGAIN_S: Final = 2.0  # until a run is tried that another process still holds


class ChainRunner:
    """Runs jobs on the gateway's own workers."""

    def __init__(
        self, workers: ChainWorkers, around: Surroundings, observers: Observers, usage: Usages
    ) -> None:
        self._workers, self._around, self._observers, self._usage = workers, around, observers, usage

    async def run(self, job: Job, progress: RunProgress) -> JobResult:
        """Run a job from its beginning, or from what its run has done before."""
        if job.queue not in self._workers.chains:
            return _no_such_chain(job)
        if not await progress.started(_HERE, idempotent=True):
            return JobResult(JobState.CANCELLED)
        exchange = self._exchange(job)
        if exchange is not None:
            exchange.count_begin()
            for observer in self._observers:
                observer.arrived(exchange)
        result = JobResult(JobState.CANCELLED)
        try:
            result = await self._run(job, progress)
            return result
        finally:
            if exchange is not None:
                self._end(exchange, result)

    async def resume(self, job: Job, progress: RunProgress) -> JobResult:
        """Go on: the run has the job's id as its key, so it is made once."""
        return await self.run(job, progress)

    async def cancel(self, job: Job) -> None:
        """End the run. Never raises."""
        self._workers.cancel(job.id)

    def _exchange(self, job: Job) -> JobExchange | None:
        """The job as observers see it; None if its key is gone."""
        endpoint, tenant = self._around.endpoint(METHOD, job.target), self._around.tenant(job.tenant)
        if isinstance(endpoint, Refusal) or tenant is None:
            return None
        return JobExchange(job, endpoint, tenant)

    def _end(self, exchange: JobExchange, result: JobResult) -> None:
        outcomes = {JobState.DONE: Outcome.DONE, JobState.FAILED: Outcome.FAILED}
        exchange.outcome = outcomes.get(result.state, Outcome.CANCELLED)
        exchange.response_status = 200 if result.state is JobState.DONE else 0
        exchange.response_bytes = 0 if result.file is None else result.file.bytes
        exchange.count_end()
        exchange.ended_s = asyncio.get_running_loop().time()
        for observer in self._observers:
            observer.ended((exchange,))

    async def _run(self, job: Job, progress: RunProgress) -> JobResult:
        asked = orjson.loads(await asyncio.to_thread(progress.input.read_bytes))
        if (entry := self._workers.entries.get(job.queue)) is None:  # gone since, by a reload
            return _no_such_chain(job)
        try:
            handle = await self._workers.run(
                job.id,
                job.queue,
                inputs_of(asked),
                tenant=job.tenant,
                priority=job.priority,
                deadline_s=asked.get("deadline_s", float("inf")),
            )
        except UsageError:  # the process that had it is not known to be gone yet
            return JobResult(JobState.QUEUED, retry_after_s=_AGAIN_S)
        busy_s = sum(counts.busy_s for counts in handle.counts.values())
        self._usage.add(job.tenant, job.queue, 0, 0, busy_s)
        only_type = entry.content_type if "input" in asked else None
        return await asyncio.to_thread(_kept, job, handle.wait(), only_type, progress)


def _no_such_chain(job: Job) -> JobResult:
    return JobResult(JobState.FAILED, error_code="no_such_chain", error=f"no chain {job.queue}")


def _kept(job: Job, results: Sequence[Result], only_type: str | None, progress: RunProgress) -> JobResult:
    """The results in the job's file.

    `only_type`: a run of one input, whose output that is bytes has this type, and which fails with it.
    """
    first, is_single = results[0], only_type is not None
    if is_single and not first.is_ok:
        return JobResult(JobState.FAILED, error_code="stage_failed", error=str(first.failure))
    content_type, data = JSON_TYPE, b""
    if only_type is not None and isinstance(first.value, bytes | bytearray | memoryview):
        content_type, data = only_type, bytes(first.value)
    else:
        data = _as_json(job.queue, results)
    file = progress.result(content_type)
    try:
        file.write(data)
    except TooLarge:
        return JobResult(JobState.FAILED, error_code="result_too_large", error="the output is too large")
    return JobResult(JobState.DONE, file=file.finish())


def _as_json(chain: str, results: Sequence[Result]) -> bytes:
    rows = [
        {
            "index": result.index,
            "status": result.state.value,
            "output": result.value if result.is_ok else None,
            "error": None if result.is_ok else str(result.failure),
        }
        for result in results
    ]
    told = {"object": "chain.result", "chain": chain, "data": rows}
    return orjson.dumps(told, default=_plain, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return {"base64": base64.b64encode(value).decode()}
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    return repr(value)
