"""The store, usage and jobs of a gateway, opened and closed together; answers clients' requests for jobs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from shutil import disk_usage
from typing import TYPE_CHECKING, Any

from trimtab.gateway.config import GatewayConfig
from trimtab.gateway.config.traffic import MIB
from trimtab.gateway.http.connection_context import LocalAnswer
from trimtab.gateway.http.proxied_exchange import ProxiedExchange
from trimtab.gateway.job_api.batch_handlers import BatchApi
from trimtab.gateway.job_api.batch_runner import BATCH_KIND, BatchRunner, KindRunner
from trimtab.gateway.job_api.client_files import ClientFiles
from trimtab.gateway.job_api.job_handlers import JobRequest, JobsApi
from trimtab.gateway.job_api.job_requests import JobRequestReader
from trimtab.gateway.job_api.node_runner import JobDispatcher, NodeJobs, NodeRunner, Surroundings
from trimtab.gateway.model import Kind, Observers, Refusal
from trimtab.gateway.tenancy.admission import Admission
from trimtab.gateway.tenancy.tenant_limits import Limits
from trimtab.gateway.tenancy.usage_book import UsageBook
from trimtab.jobs import (
    JobFiles,
    JobInput,
    JobQueue,
    JobSettings,
    JobStore,
    Runner,
    StoreUnavailable,
    TenantBounds,
)

if TYPE_CHECKING:
    from trimtab.gateway.job_api.chain_handlers import ChainsApi
    from trimtab.gateway.job_api.chain_workers import ChainWorkers, Offer

logger = logging.getLogger(__name__)

LAST_FLUSH_S = 5.0
COUNT_S = 1.0
SWEEP_S = 600.0
_NO_CHAINS = Refusal(404, "no_such_chain", "This gateway offers no chains: gateway.yaml names none.")
_NO_JOBS = Refusal(503, "no_jobs", "This gateway cannot keep jobs now.")


def job_settings(config: GatewayConfig) -> JobSettings:
    """The settings of jobs in a configuration."""
    return JobSettings(
        folder=config.store.chosen_results_folder(),
        result_ttl_s=config.store.result_ttl_s,
        result_max_bytes=int(config.store.result_max_mib * MIB),
    )


class JobService:
    """The state that survives a restart. Without its database the gateway serves requests, but no jobs."""

    def __init__(self, config: GatewayConfig) -> None:
        self.store = JobStore(config.store.chosen_url())
        self.usage = UsageBook(self.store)
        self._settings = job_settings(config)
        self._reader = JobRequestReader(self._settings)
        self.declare(config)
        self.counts: dict[str, int] = {}  # of jobs by state, as of the last `count`
        self._runner: NodeRunner | None = None
        self._jobs: JobQueue | None = None
        self._api: JobsApi | None = None
        self._batch_api: BatchApi | None = None
        self._chains_api: ChainsApi | None = None
        self.chains: ChainWorkers | None = None  # None = the configuration has no chains
        self._change = asyncio.Lock()
        self._config = config
        self._batch_settings = config.batches
        self._work: list[asyncio.Task[None]] = []

    def declare(self, config: GatewayConfig) -> None:
        """Take over the settings of nodes for jobs from a configuration."""
        self._declared = {
            node.name: NodeJobs(node.job_api != "none", node.idempotent_jobs) for node in config.nodes
        }

    def declared(self, node: str) -> NodeJobs:
        """The settings of a node for jobs."""
        return self._declared.get(node, NodeJobs())

    async def open(
        self, dispatcher: JobDispatcher, around: Surroundings, admission: Admission, observers: Observers
    ) -> None:
        """Begin to run jobs; without a folder for results none are taken. Raises StoreNewer."""
        await self.store.open()
        self._work = [asyncio.create_task(self.usage.run())]
        runner = NodeRunner(dispatcher, around, observers=observers)
        bounds = partial(self._bounds, around)
        folder = self._settings.folder
        files = ClientFiles(self.store, folder, lambda tenant: bounds(tenant).bytes)
        batches = BatchRunner(
            self.store,
            runner,
            files,
            folder / "batches",
            admission,
            around.tenant,
            concurrency=self._batch_settings.concurrency,
        )
        by_kind: dict[str, Runner] = {BATCH_KIND: batches}
        jobs = JobQueue(self.store, KindRunner(runner, by_kind), self._settings, bounds=bounds)

        def begin_chains(workers: ChainWorkers) -> None:
            from trimtab.gateway.job_api.chain_handlers import ChainsApi  # loads chains
            from trimtab.gateway.job_api.chain_runner import CHAIN_KIND, ChainRunner

            by_kind[CHAIN_KIND] = ChainRunner(workers, around, observers, self.usage)
            self.chains, self._chains_api = workers, ChainsApi(workers, jobs)

        self._begin_chains = begin_chains
        if (offer := await self._new_offer(self._config)) is not None:
            self._use(offer)
        inputs = JobFiles(folder, self._settings.result_max_bytes)
        try:
            await files.open(await asyncio.to_thread(inputs.open))
            await jobs.open()
        except OSError as error:
            logger.error("no jobs are taken: their folder cannot be made: %s", error)
            return
        self._runner, self._jobs, self._api = runner, jobs, JobsApi(jobs, self._progress)
        self._batch_api = BatchApi(self.store, jobs, files, inputs, self._batch_settings)
        self._work.append(asyncio.create_task(self._sweep(files)))

    @asynccontextmanager
    async def changing_chains(self, config: GatewayConfig) -> AsyncIterator[bool]:
        """Start workers for a configuration's chains; they take over if the block ends well.

        Yields whether there is something new.
        Raises UsageError for what cannot run; then nothing has changed.
        """
        if not self._config.chain_workers.may_become(config.chain_workers):
            yield False
            return
        async with self._change:
            # The store takes force at a restart.
            offer = await self._new_offer(config.model_copy(update={"store": self._config.store}))
            try:
                yield offer is not None
            except BaseException:
                if offer is not None:
                    await asyncio.to_thread(offer.session.close)
                raise
            if offer is not None:
                self._use(offer)

    async def _new_offer(self, config: GatewayConfig) -> Offer | None:
        """Chains with new workers; None = they have not changed."""
        if self.chains is None and not config.chains:
            return None
        from trimtab.gateway.job_api.chain_workers import renewed  # loads chains

        return await asyncio.to_thread(renewed, config, None if self.chains is None else self.chains.offer)

    def _use(self, offer: Offer) -> None:
        from trimtab.gateway.job_api.chain_workers import ChainWorkers

        if self.chains is None:
            self._begin_chains(ChainWorkers(offer))
        else:
            self.chains.use(offer)

    def _progress(self, job_id: str) -> dict[str, Any] | None:
        return None if self.chains is None else self.chains.progress(job_id)

    async def _sweep(self, files: ClientFiles) -> None:
        while True:
            with contextlib.suppress(StoreUnavailable):
                await files.sweep(self._batch_settings.file_ttl_s)
            await asyncio.sleep(SWEEP_S)

    def _bounds(self, around: Surroundings, name: str) -> TenantBounds:
        """The present bounds of a tenant's jobs."""
        tenant = around.tenant(name)
        if tenant is None or tenant.limits is None:
            return TenantBounds(self._settings.max_active_per_tenant)
        limits: Limits = tenant.limits
        most_bytes = limits.max_job_bytes()
        if most_bytes is not None:
            with contextlib.suppress(OSError):
                most_bytes = min(most_bytes, disk_usage(self._settings.folder).total // 2)
        return TenantBounds(limits.max_jobs(), most_bytes)

    async def drain(self, timeout_s: float) -> int:
        """Begin no further job and wait for those that a restart would lose; returns how many are left."""
        return 0 if self._jobs is None else await self._jobs.drain(timeout_s)

    async def close(self) -> None:
        """Stop; what is under way goes on at the next start. Usage is written, if the store is there."""
        self.store.wait_no_more()
        for task in self._work:
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        if self._jobs is not None and self._runner is not None:
            await self._jobs.close()
            await self._runner.close()
        if self.chains is not None:
            await self.chains.close()
        with contextlib.suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(LAST_FLUSH_S):
                await self.usage.flush()
        await self.store.close()

    async def count(self) -> None:
        """Bring `counts` up to date. Where the store does not answer within a second they stay."""
        if self._jobs is not None:
            with contextlib.suppress(StoreUnavailable, TimeoutError):
                async with asyncio.timeout(COUNT_S):
                    self.counts |= dict.fromkeys(self.counts, 0) | await self._jobs.counts()

    async def answer(self, exchange: ProxiedExchange, body: bytes) -> LocalAnswer | Refusal:
        """A request for /v1/jobs…, /v1/videos…, or one that is to become a job."""
        if exchange.endpoint is not None and exchange.endpoint.kind is Kind.BATCH:
            if self._batch_api is None:
                return _NO_JOBS
            return await self._batch_api.answer(exchange, body)
        if exchange.endpoint is not None and exchange.endpoint.kind is Kind.CHAIN:
            if self._chains_api is None:
                return _NO_CHAINS if self._jobs is not None else _NO_JOBS
            return await self._chains_api.answer(exchange, body)
        return await self._reader.answer(exchange, body, self._answer)

    async def _answer(self, request: JobRequest, body: JobInput) -> LocalAnswer | Refusal:
        if self._api is None:
            return _NO_JOBS
        if request.facts is not None:
            return await self._api.submit(request, body)
        return await self._api.answer(request, body)
