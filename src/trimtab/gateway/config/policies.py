"""Policies in gateway.yaml: the default, policies of single models, and the shadow policy."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Annotated, Final

from pydantic import BeforeValidator, Field

from trimtab.domain.needs import Degraded, Host, Need
from trimtab.errors import UsageError
from trimtab.gateway.config.node_entries import NodeSettings
from trimtab.gateway.config.surroundings import Models
from trimtab.gateway.config.types import Model, PolicySpec
from trimtab.validation.base import Spec
from trimtab.validation.names import FieldError, Path

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


NodeNeeds = Mapping[Need, bool]

_RESOURCES: Final = (
    "`exporter_url` or `gpu_exporter_url` of nodes, "
    "or resources under their `capacity` and `models.NAME.demand`"
)
GATEWAY: Final = Host(
    "gateway",
    {
        Need.RESOURCES: _RESOURCES,
        Need.DOMINANT_SHARES: _RESOURCES,
        Need.REPORTED_LOAD: "`exporter_url`, `gpu_exporter_url` or `metrics_url` of nodes",
        Need.ENGINE_LOAD: "`metrics_url` of nodes",
        Need.TOKENS: "",  # prompts by the length of their text, answers by those before
        Need.ZONES: "`zone` of nodes, in several zones",
        Need.LINKS: "",  # measured, where it is not declared
        Need.PRICES: "`usd_per_hour` of nodes",
        Need.RESIDENCY: "`loading` of nodes, or `adapters` with `adapter_load_s`",
        Need.PLACEMENT: "`loading` of nodes",
        Need.PREFIX: "`prefix_cache.enabled`",
        Need.RESULT_CACHE: "`cache` of routes",
        Need.SPLITTING: "`models.NAME.split`",
        Need.BATCHING: "`models.NAME.batch`",
        Need.DEADLINES: "",
        Need.PRIORITIES: "",
        Need.VIRTUAL_COUNTERS: "",
        Need.SHARES_HELD: "",
        Need.QUEUES: "`queues`",
        Need.FULL_SPEED: "",  # a node's capacity is what it serves well
        Need.HOLDING: "",
        Need.CENTRAL_QUEUE: "",
        Need.HELD_COMPARISON: "",
        Need.ROLLOUT: "",
    },
)


def provided_by(
    *, nodes: NodeNeeds, adapters_load: bool, prefix_index: bool, result_cache: bool, queues: bool = False
) -> frozenset[Need]:
    """The needs that the gateway meets, by what is configured."""
    met = {
        Need.RESIDENCY: adapters_load,
        Need.PREFIX: prefix_index,
        Need.RESULT_CACHE: result_cache,
        Need.QUEUES: queues,
        **nodes,
    }
    return GATEWAY.always() | {need for need, is_met in met.items() if is_met}


def needs_met_by(nodes: Collection[NodeSettings], models: Models, own_zone: str) -> NodeNeeds:
    """The needs that entries of nodes, declarations of models, and zones meet."""
    reports = any(node.exporter_url or node.gpu_exporter_url for node in nodes)
    declared = any(node.capacity.resources for node in nodes) and any(m.demand for m in models.values())
    return {
        Need.RESOURCES: reports or declared,
        Need.DOMINANT_SHARES: reports or declared,
        Need.REPORTED_LOAD: reports or any(node.metrics_url for node in nodes),
        Need.ENGINE_LOAD: any(node.metrics_url for node in nodes),
        Need.ZONES: len({node.zone or own_zone for node in nodes}) > 1,
        Need.PRICES: any(node.usd_per_hour for node in nodes),
        Need.SPLITTING: any(model.split for model in models.values()),
        Need.BATCHING: any(model.batch for model in models.values()),
        Need.PLACEMENT: any(node.loading is not None for node in nodes),
    }


def degraded(spec: str, provided: frozenset[Need]) -> tuple[Degraded, ...]:
    """The effects of unmet needs of a policy. Raises UsageError for a need that it can't do without."""
    from trimtab.policies import find

    return find(spec).degraded(GATEWAY, provided)


def needs_of_policy(spec: str) -> frozenset[Need]:
    """All that a policy and its order read."""
    from trimtab.policies import find

    return frozenset().union(*(member.all_needs for member in find(spec)))


def unknown_demand_notes(specs: Iterable[str], models: Collection[str]) -> Iterator[str]:
    """A note for each policy that weighs resources, where the demand of these models is not declared."""
    from trimtab.policies import find

    for spec in specs if models else ():
        if Need.RESOURCES in find(spec)[0].all_needs:
            yield (
                f"policy {spec!r}: what a request of {', '.join(models)} takes of resources is learned from "
                "reports, since `models.NAME.demand` does not declare it; until then nodes with 98 % or more "
                "of a resource in use come last"
            )


def need_field_errors(
    policies: Iterable[tuple[Path, str]], provided: frozenset[Need]
) -> Iterator[FieldError]:
    """A field error for each policy, given with its place, that can't do without an unmet need."""
    for path, spec in policies:
        try:
            degraded(spec, provided)
        except UsageError as error:
            yield FieldError(path, spec, f"{error.expected}; this policy {error.problem}")
