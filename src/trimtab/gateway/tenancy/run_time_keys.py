"""Keys that operators make by the admin API while the gateway runs.

The store keeps the digest of a key, never the key, and replicas that share a database share it: what is made,
revoked or used up at one of them is so at the others within SYNC_S. Budgets are counted from the usage in
the store, which is written every second: a key may exceed its budget by what it uses in the time until
that is read, and by what is in flight then. While the store is away the keys that are known stay valid until
they expire.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

import orjson
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from trimtab.errors import ConfigError
from trimtab.gateway.config.keys import BudgetSpec, KeySpec, RunTimeKeySpec, run_time_key
from trimtab.gateway.model import Refusal
from trimtab.gateway.nodes.periodic import PeriodicTask
from trimtab.gateway.tenancy.tenants import KeyRules, Prices, RunTimeTenant, Tenants, new_key
from trimtab.jobs import JobStore, StoreUnavailable
from trimtab.jobs.store.schema import api_keys, usage

logger = logging.getLogger(__name__)

Json = dict[str, Any]
SYNC_S: Final = 2.0
MOST_KEYS: Final = 10_000


@dataclass(frozen=True, slots=True)
class MadeKey:
    """A key as the store has it."""

    spec: RunTimeKeySpec
    sha256: str
    created_s: float  # since 1970
    expires_s: float | None

    def shown(self, spent: Json | None = None) -> Json:
        """For operators: everything but the key."""
        entry = self.spec.model_dump(exclude={"expires_in_s"}, exclude_none=True)
        times = {"created_at": self.created_s, "expires_at": self.expires_s}
        return entry | times | ({} if spent is None else {"spent": spent})


class RunTimeKeys:
    """Makes, lists and revokes keys, and tells the tenants."""

    def __init__(
        self,
        store: JobStore,
        tenants: Tenants,
        *,
        prices: Callable[[], Prices],
        changed: Callable[[], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`changed`: called after tenants were added; `clock`: seconds since 1970."""
        self._store, self._tenants, self._prices, self._changed = store, tenants, prices, changed
        self._clock = clock
        self._keys: dict[str, MadeKey] = {}  # by name
        self._rules: dict[str, KeyRules] = {}
        self._spent: dict[str, Json] = {}
        self._used: object = None  # what the tenants were told last
        self._task = PeriodicTask("keys", self.sync, SYNC_S, first_after_s=SYNC_S)

    async def open(self) -> None:
        """Know the keys of the store, and follow what other replicas do."""
        await self.sync()
        self._task.start()

    async def close(self) -> None:
        """Stop following."""
        await self._task.close()

    # --- what operators do

    async def make(self, payload: Mapping[str, Any]) -> Json:
        """Make a key; only this answer shows it. Raises ConfigError, StoreUnavailable."""
        spec = run_time_key(payload)
        self._check(spec)
        key, digest = new_key()
        now_s = self._clock()
        expires_s = None if spec.expires_in_s is None else now_s + spec.expires_in_s
        made = MadeKey(spec, digest, now_s, expires_s)
        try:
            await self._store.write(partial(_insert, made=made))
        except IntegrityError:
            raise _taken(spec.name) from None
        await self.sync()
        return made.shown() | {"key": key}

    def all(self) -> list[Json]:
        """Every key that is valid, by name."""
        return [self._keys[name].shown(self._spent.get(name)) for name in sorted(self._keys)]

    async def revoke(self, name: str) -> bool:
        """Make a key invalid; False = there is no such key. Raises StoreUnavailable."""
        delete = sa.delete(api_keys).where(api_keys.c.name == name)
        count = await self._store.write(lambda connection: connection.execute(delete).rowcount)
        await self.sync()
        return count > 0

    def _check(self, spec: RunTimeKeySpec) -> None:
        if self._tenants.is_configured(spec.name) or spec.name in self._keys:
            raise _taken(spec.name)
        if len(self._keys) >= MOST_KEYS:
            raise ConfigError("there are too many keys", field="name", expected=f"at most {MOST_KEYS}")
        if spec.budget is not None and spec.budget.usd is not None:
            prices = self._prices()
            unpriced = next((model for model in spec.models if model not in prices), None)
            if unpriced is not None or not prices:
                raise ConfigError(
                    "has no price" if unpriced is not None else "no model has a price",
                    field="models" if unpriced is not None else "budget.usd",
                    value=unpriced if unpriced is not None else spec.budget.usd,
                    expected="models with usd_per_million_prompt_tokens and usd_per_million_output_tokens",
                )

    # --- the store

    async def sync(self) -> None:
        """Take over the keys of the store, end expired ones, and see which budgets are used up."""
        now_s = self._clock()
        try:
            found = await self._store.read(_read)
            budgets = {n: k.spec.budget for n, k in found.items() if k.spec.budget is not None}
            used = await self._used_by(list(budgets), now_s)
        except StoreUnavailable:
            found, budgets, used = self._keys, {}, {}
        self._keys = {n: k for n, k in found.items() if k.expires_s is None or k.expires_s > now_s}
        self._use()
        prices = self._prices()
        for name, budget in budgets.items():
            if name in self._rules:
                self._spent[name] = spent = _spent(budget, used.get(name, ()), prices, now_s)
                self._rules[name].spent = _refusal(budget, spent, now_s)

    async def _used_by(self, names: list[str], now_s: float) -> dict[str, list[Any]]:
        """The rows of usage of each of these tenants."""
        used: defaultdict[str, list[Any]] = defaultdict(list)
        if names:
            for row in await self._store.read(partial(_usage, names=names, now_s=now_s)):
                used[row.tenant].append(row)
        return used

    def _use(self) -> None:
        prices = self._prices()
        use = ({name: key.sha256 for name, key in self._keys.items()}, prices)
        if use == self._used:
            return
        self._used = use
        self._rules = {name: self._new_rules(key.spec, prices) for name, key in self._keys.items()}
        self._spent = {name: spent for name, spent in self._spent.items() if name in self._keys}
        self._tenants.use_made_keys(
            {
                bytes.fromhex(key.sha256): RunTimeTenant(_tenant(key.spec), self._rules[name])
                for name, key in self._keys.items()
            }
        )
        self._changed()

    def _new_rules(self, spec: RunTimeKeySpec, prices: Prices) -> KeyRules:
        counts_usd = spec.budget is not None and spec.budget.usd is not None
        rules = KeyRules(frozenset(spec.models), prices if counts_usd else None)
        before = self._rules.get(spec.name)
        rules.spent = None if before is None else before.spent
        return rules


