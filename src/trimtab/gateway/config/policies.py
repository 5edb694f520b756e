"""Policies in gateway.yaml: the default, policies of single models, and the shadow policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator, Field

from trimtab.gateway.config.types import Model, PolicySpec
from trimtab.validation.base import Spec

DEFAULT_POLICY = "least-expected-wait"


class PolicyChoice(Spec):
    """The policy of all models, and those of single models."""

    default: PolicySpec = Field(DEFAULT_POLICY, description="NAME, NAME+ORDER or file.py:Class")
    models: Mapping[Model, PolicySpec] = Field({}, description="model → policy")


class ShadowSpec(Spec):
    """A second policy that also decides, without effect, for a comparison of both."""

    policy: PolicySpec = Field(description="NAME, NAME+ORDER or file.py:Class")


def _as_choice(value: object) -> object:
    return {"default": value} if isinstance(value, str) else value


def _as_shadow(value: object) -> object:
    return {"policy": value} if isinstance(value, str) else value


Policies = Annotated[PolicyChoice, BeforeValidator(_as_choice, json_schema_input_type=str | PolicyChoice)]
Shadow = Annotated[ShadowSpec, BeforeValidator(_as_shadow, json_schema_input_type=str | ShadowSpec)]
