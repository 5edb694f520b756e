"""Tenants: look-up by the digest of a key; limits of requests and tokens per minute and of concurrency.

Only SHA-256 digests of keys are stored. A look-up by digest needs no comparison in constant time: an attacker
cannot control the digest of a guess, so that the look-up's time reveals nothing useful.
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

from trimtab.errors import ConfigError
from trimtab.gateway.config import GatewayConfig, KeySpec, Secret, TenantLimits, digest_of
from trimtab.gateway.config.traffic import MIB
from trimtab.gateway.config.types import is_name
from trimtab.gateway.key_rules import KeyRules
from trimtab.gateway.model import Attempt, Cause, Refusal, Tenant, Usage

ANONYMOUS = "anonymous"  # tenant of requests without a key, if no key is required
KEY_PREFIX = "tt-"
MOST_NAMED = 1000  # tenants that exist only because a key with may_name_tenant named them
BUSY_RETRY_S = 1.0  # Retry-After at the concurrency limit: the next end is unknown

_ROUNDING = 1e-9


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


class _Bucket:
    """A token bucket that holds one minute's amount, so that an idle tenant may use that at once."""

    __slots__ = ("at_s", "level", "per_minute", "per_s", "size")

    def __init__(self, per_minute: float) -> None:
        self.per_minute = per_minute
        self.per_s = per_minute / 60.0
        self.size = max(1.0, per_minute)
        self.at_s = 0.0
        self.level = self.size

    def ask(self, now_s: float, amount: float) -> float:
        """Take `amount` if available and return 0; else take nothing and return the seconds to wait.

        An amount above the bucket's size waits for a full bucket.
        """
        level, size = self.level, self.size
        if now_s > self.at_s:
            level += (now_s - self.at_s) * self.per_s
            level = size if level > size else level  # `min` costs a call
            self.at_s = now_s
        if amount <= level:
            self.level = level - amount
            return 0.0
        lacking = (size if amount > size else amount) - level
        if lacking > _ROUNDING:
            self.level = level
            return lacking / self.per_s
        self.level = level - amount
        return 0.0

    def refill(self, now_s: float) -> None:
        """Add what came since the last look."""
        self.level, self.at_s = self.refilled(now_s), max(now_s, self.at_s)

    def refilled(self, now_s: float) -> float:
        """What is left by now."""
        return min(self.size, self.level + max(0.0, now_s - self.at_s) * self.per_s)

    def header_lines(self, now_s: float, what: bytes) -> bytes:
        """OpenAI's headers of a limit. `what`: requests or tokens."""
        level = self.refilled(now_s)
        reset = duration((self.size - level) / self.per_s).encode()
        return b"x-ratelimit-limit-%b: %d\r\nx-ratelimit-remaining-%b: %d\r\nx-ratelimit-reset-%b: %b\r\n" % (
            what,
            self.size,
            what,
            max(0.0, level),
            what,
            reset,
        )

    def take(self, amount: float) -> None:
        """Take `amount`, below zero if necessary. A negative amount is given back."""
        level = self.level - amount
        self.level = self.size if level > self.size else level


class _CountingBucket(_Bucket):
    """A bucket that also counts what was taken here, for other replicas."""

    __slots__ = ("taken",)

    def __init__(self, per_minute: float, taken: float) -> None:
        super().__init__(per_minute)
        self.taken = taken

    def ask(self, now_s: float, amount: float) -> float:
        wait_s = super().ask(now_s, amount)
        if not wait_s:
            self.taken += amount
        return wait_s

    def take(self, amount: float) -> None:
        super().take(amount)
        self.taken += amount


class Elsewhere(NamedTuple):
    """What other replicas did with a tenant's limits since the last look, and have in flight."""

    requests: float = 0.0
    tokens: float = 0.0
    in_flight: int = 0  # running jobs included
    jobs: int = 0


class Taken(NamedTuple):
    """What this replica did with a tenant's limits since its start, what is left, what is in flight."""

    requests: float
    tokens: float
    requests_left: float
    tokens_left: float
    in_flight: int
    jobs: int


