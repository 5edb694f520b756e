"""Limits that replicas share: what one admits another one lacks, and a new one does not begin anew."""

from __future__ import annotations

import asyncio
from pathlib import Path

from support.databases import opened_store
from support.gateway.served_gateway import CountingBackend, ServedGateway, node, serving
from trimtab.gateway.config import digest_of, parse_config
from trimtab.gateway.tenancy.shared_limits import SharedLimits
from trimtab.gateway.tenancy.tenant_limits import Limits
from trimtab.gateway.tenancy.tenants import Tenants
from trimtab.jobs import JobStore

KEY = "tt-a"


class Replica:
    """The limits of one tenant in one replica. The loop's clock is the test's."""

    def __init__(self, store: JobStore, limits: str) -> None:
        text = f"keys: [{{name: a, sha256: {digest_of(KEY.encode())}}}]\nlimits: {{shared: true, {limits}}}"
        tenants = Tenants(parse_config(text), {})
        tenant = tenants.by_key(KEY.encode())
        assert tenant is not None
        self.now_s = 1000.0
        self.limits: Limits = tenant.limits
        self.shared = SharedLimits(store, tenants, lambda: self.now_s)

    def admitted(self, count: int, tokens: float = 0.0) -> int:
        """How many of so many requests are admitted now; they stay in flight."""
        return sum(self.limits.admit(self.now_s, tokens) is None for _ in range(count))


async def synced(*replicas: Replica) -> None:
    """Twice around: each has seen what all had done before."""
    for _ in range(2):
        for one in replicas:
            await one.shared.sync()


async def test_together_they_admit_what_one_would(store_url: str) -> None:
    async with opened_store(store_url) as store:
        one, two = (Replica(store, "requests_per_minute: 60, tokens_per_minute: 6000") for _ in range(2))
        await synced(one, two)
        assert one.admitted(40, 10.0) == 40
        await synced(one, two)
        assert two.admitted(40, 10.0) == 20
        await synced(one, two)
        assert one.admitted(5) == two.admitted(5) == 0
        assert b"x-ratelimit-remaining-tokens: 5400" in one.limits.header_lines(one.now_s)
        one.limits.correct(-400.0)  # fewer tokens were used than expected
        await synced(one, two)
        assert b"x-ratelimit-remaining-tokens: 5800" in two.limits.header_lines(two.now_s)


async def test_what_was_admitted_too_much_between_two_looks_is_lacking_afterwards(store_url: str) -> None:
    """Both admit 60 at once where 60 are allowed: the next one is admitted when 60 s and 1 s are over."""
    async with opened_store(store_url) as store:
        one, two = (Replica(store, "requests_per_minute: 60") for _ in range(2))
        await synced(one, two)
        assert one.admitted(60) == two.admitted(60) == 60
        await synced(one, two)
        for now_s, count in ((1060.5, 0), (1061.0, 1)):
            one.now_s = two.now_s = now_s
            assert one.admitted(1) == count


async def test_concurrency_counts_everywhere_until_it_ends(store_url: str) -> None:
    async with opened_store(store_url) as store:
        one, two = (Replica(store, "concurrency: 5, max_jobs: null") for _ in range(2))
        await synced(one, two)
        assert one.admitted(3) == 3
        one.limits.begin_job()
        await synced(one, two)
        assert two.limits.max_jobs() == 5 - 3  # the job of the other one is among all jobs
        assert two.admitted(3) == 1
        assert two.limits.max_jobs() == 5 - 3 - 1
        for _ in range(3):
            one.limits.release()
        one.limits.end_job()
        await synced(one, two)
        assert two.admitted(9) == 4


async def test_a_new_replica_does_not_begin_with_full_limits(store_url: str) -> None:
    async with opened_store(store_url) as store:
        limits = "requests_per_minute: 0.06"  # a bucket of one, which fills in 1000 s
        old = Replica(store, limits)
        await synced(old)
        assert old.admitted(2) == 1
        await synced(old)
        fresh = Replica(store, limits)
        await synced(fresh)
        assert fresh.admitted(1) == 0


def test_who_shares_nothing_counts_nothing() -> None:
    tenants = Tenants(parse_config(f"keys: [{{name: a, sha256: {digest_of(KEY.encode())}}}]"), {})
    tenant = tenants.by_key(KEY.encode())
    assert tenant is not None
    assert not tenant.limits.is_bounded
    assert tenant.limits.admit(0.0) is None
    assert tenant.limits.taken(0.0)[:2] == (0.0, 0.0)


async def test_two_gateways_with_one_database(tmp_path: Path, store_url: str) -> None:
    async with CountingBackend() as backend:
        probes = [f"tt-b{k}" for k in range(60)]
        config = {
            "nodes": [node(backend, capacity=64)],
            "store": {"url": store_url, "results_folder": str(tmp_path / "results")},
            "insecure_no_auth": False,
            "keys": [{"name": key[3:], "sha256": digest_of(key.encode())} for key in (KEY, *probes)],
            "admin": {"listen": "127.0.0.1:0", "keys": [{"sha256": digest_of(b"admin")}]},
            "limits": {"shared": True, "requests_per_minute": 0.06},  # one at once, the next one in 1000 s
        }
        folders = [tmp_path / "one", tmp_path / "two"]
        for each in folders:
            each.mkdir()

        async def status(gateway: ServedGateway, key: str) -> int:
            return await gateway.chat(headers={"Authorization": f"Bearer {key}", "Connection": "close"})

        async with serving(folders[0], config) as one, serving(folders[1], config) as two:
            assert {await status(one, key) for key in (KEY, *probes)} == {200}
            for probe in probes:  # until the second knows of one, and so of all before it
                await asyncio.sleep(1.0)
                if await status(two, probe) == 429:
                    break
            assert [await status(gateway, KEY) for gateway in (two, one)] == [429, 429]
