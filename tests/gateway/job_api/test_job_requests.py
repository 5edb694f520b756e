"""Requests that are to become jobs: held to their tenant's limits, and by tenants that have accounts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from support.gateway.plane import answers, gateway, ok, post
from trimtab.gateway.api.endpoints import Endpoints
from trimtab.gateway.app.assembly import GatewayCore
from trimtab.gateway.app.http_plane import HttpPlane
from trimtab.gateway.app.lifecycle import surroundings
from trimtab.gateway.config import GatewayConfig
from trimtab.gateway.config.keys import TenantLimits
from trimtab.gateway.config.maintenance import StoreSpec
from trimtab.gateway.decide.pools import SPARE_TENANTS
from trimtab.gateway.http.connection_context import LocalAnswer
from trimtab.gateway.http.proxied_exchange import ProxiedExchange
from trimtab.gateway.job_api.job_requests import job_request
from trimtab.gateway.job_api.job_service import JobService
from trimtab.gateway.model import Refusal, Tenant
from trimtab.gateway.tenancy.admission import Admission
from trimtab.gateway.tenancy.tenant_limits import Limits

ASYNC = b"prefer: respond-async\r\n"


async def accepted(exchange: ProxiedExchange, body: bytes) -> LocalAnswer | Refusal:
    found = await job_request(exchange, body)
    return found if isinstance(found, Refusal) else LocalAnswer(202, ())


@pytest.mark.parametrize("field", ["requests_per_minute", "tokens_per_minute"])
async def test_a_job_counts_against_its_tenants_limits(field: str) -> None:
    tenant = Tenant("t", 0, limits=Limits(TenantLimits(**{field: 1, "concurrency": 1})))
    async with gateway(look=Admission(Endpoints(), lambda _: tenant, jobs=True)) as g:
        g.context.local = accepted
        first, second = await g.raw(post(more=ASYNC)), await g.raw(post(more=ASYNC))
        assert first.startswith(b"HTTP/1.1 202 ")
        assert second.startswith(b"HTTP/1.1 429 ")
        assert b"retry-after: " in second.lower()
        assert tenant.limits.in_flight == 0


@pytest.mark.parametrize(
    ("prefer", "status"),
    [
        (b"respond-async", 202),
        (b"Respond-Async;x=1, wait=10", 202),
        (b'wait=10, a="x, \\" y", respond-async', 202),
        (b"wait=10\r\nprefer: respond-async", 202),
        (b"respond-async-maybe", 200),
        (b'note="a, respond-async, b"', 200),
        (b'note="respond-async', 200),
        (b"", 200),
    ],
)
async def test_who_prefers_to_be_answered_later_gets_a_job(prefer: bytes, status: int) -> None:
    look = Admission(Endpoints(), lambda _: Tenant("t", 0), jobs=True)
    async with gateway(answers(ok(b"{}")), look=look) as g:
        g.context.local = accepted
        answer = await g.raw(post(more=b"prefer: " + prefer + b"\r\n"))
        assert answer.startswith(b"HTTP/1.1 %d " % status)


async def test_tenants_of_jobs_have_accounts_at_the_policy(tmp_path: Path) -> None:
    store = StoreSpec(url=f"sqlite:///{tmp_path / 'store.db'}", results_folder=tmp_path / "results")
    config = GatewayConfig(insecure_no_auth=True, store=store)
    made = GatewayCore(config, asyncio.get_running_loop(), HttpPlane)
    try:
        around = surroundings(made, JobService(config))
        tenants = [around.tenant(f"t{k}") for k in range(2 * SPARE_TENANTS)]
        for pool in made.dispatcher.pools.values():
            assert len(pool.live.virtual_counters) > max(tenant.idx for tenant in tenants if tenant)
    finally:
        await made.close()