def _taken(name: str) -> ConfigError:
    return ConfigError("is the name of another tenant", field="name", value=name, expected="a new name")


def _tenant(spec: RunTimeKeySpec) -> KeySpec:
    return KeySpec.model_construct(
        name=spec.name, limits=spec.limits, weight=spec.weight, background=spec.background
    )


def _spent(budget: BudgetSpec, rows: Iterable[Any], prices: Prices, now_s: float) -> Json:
    """The use of a key's budget in its period."""
    first = _first_day(budget, now_s)
    tokens, usd = 0, 0.0
    for row in rows:
        if row.day >= first:
            tokens += int(row.prompt_tokens + row.completion_tokens)
            if row.model in prices:
                usd += prices[row.model].usd(row.prompt_tokens, row.completion_tokens)
    return {"tokens": tokens} | ({} if budget.usd is None else {"usd": usd})


def _refusal(budget: BudgetSpec, spent: Json, now_s: float) -> Refusal | None:
    over = [
        f"{most:g} {unit}"
        for most, used, unit in (
            (budget.tokens, spent["tokens"], "tokens"),
            (budget.usd, spent.get("usd", 0.0), "US dollars"),
        )
        if most is not None and used >= most
    ]
    if not over:
        return None
    message = f"The budget of this key is used up: {over[0]} per {budget.per}."
    return Refusal(429, "insufficient_quota", message, _period_ends_s(budget, now_s) - now_s)


def _first_day(budget: BudgetSpec, now_s: float) -> str:
    today = datetime.fromtimestamp(now_s, UTC).date()
    return (today if budget.per == "day" else today.replace(day=1)).isoformat()


def _period_ends_s(budget: BudgetSpec, now_s: float) -> float:
    today = datetime.fromtimestamp(now_s, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if budget.per == "day":
        return (today + timedelta(days=1)).timestamp()
    return (today.replace(day=1) + timedelta(days=32)).replace(day=1).timestamp()


def _insert(connection: sa.Connection, made: MadeKey) -> None:
    entry = orjson.dumps(made.spec.model_dump(exclude={"expires_in_s"}, exclude_unset=True)).decode()
    row = {"name": made.spec.name, "sha256": made.sha256, "entry": entry}
    times = {"created_s": made.created_s, "expires_s": made.expires_s}
    connection.execute(sa.insert(api_keys), [row | times])


def _read(connection: sa.Connection) -> dict[str, MadeKey]:
    found = {}
    for row in connection.execute(sa.select(api_keys)).all():
        try:
            spec = run_time_key(orjson.loads(row.entry), f"key {row.name} in the store")
        except ConfigError as error:  # of a newer version: it opens nothing here
            logger.error("%s", error)
            continue
        found[row.name] = MadeKey(spec, row.sha256, row.created_s, row.expires_s)
    return found


def _usage(connection: sa.Connection, names: list[str], now_s: float) -> list[Any]:
    """The usage of this month, by tenant, model and day."""
    month = datetime.fromtimestamp(now_s, UTC).date().replace(day=1).isoformat()
    query = sa.select(usage).where(usage.c.tenant.in_(names), usage.c.day >= month)
    return list(connection.execute(query).all())
