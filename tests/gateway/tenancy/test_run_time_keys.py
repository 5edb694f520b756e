"""Keys made at run time: hashed at rest, models, budgets, expiry; shared; bad input refused by field."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from support.databases import only, opened_store
from support.gateway.served_gateway import CountingBackend, ServedGateway, node, serving, until
from trimtab.errors import ConfigError
from trimtab.gateway.app.config_mapping import prices_of
from trimtab.gateway.config import digest_of, parse_config
from trimtab.gateway.model import Refusal, Tenant
from trimtab.gateway.tenancy.run_time_keys import RunTimeKeys
from trimtab.gateway.tenancy.tenants import Tenants
from trimtab.gateway.tenancy.usage_book import UsageBook
from trimtab.jobs import JobStore
from trimtab.jobs.store.schema import api_keys

DAY_S = 86_400.0
CONFIG = f"""
keys: [{{name: fixed, sha256: {digest_of(b"tt-fixed")}}}]
models:
  m: {{usd_per_million_prompt_tokens: 1, usd_per_million_output_tokens: 10}}
  half: {{usd_per_million_prompt_tokens: 1}}
"""


class Replica:
    """The keys of one gateway. 20,000 days after 1970: 2024-10-04."""

    def __init__(self, store: JobStore) -> None:
        self.now_s = 20_000 * DAY_S + 3600.0
        config = parse_config(CONFIG)
        self.tenants = Tenants(config, {})
        self.changes = 0
        self.keys = RunTimeKeys(
            store,
            self.tenants,
            prices=lambda: prices_of(config),
            changed=self._count,
            clock=lambda: self.now_s,
        )
        self.usage = UsageBook(store, clock=lambda: self.now_s)

    def _count(self) -> None:
        self.changes += 1

    async def use(self, tenant: str, model: str, prompt: int, output: int) -> None:
        self.usage.add(tenant, model, prompt, output, 0.1)
        await self.usage.flush()
        await self.keys.sync()

    def by_key(self, key: str) -> Tenant:
        found = self.tenants.by_key(key.encode())
        assert found is not None
        return found

    def refusal(self, key: str, model: str = "m", route: str = "") -> Refusal | None:
        refused: Refusal | None = self.by_key(key).rules.refusal(model, route)
        return refused


@asynccontextmanager
async def with_replicas(url: str) -> AsyncIterator[tuple[Replica, Replica, JobStore]]:
    async with opened_store(url) as store:
        yield Replica(store), Replica(store), store


async def test_a_key_is_shown_once_and_known_to_every_replica_until_it_is_revoked(store_url: str) -> None:
    async with with_replicas(store_url) as (one, two, store):
        made = await one.keys.make({"name": "team", "weight": 2.0})
        assert one.by_key(made["key"]).name == "team"
        assert one.by_key("tt-fixed").name == "fixed"
        assert one.changes == 1
        assert two.tenants.by_key(made["key"].encode()) is None
        await two.keys.sync()
        assert two.by_key(made["key"]).weight == 2.0
        (listed,) = two.keys.all()
        assert (listed["name"], listed["created_at"], listed["expires_at"]) == ("team", one.now_s, None)
        stored = await store.read(lambda connection: connection.execute(sa.select(api_keys)).all())
        for said in (repr(listed), repr(stored)):
            assert made["key"] not in said
        assert digest_of(made["key"].encode()) in repr(stored)
        assert await two.keys.revoke("team")
        assert not await two.keys.revoke("team")
        await one.keys.sync()
        for replica in (one, two):
            assert replica.tenants.by_key(made["key"].encode()) is None
            assert replica.keys.all() == []
            assert replica.by_key("tt-fixed").rules is None


async def test_a_key_expires(store_url: str) -> None:
    async with with_replicas(store_url) as (one, _, _):
        key = (await one.keys.make({"name": "team", "expires_in_s": 60}))["key"]
        one.now_s += 59.0
        await one.keys.sync()
        assert one.by_key(key).name == "team"
        one.now_s += 1.0
        await one.keys.sync()
        assert one.tenants.by_key(key.encode()) is None


async def test_models_are_those_of_the_key_by_their_name_or_by_the_routes(store_url: str) -> None:
    async with with_replicas(store_url) as (one, _, _):
        key = (await one.keys.make({"name": "team", "models": ["m", "alias"]}))["key"]
        assert one.refusal(key) is None
        assert one.refusal(key, "n", "alias") is None
        assert one.refusal(key, "") is None  # a request that names no model, such as for a response
        refused = one.refusal(key, "n")
        assert refused is not None
        assert (refused.status, refused.code, refused.param) == (403, "model_not_allowed", "model")


async def test_a_budget_of_tokens_per_day(store_url: str) -> None:
    async with with_replicas(store_url) as (one, two, _):
        key = (await one.keys.make({"name": "team", "budget": {"tokens": 100, "per": "day"}}))["key"]
        await two.use("team", "m", 60, 39)
        await two.use("other", "m", 1000, 1000)
        await one.keys.sync()
        assert one.refusal(key) is None
        await two.use("team", "n", 1, 0)  # at another replica
        await one.keys.sync()
        refused = one.refusal(key)
        assert refused is not None
        assert (refused.status, refused.code) == (429, "insufficient_quota")
        assert refused.retry_after_s == DAY_S - 3600.0
        assert one.keys.all()[0]["spent"] == {"tokens": 100}
        one.now_s += DAY_S
        await one.keys.sync()
        assert one.refusal(key) is None


async def test_a_budget_of_dollars_per_month_by_hand(store_url: str) -> None:
    """1 $ and 10 $ per million: 200,000 and 80,000 tokens are 0.2 $ and 0.8 $."""
    async with with_replicas(store_url) as (one, _, _):
        budget = {"usd": 1.0, "per": "month"}
        key = (await one.keys.make({"name": "team", "models": ["m"], "budget": budget}))["key"]
        await one.use("team", "m", 200_000, 79_999)
        assert one.refusal(key) is None
        one.now_s += 20 * DAY_S
        await one.use("team", "m", 0, 1)
        assert one.refusal(key) is not None
        assert one.keys.all()[0]["spent"] == {"tokens": 280_000, "usd": pytest.approx(1.0)}
        one.now_s += 8 * DAY_S  # the first of November
        await one.keys.sync()
        assert one.refusal(key) is None
        free = (await one.keys.make({"name": "free", "budget": budget}))["key"]
        refused = one.refusal(free, "half")
        assert refused is not None
        assert refused.code == "model_without_price"


@pytest.mark.parametrize(
    ("spec", "field", "expected"),
    [
        ({}, "name", "missing"),
        ({"name": "a b"}, "name", "letters, digits"),
        ({"name": "fixed"}, "name", "a new name"),
        ({"name": "anonymous"}, "name", "a new name"),
        ({"name": "t", "modles": []}, "modles", "models"),
        ({"name": "t", "models": [""]}, "models[0]", "at least 1"),
        ({"name": "t", "expires_in_s": 0}, "expires_in_s", "greater than 0"),
        ({"name": "t", "budget": {"tokens": 5}}, "budget.per", "missing"),
        ({"name": "t", "budget": {"per": "day"}}, "budget", "tokens or usd"),
        ({"name": "t", "budget": {"tokens": -1, "per": "day"}}, "budget.tokens", "greater than 0"),
        ({"name": "t", "budget": {"tokens": 1, "per": "year"}}, "budget.per", "'day' or 'month'"),
        ({"name": "t", "models": ["half"], "budget": {"usd": 1, "per": "day"}}, "models", "usd_per_million"),
        ({"name": "t", "limits": {"concurrency": 0}}, "limits.concurrency", "or equal to 1"),
    ],
)
async def test_bad_input_is_refused_by_field(
    tmp_path: Path, spec: dict[str, Any], field: str, expected: str
) -> None:
    async with with_replicas(f"sqlite:///{tmp_path / 'store.db'}") as (one, _, _):
        with pytest.raises(ConfigError) as raised:
            await one.keys.make(spec)
        assert field in str(raised.value)
        assert expected in str(raised.value)
        assert one.keys.all() == []


async def test_two_keys_cannot_have_one_name(store_url: str) -> None:
    async with with_replicas(store_url) as (one, two, _):
        await one.keys.make({"name": "team"})
        for replica in (one, two):  # the second one has not heard of it yet
            with pytest.raises(ConfigError, match="another tenant"):
                await replica.keys.make({"name": "team"})


async def _admin(
    gateway: ServedGateway, method: str, path: str, body: Any = None, status: int = 200
) -> dict[str, Any]:
    headers = {"Authorization": "Bearer admin"}
    url = f"{gateway.admin}/admin/{path}"
    async with gateway.session.request(method, url, json=body, headers=headers) as answer:
        assert answer.status == status, await answer.text()
        return dict(await answer.json())


@only("sqlite")
async def test_two_gateways_share_their_keys(tmp_path: Path, store_url: str) -> None:
    async with CountingBackend() as backend:
        config = {
            "nodes": [node(backend)],
            "store": {"url": store_url, "results_folder": str(tmp_path / "results")},
            "insecure_no_auth": False,
            "keys": [{"name": "fixed", "sha256": digest_of(b"tt-fixed")}],
            "admin": {"listen": "127.0.0.1:0", "keys": [{"sha256": digest_of(b"admin")}]},
        }
        folders = [tmp_path / "one", tmp_path / "two"]
        for each in folders:
            each.mkdir()
        async with serving(folders[0], config) as one, serving(folders[1], config) as two:
            made = await _admin(one, "POST", "keys", {"name": "team", "models": ["m"]}, 201)
            key = {"headers": {"Authorization": f"Bearer {made['key']}", "Connection": "close"}}
            assert await one.chat(**key) == 200
            assert await one.chat("slow", **key) == 403

            async def is_known() -> bool:
                return await two.chat(**key) == 200

            await until(is_known, "the other replica knows it")
            async with one.session.get(f"{one.url}/v1/models", **key) as answer:
                assert [row["id"] for row in (await answer.json())["data"]] == ["m"]
            assert [k["name"] for k in (await _admin(two, "GET", "keys"))["keys"]] == ["team"]
            refused = await _admin(one, "POST", "keys", {"name": "team"}, 400)
            assert "name" in str(refused)
            await _admin(two, "DELETE", "keys/team")

            async def is_gone() -> bool:
                return await one.chat(**key) == 401

            await until(is_gone, "the other replica knows that it was revoked")
            fixed = {"headers": {"Authorization": "Bearer tt-fixed", "Connection": "close"}}
            assert await one.chat(**fixed) == 200
            await _admin(one, "DELETE", "keys/team", status=404)
