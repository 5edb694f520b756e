"""A key that the admin API makes: what its request may say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from trimtab.errors import ConfigError
from trimtab.gateway.config.keys import TenantLimits
from trimtab.gateway.config.types import Model, Name
from trimtab.validation.base import Positive, Spec
from trimtab.validation.problems import checked


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
