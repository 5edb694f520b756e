"""Requests that are to become jobs: held to their tenant's limits, and by tenants that have accounts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.plane import CHAT, gateway, post
from trimtab.runtime.gateway.api.endpoints import Endpoints
from trimtab.runtime.gateway.config import GatewayConfig
from trimtab.runtime.gateway.config.keys import TenantLimits
from trimtab.runtime.gateway.config.upkeep import StoreSpec
from trimtab.runtime.gateway.decide.dispatcher import SPARE_TENANTS
from trimtab.runtime.gateway.front import Front
from trimtab.runtime.gateway.gateway import Gateway
from trimtab.runtime.gateway.jobs.service import JobService, job_request
from trimtab.runtime.gateway.model import Refusal, Tenant
from trimtab.runtime.gateway.process import surroundings
from trimtab.runtime.gateway.tenants import Limits
from trimtab.runtime.gateway.wire.context import LocalAnswer, Settings
from trimtab.runtime.gateway.wire.exchange import WireExchange

ASYNC = b"prefer: respond-async\r\n"


async def accepted(exchange: WireExchange, body: bytes) -> LocalAnswer | Refusal:
    found = job_request(exchange, body)
    return found if isinstance(found, Refusal) else LocalAnswer(202, ())


@pytest.mark.parametrize("field", ["requests_per_minute", "tokens_per_minute"])
def test_a_job_counts_against_its_tenants_limits(field: str) -> None:
    tenant = Tenant("t", 0, limits=Limits(TenantLimits(**{field: 1, "concurrency": 1})))

    async def main() -> None:
        async with gateway(look=Front(Endpoints(), lambda _: tenant, jobs=True)) as g:
            g.context.local = accepted
            first, second = await g.raw(post(more=ASYNC)), await g.raw(post(more=ASYNC))
            assert first.startswith(b"HTTP/1.1 202 ")
            assert second.startswith(b"HTTP/1.1 429 ")
            assert b"retry-after: " in second.lower()
            assert tenant.limits.in_flight == 0

    asyncio.run(main())


def test_a_body_too_large_for_a_job_is_refused_as_such() -> None:
    async def main() -> None:
        look = Front(Endpoints(), lambda _: Tenant("t", 0), jobs=True)
        async with gateway(look=look, settings=Settings(memory_body_bytes=1000)) as g:
            g.context.local = accepted
            answer = await g.raw(post(CHAT + b" " * 2000, more=ASYNC))
            assert answer.startswith(b"HTTP/1.1 413 ")

    asyncio.run(main())


def test_tenants_of_jobs_have_accounts_at_the_policy(tmp_path: Path) -> None:
    async def main() -> None:
        store = StoreSpec(url=f"sqlite:///{tmp_path / 'store.db'}", results_folder=tmp_path / "results")
        config = GatewayConfig(insecure_no_auth=True, store=store)
        made = Gateway(config, asyncio.get_running_loop())
        try:
            around = surroundings(made, JobService(config))
            tenants = [around.tenant(f"t{k}") for k in range(2 * SPARE_TENANTS)]
            for pool in made.decider.pools.values():
                assert len(pool.live.accounts) > max(tenant.idx for tenant in tenants if tenant)
        finally:
            await made.close()

    asyncio.run(main())
