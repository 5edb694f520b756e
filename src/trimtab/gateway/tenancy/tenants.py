"""Tenants: look-up by the digest of a key, and the making of keys.

Only SHA-256 digests of keys are stored. A look-up by digest needs no comparison in constant time: an attacker
cannot control the digest of a guess, so that the look-up's time reveals nothing useful.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import NamedTuple

from trimtab.errors import ConfigError
from trimtab.gateway.config import GatewayConfig, KeySpec, Secret, TenantLimits, digest_of
from trimtab.gateway.config.types import is_name
from trimtab.gateway.model import Refusal, Tenant
from trimtab.gateway.tenancy.tenant_limits import Limits


class TokenPrice(NamedTuple):
    """Prices of a model, in US dollars."""

    usd_per_prompt_token: float
    usd_per_output_token: float

    def usd(self, prompt_tokens: float, output_tokens: float) -> float:
        """The price of these tokens."""
        return prompt_tokens * self.usd_per_prompt_token + output_tokens * self.usd_per_output_token


Prices = Mapping[str, TokenPrice]
"""By model; models without prices are left out."""


class KeyRules:
    """The rules of one key. `spent` is set from outside, a few seconds behind."""

    __slots__ = ("_models", "_prices", "spent")

    def __init__(self, models: frozenset[str] = frozenset(), prices: Prices | None = None) -> None:
        """`models`: empty = all. `prices`: those that its budget counts by; None = it counts no money."""
        self._models, self._prices = models, prices
        self.spent: Refusal | None = None  # the budget is used up

    def allows(self, model: str, route: str = "") -> bool:
        """Whether it may use a model, by its own name or by that of the route."""
        return not self._models or model in self._models or route in self._models

    def refusal(self, model: str, route: str) -> Refusal | None:
        """Why it may not send this request now. `model` is empty where a request names none."""
        if model and not self.allows(model, route):
            message = f"This key may not use the model `{(route or model)[:200]}`."
            return Refusal(403, "model_not_allowed", message, param="model")
        if model and self._prices is not None and model not in self._prices:
            message = "This key has a budget in US dollars, and the model has no price."
            return Refusal(403, "model_without_price", message, param="model")
        return self.spent


ANONYMOUS = "anonymous"  # tenant of requests without a key, if no key is required
KEY_PREFIX = "tt-"
MOST_NAMED = 1000  # tenants that exist only because a key with may_name_tenant named them


def new_key() -> tuple[str, str]:
    """A new key of 256 random bits, and its digest as written in gateway.yaml."""
    key = KEY_PREFIX + secrets.token_urlsafe(32)
    return key, digest_of(key.encode())


class ShownKeys(NamedTuple):
    """Keys generated for a quick start. They are shown once and cannot be looked up later."""

    client: str
    admin: str


def with_new_keys(config: GatewayConfig, tenant: str) -> tuple[GatewayConfig, ShownKeys | None]:
    """The configuration with new keys for a tenant and the admin port; None = no keys are required."""
    if config.insecure_no_auth:
        return config, None
    (key, digest), (admin_key, admin_digest) = new_key(), new_key()
    admin = config.admin.model_copy(update={"keys": (Secret(sha256=(admin_digest,)),)})
    keys = (KeySpec(name=tenant, sha256=(digest,)),)
    return config.model_copy(update={"keys": keys, "admin": admin}), ShownKeys(key, admin_key)


class RunTimeTenant(NamedTuple):
    """The tenant of a key that was made at run time."""

    spec: KeySpec
    rules: KeyRules


class Tenants:
    """All tenants. Raises ConfigError if an environment variable with a key is missing."""

    def __init__(self, config: GatewayConfig, environ: Mapping[str, str] = os.environ) -> None:
        self._by_name: dict[str, Tenant] = {}
        self._by_digest: dict[bytes, Tenant] = {}
        self._configured: dict[bytes, Tenant] = {}
        self._made_keys: Mapping[bytes, RunTimeTenant] = {}
        self._nobody: Tenant | None = None  # tenant of requests without a known key
        self._n_named = 0
        self.update(config, environ)

    def __iter__(self) -> Iterator[Tenant]:
        """All tenants by index, including those whose keys a reload has removed."""
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def by_key(self, raw: bytes) -> Tenant | None:
        """The tenant with this key; None = unknown key, and keys are required."""
        return self.by_digest(sha256(raw).digest())

    def by_digest(self, digest: bytes) -> Tenant | None:
        """The tenant whose key has this SHA-256 digest; None = unknown key, and keys are required."""
        return self._by_digest.get(digest, self._nobody)

    def named(self, name: str) -> Tenant | None:
        """The tenant of this name, created if new; None = invalid name, or too many tenants.

        Only for requests of a tenant that `may_name_tenant`.
        """
        found = self._by_name.get(name)
        if found is None and self._n_named < MOST_NAMED and is_name(name):
            self._n_named += 1
            found = self._made(KeySpec.model_construct(name=name), self._common)
        return found

    def update(self, config: GatewayConfig, environ: Mapping[str, str] = os.environ) -> None:
        """Apply a new configuration. Kept tenants keep index, requests in flight and unchanged limits.

        Raises ConfigError, without any change, if a key's variable is missing or two tenants share a key.
        """
        owners = _owners(config.keys, environ)
        self._common, self._shares_limits = config.limits.tenant(), config.limits.shared
        specs = {spec.name: spec for spec in config.keys}
        tenants = {name: self._made(spec, spec.limits or self._common) for name, spec in specs.items()}
        for name in self._by_name.keys() - specs.keys():
            self._made(KeySpec.model_construct(name=name), self._common)
        self._configured = {bytes.fromhex(digest): tenants[name] for digest, name in owners.items()}
        self._names = frozenset(specs)
        self.use_made_keys(self._made_keys)
        self._nobody = None
        if config.insecure_no_auth:
            self._nobody = self._made(KeySpec.model_construct(name=ANONYMOUS), self._common)

    def is_configured(self, name: str) -> bool:
        """Whether the configuration has a tenant of this name, or every request may be its."""
        return name in self._names or name == ANONYMOUS

    def use_made_keys(self, keys: Mapping[bytes, RunTimeTenant]) -> None:
        """Use these keys, by digest, beside those of the configuration, which go first."""
        gone = {one.spec.name for one in self._made_keys.values()} - {one.spec.name for one in keys.values()}
        for name in gone | self._names:
            if name in self._by_name:
                self._by_name[name].rules = None
        self._made_keys = keys
        found = {}
        for digest, (spec, rules) in keys.items():
            if not self.is_configured(spec.name):
                found[digest] = tenant = self._made(spec, spec.limits or self._common)
                tenant.rules = rules
        self._by_digest = found | self._configured

    def _made(self, spec: KeySpec, limits: TenantLimits) -> Tenant:
        tenant = self._by_name.get(spec.name)
        if tenant is None:
            tenant = self._by_name[spec.name] = Tenant(spec.name, len(self._by_name))
        tenant.weight, tenant.background = spec.weight, spec.background
        tenant.zone = spec.zone
        tenant.is_private |= spec.privacy is not None  # until the process ends
        tenant.may_set_priority, tenant.may_name_tenant = spec.may_set_priority, spec.may_name_tenant
        if tenant.limits is None:
            tenant.limits = Limits(limits, is_shared=self._shares_limits)
        tenant.limits.become(limits)
        return tenant


def _owners(keys: tuple[KeySpec, ...], environ: Mapping[str, str]) -> dict[str, str]:
    """Digest → name of the tenant."""
    owners: dict[str, str] = {}
    for spec in keys:
        for digest in spec.digests(environ):
            if owners.setdefault(digest, spec.name) != spec.name:
                problem = f"has the same key as {owners[digest]!r}"
                raise ConfigError(problem, field=f"tenant {spec.name}", expected="a key of its own")
    return owners