class Limits:
    """The remaining limits of one tenant. Times are seconds of the loop's clock."""

    __slots__ = (
        "_elsewhere",
        "_given",
        "_is_shared",
        "_requests",
        "_tokens",
        "concurrency",  # that is left for this replica; None = no bound
        "in_flight",
        "jobs",
    )

    def __init__(self, limits: TenantLimits, *, is_shared: bool = False) -> None:
        """`is_shared`: count what is taken, for other replicas."""
        self.in_flight = 0  # admitted and not released, running jobs included
        self.jobs = 0  # running jobs
        self._given, self._is_shared, self._elsewhere = limits, is_shared, Elsewhere()
        self._requests: _Bucket | None = None
        self._tokens: _Bucket | None = None
        self._begin()

    def become(self, limits: TenantLimits) -> None:
        """Change the limits. Unchanged limits keep their state, and requests in flight stay counted."""
        if limits != self._given:
            self._given = limits
            self._begin()

    def _begin(self) -> None:
        self._requests = self._bucket(self._given.requests_per_minute, self._requests)
        self._tokens = self._bucket(self._given.tokens_per_minute, self._tokens)
        self._bound_concurrency()

    def _bucket(self, per_minute: float | None, before: _Bucket | None) -> _Bucket | None:
        if per_minute is None:
            return None
        return _CountingBucket(per_minute, _taken(before)) if self._is_shared else _Bucket(per_minute)

    def _bound_concurrency(self) -> None:
        most = self._given.concurrency
        self.concurrency = None if most is None else max(0, most - self._elsewhere.in_flight)

    # --- replicas

    @property
    def is_bounded(self) -> bool:
        """Whether there is anything to share."""
        return not (self._requests is None and self._tokens is None and self._given.concurrency is None)

    def taken(self, now_s: float) -> Taken:
        """What other replicas need to know."""
        requests, tokens = self._requests, self._tokens
        return Taken(
            requests=_taken(requests),
            tokens=_taken(tokens),
            requests_left=0.0 if requests is None else requests.refilled(now_s),
            tokens_left=0.0 if tokens is None else tokens.refilled(now_s),
            in_flight=self.in_flight,
            jobs=self.jobs,
        )

    def count_elsewhere(self, now_s: float, elsewhere: Elsewhere) -> None:
        """Count what other replicas did since the last call."""
        for bucket, amount in ((self._requests, elsewhere.requests), (self._tokens, elsewhere.tokens)):
            if bucket is not None:
                bucket.refill(now_s)
                _Bucket.take(bucket, amount)
        self._elsewhere = elsewhere
        self._bound_concurrency()

    def lower(self, now_s: float, requests_left: float, tokens_left: float, age_s: float) -> None:
        """Begin with no more than another replica had left `age_s` ago, and what came since."""
        for bucket, left in ((self._requests, requests_left), (self._tokens, tokens_left)):
            if bucket is not None:
                bucket.refill(now_s)
                bucket.level = min(bucket.level, left + age_s * bucket.per_s)

    # --- requests

    def admit(self, now_s: float, tokens: float = 0.0) -> Refusal | None:
        """Take a slot and the request's expected tokens, or take nothing and return a refusal.

        The caller calls `release` once at the end of an admitted request.
        """
        if self.concurrency is not None and self.in_flight >= self.concurrency:
            limit = f"{self._given.concurrency} requests at a time"
            return _refusal("concurrency_limit", limit, BUSY_RETRY_S)
        requests, budget = self._requests, self._tokens
        if requests is not None and (wait_s := requests.ask(now_s, 1.0)):
            return _refusal("requests_limit", f"{requests.per_minute:g} requests per minute", wait_s)
        if budget is not None and (wait_s := budget.ask(now_s, tokens)):
            if requests is not None:
                requests.take(-1.0)
            return _refusal("tokens_limit", f"{budget.per_minute:g} tokens per minute", wait_s)
        self.in_flight += 1
        return None

    def header_lines(self, now_s: float) -> bytes:
        """Header lines with limit, rest, and time until the limit is whole again; b"" = no such limit."""
        lines = b""
        if self._requests is not None:
            lines = self._requests.header_lines(now_s, b"requests")
        if self._tokens is not None:
            lines += self._tokens.header_lines(now_s, b"tokens")
        return lines

    @property
    def counts_tokens(self) -> bool:
        """Whether tokens are limited. If not, they need not be estimated."""
        return self._tokens is not None

    def release(self) -> None:
        """End an admitted request."""
        self.in_flight -= 1

    def begin_job(self) -> None:
        """A job of this tenant runs: it counts as a request in flight."""
        self.in_flight += 1
        self.jobs += 1

    def end_job(self) -> None:
        """A job has stopped running."""
        self.in_flight -= 1
        self.jobs -= 1

    def max_jobs(self) -> int | None:
        """Unfinished jobs that the tenant may have now, beside its requests in flight; None = no bound."""
        most = self._given.max_jobs
        if self._given.concurrency is None:
            return most
        requests_elsewhere = self._elsewhere.in_flight - self._elsewhere.jobs
        left = self._given.concurrency - requests_elsewhere - (self.in_flight - self.jobs)
        return left if most is None else min(most, left)

    def max_job_bytes(self) -> int | None:
        """Bytes that the inputs and results of its jobs may take; None = no bound."""
        most_mib = self._given.max_jobs_mib
        return None if most_mib is None else int(most_mib * MIB)

    def correct(self, tokens_delta: float) -> None:
        """Count more tokens than expected, or fewer if negative."""
        if self._tokens is not None:
            self._tokens.take(tokens_delta)

    def settle(self, tokens: float, usage: Usage | None, attempts: Sequence[Attempt]) -> None:
        """End an admitted request, and count its used tokens instead of the expected ones."""
        self.release()
        if usage is not None:
            self.correct(usage.prompt_tokens + usage.completion_tokens - tokens)
        elif all(attempt.cause is Cause.CONNECT or not attempt.sent_s for attempt in attempts):
            self.correct(-tokens)


def duration(seconds: float) -> str:
    """A duration as OpenAI's headers have it, Go's form: 1h0m5s, 6m0s, 1.5s, 20ms; whole milliseconds."""
    milliseconds = math.ceil(seconds * 1e3 - _ROUNDING)
    if milliseconds < 1000:
        return f"{milliseconds}ms" if milliseconds else "0s"
    minutes, rest_ms = divmod(milliseconds, 60_000)
    rest = f"{rest_ms / 1e3:g}s"
    if not minutes:
        return rest
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest}" if hours else f"{minutes}m{rest}"


def _taken(bucket: _Bucket | None) -> float:
    return bucket.taken if isinstance(bucket, _CountingBucket) else 0.0


def _refusal(code: str, limit: str, retry_after_s: float) -> Refusal:
    return Refusal(429, code, f"Rate limit reached: {limit}.", retry_after_s)


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
