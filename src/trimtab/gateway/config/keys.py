"""Keys and tenants in gateway.yaml: digests of keys, never the keys themselves."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, field_validator, model_validator

from trimtab.errors import ConfigError
from trimtab.gateway.config.types import Count, EnvName, HostName, Listen, Model, Name
from trimtab.validation.base import Positive, Spec
from trimtab.validation.problems import checked
from trimtab.validation.yaml_text import document, read_yaml

_DIGEST = re.compile(r"[0-9a-f]{64}")


def digest_of(key: bytes) -> str:
    """SHA-256 of a key, as written in files."""
    return hashlib.sha256(key).hexdigest()


def _as_list(value: object) -> object:
    return (value,) if isinstance(value, str) else value


Digests = Annotated[tuple[str, ...], BeforeValidator(_as_list, json_schema_input_type=str | tuple[str, ...])]


class TenantLimits(Spec):
    """Limits of one tenant. A missing limit means no bound."""

    requests_per_minute: Positive | None = Field(None, description="requests per minute")
    tokens_per_minute: Positive | None = Field(None, description="tokens per minute, prompt and output")
    concurrency: Count | None = Field(
        None, description="concurrent requests and unfinished jobs, waiting ones included"
    )
    max_jobs: Count | None = Field(1000, description="unfinished jobs; null = no bound")
    max_jobs_mib: Positive | None = Field(
        10_240.0,
        description="bodies of unfinished jobs and kept results; at most half of the disk; null = no bound",
    )


class Secret(Spec):
    """A key, given by its digest or by the environment variable that holds it."""

    model_config = ConfigDict(json_schema_extra={"writeOnly": True})

    sha256: Digests = Field(
        (),
        description="SHA-256 of the key, 64 hexadecimal digits, or a list of them: `trimtab serve --new-key`",
        json_schema_extra={"writeOnly": True},
    )
    env: EnvName | None = Field(None, description="environment variable that holds the key")

    @field_validator("sha256")
    @classmethod
    def _are_digests(cls, digests: tuple[str, ...]) -> tuple[str, ...]:
        lower = tuple(text.lower() for text in digests)
        if not all(_DIGEST.fullmatch(text) for text in lower):
            raise ValueError("64 hexadecimal digits, the SHA-256 of the key: `trimtab serve --new-key`")
        return lower

    @model_validator(mode="after")
    def _one_of_them(self) -> Secret:
        if not self.sha256 and self.env is None:
            raise ValueError("a key, by sha256 or env")
        return self

    def digests(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Digests of all its keys. Raises ConfigError if the named environment variable is missing."""
        if self.env is None:
            return self.sha256
        key = environ.get(self.env, "")
        if not key:
            raise ConfigError("is not set", field=f"environment variable {self.env}", expected="a key")
        return (*self.sha256, digest_of(key.encode()))


class PrivacySpec(Spec):
    """What leaves the process about a tenant is differentially private. Takes effect at a start."""

    epsilon: Positive = Field(description="ε of any `requests` requests, over all that is released of them")
    delta: Annotated[float, Field(gt=0, lt=1)] = Field(1e-6, description="δ beside it")
    requests: Count = Field(
        1, description="requests that are protected together, such as those of one person"
    )
    period_s: Annotated[float, Field(gt=0, le=86_400)] = Field(
        300.0, description="time between two releases of the tenant's totals"
    )
    max_prompt_tokens: Count = Field(8192, description="prompt tokens that a request counts at most")
    max_output_tokens: Count = Field(2048, description="output tokens that a request counts at most")
    max_service_s: Positive = Field(60.0, description="service that a request counts at most")


class KeySpec(Secret):
    """A tenant: its name, keys, limits, and the permissions of its requests."""

    name: Name = Field(description="name of the tenant, in logs and metrics")
    weight: Positive = Field(
        1.0, description="share of the capacity when tenants compete, relative to the others"
    )
    limits: TenantLimits | None = Field(
        None, description="limits of this tenant; default: those of the section limits"
    )
    may_set_priority: bool = Field(False, description="accept the header x-trimtab-priority")
    may_name_tenant: bool = Field(False, description="accept the header x-trimtab-tenant")
    zone: str = Field("", description="zone of its clients, for policies; default: the gateway's own")
    background: bool = Field(False, description="serve its requests with spare capacity only")
    privacy: PrivacySpec | None = Field(
        None, description="noise on its figures, and no records of its requests; default: none"
    )


class AdminSpec(Spec):
    """The admin port: metrics, dashboard and admin API."""

    listen: Listen = Field("127.0.0.1:9080", description="host:port")
    allowed_hosts: tuple[HostName, ...] = Field(
        (), description="host names that requests may use, besides its addresses and localhost"
    )
    keys: tuple[Secret, ...] = Field(
        (), description="keys of the admin API", json_schema_extra={"writeOnly": True}
    )
    key_env: EnvName | None = Field(None, description="environment variable that holds an admin key")

    def digests(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Digests of all admin keys. Raises ConfigError if an environment variable is missing."""
        named = (Secret(env=self.key_env),) if self.key_env else ()
        return tuple(digest for secret in (*self.keys, *named) for digest in secret.digests(environ))


class _KeysFile(Spec):
    keys: tuple[KeySpec, ...] = Field((), json_schema_extra={"writeOnly": True})


def read_keys(path: Path) -> tuple[KeySpec, ...]:
    """The tenants in a separate file: a YAML list, or a list under `keys:`. Raises ConfigError."""
    data = document(read_yaml(path, ConfigError), str(path), ConfigError)
    table = data if isinstance(data, dict) else {"keys": data or ()}
    return checked(lambda: _KeysFile.model_validate(table), _KeysFile, str(path), ConfigError).keys


def is_readable_by_others(path: Path) -> bool:
    """Whether users other than the owner may read a file."""
    return os.name == "posix" and bool(path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH))


class BudgetSpec(Spec):
    """The budget of a key in a calendar day or month (UTC)."""

    tokens: Positive | None = Field(None, description="tokens, prompt and output")
    usd: Positive | None = Field(None, description="US dollars, by the prices of `models`")
    per: Literal["day", "month"] = Field(description="day or month")

    @model_validator(mode="after")
    def _bounds_something(self) -> BudgetSpec:
        if self.tokens is None and self.usd is None:
            raise ValueError("tokens or usd")
        return self


class RunTimeKeySpec(Spec):
    """A key, which is a tenant of its own."""

    name: Name = Field(description="name of its tenant, in logs and metrics")
    models: tuple[Model, ...] = Field((), description="models or routes that it may use; default: all")
    budget: BudgetSpec | None = Field(None, description="what it may use; default: no bound")
    expires_in_s: Positive | None = Field(None, description="how long it is valid; default: until revoked")
    limits: TenantLimits | None = Field(None, description="its limits; default: those of the section limits")
    weight: Positive = Field(1.0, description="share of the capacity when tenants compete")
    background: bool = Field(False, description="serve its requests with spare capacity only")


def run_time_key(payload: Mapping[str, Any], source: str = "the request") -> RunTimeKeySpec:
    """The key that a request asks for. Raises ConfigError."""
    return checked(lambda: RunTimeKeySpec.model_validate(dict(payload)), RunTimeKeySpec, source, ConfigError)
