"""What the gateway provides to policies, and what configured policies do without."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from trimtab.domain.needs import Degraded, Host, Need
from trimtab.errors import UsageError
from trimtab.validation.names import FieldError, Path

GATEWAY: Final = Host(
    "gateway",
    {
        Need.RESIDENCY: "`adapters` of nodes with `adapter_load_s`",
        Need.PREFIX: "`prefix_cache.enabled`",
        Need.DEADLINES: "",
        Need.PRIORITIES: "",
        Need.VIRTUAL_COUNTERS: "",
        Need.SHARES_HELD: "",
        Need.HOLDING: "",
        Need.CENTRAL_QUEUE: "",
        Need.HELD_COMPARISON: "",
        Need.ROLLOUT: "",
    },
)


def provided_by(*, adapters_load: bool, prefix_index: bool) -> frozenset[Need]:
    """The needs that the gateway meets: nodes may load adapters, and it keeps an index of prompts."""
    met = {Need.RESIDENCY: adapters_load, Need.PREFIX: prefix_index}
    return GATEWAY.always() | {need for need, is_met in met.items() if is_met}


def degraded(spec: str, provided: frozenset[Need]) -> tuple[Degraded, ...]:
    """What a policy does without. Raises UsageError for a need that it can't do without."""
    from trimtab.policies import find

    return find(spec).degraded(GATEWAY, provided)


def need_field_errors(
    policies: Iterable[tuple[Path, str]], provided: frozenset[Need]
) -> Iterator[FieldError]:
    """A field error for each policy, given with its place, that can't do without an unmet need."""
    for path, spec in policies:
        try:
            degraded(spec, provided)
        except UsageError as error:
            yield FieldError(path, spec, f"{error.expected}; this policy {error.problem}")
