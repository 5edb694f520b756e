"""Models and zones in gateway.yaml: what is declared of them, for policies."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from trimtab.domain.cluster import ResourceName
from trimtab.gateway.config.node_entries import MOST, NodeEntry
from trimtab.gateway.config.types import Model, Name
from trimtab.gateway.nodes.planned_outages import WEEK_S, Window
from trimtab.validation.base import NonNegative, Positive, Spec
from trimtab.validation.names import FieldError, known

_DAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_WEEKLY: Final = re.compile(rf"({'|'.join(_DAYS)}) ([01]\d|2[0-3]):([0-5]\d)")
_A_MONDAY_S: Final = 4 * 86_400.0  # 1970-01-05T00:00:00Z


def _time(text: str) -> str:
    try:
        is_complete = datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        is_complete = False
    if not is_complete:
        raise ValueError("a time with its zone, such as 2026-12-24T02:00:00Z")
    return text


def _weekly(text: str) -> str:
    if not _WEEKLY.fullmatch(text):
        raise ValueError("a day and a time in UTC, such as 'sunday 02:00'")
    return text


def _text(value: object) -> object:
    """YAML reads an unquoted time as one."""
    if not isinstance(value, datetime):
        return value
    return (value if value.tzinfo else value.replace(tzinfo=UTC)).isoformat()


Time = Annotated[str, AfterValidator(_time), BeforeValidator(_text, json_schema_input_type=str)]


class MaintenanceSpec(Spec):
    """A planned outage of a node, once or every week. It gets no new requests meanwhile."""

    node: Name = Field(description="name of the node")
    start: Time | None = Field(None, description="begin, in ISO 8601 with a zone: 2026-12-24T02:00:00Z")
    end: Time | None = Field(None, description="end, in the same form")
    weekly: Annotated[str, AfterValidator(_weekly)] | None = Field(
        None, description="begin of a window of every week, in UTC: sunday 02:00"
    )
    duration_s: Positive | None = Field(None, description="length of the weekly window")

    @model_validator(mode="after")
    def _once_or_weekly(self) -> MaintenanceSpec:
        once = (self.start is not None, self.end is not None)
        weekly = (self.weekly is not None, self.duration_s is not None)
        if sorted([once, weekly]) != [(False, False), (True, True)]:
            raise ValueError("either start and end, or weekly and duration_s")
        if self.start is not None and self.end is not None and _seconds(self.end) <= _seconds(self.start):
            raise ValueError("an end after the start")
        if self.duration_s is not None and self.duration_s >= WEEK_S:
            raise ValueError(f"a duration_s below {WEEK_S:g}, a week")
        return self

    def window(self) -> Window:
        """The window in seconds since 1970."""
        if self.start is not None and self.end is not None:
            return Window(self.node, _seconds(self.start), _seconds(self.end))
        assert self.weekly is not None
        assert self.duration_s is not None
        found = _WEEKLY.fullmatch(self.weekly)
        assert found is not None
        day, hour, minute = found.groups()
        start_s = _A_MONDAY_S + 86_400.0 * _DAYS.index(day) + 3600.0 * int(hour) + 60.0 * int(minute)
        return Window(self.node, start_s, start_s + self.duration_s, is_weekly=True)


def maintenance_field_errors(
    entries: Sequence[MaintenanceSpec], nodes: Collection[str]
) -> Iterator[FieldError]:
    """Nodes that there are not."""
    for k, entry in enumerate(entries):
        yield from known(("maintenance", k, "node"), entry.node, nodes, "node")


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


Demand = Mapping[ResourceName, Annotated[float, Field(ge=0, le=MOST)]]
"""Resource → how much of it one request takes."""

Zone = Annotated[str, Field(min_length=1, max_length=100)]


class ModelSpec(Spec):
    """A model or adapter, for policies. What is not declared is learned, or unknown."""

    memory_gib: NonNegative = Field(0.0, description="memory that it takes on a node; 0 = unknown")
    demand: Demand = Field(
        {}, description="resource → what one request takes; default: learned from nodes' reports"
    )
    usd_per_million_prompt_tokens: NonNegative | None = Field(
        None, description="price of prompt tokens, for budgets of keys"
    )
    usd_per_million_output_tokens: NonNegative | None = Field(
        None, description="price of output tokens, for budgets of keys"
    )

    split: bool = Field(
        False, description="serve arrays of embeddings or prompts, and several images, in parts as plans say"
    )
    batch: bool = Field(False, description="send requests for embeddings of a tenant together, as plans say")


class ZoneSpec(Spec):
    """A zone, for policies."""

    ingress_gib_per_s: Positive | None = Field(
        None, description="bandwidth of the link into the zone; default: no limit"
    )
    rtt_s: Mapping[Zone, NonNegative] = Field(
        {}, description="zone → round trip to it, in both directions; default: measured by health checks"
    )


Models = Mapping[Model, ModelSpec]
Zones = Mapping[Zone, ZoneSpec]


def zone_field_errors(zones: Zones, in_use: Collection[str]) -> Iterator[FieldError]:
    """Round trips to zones that nothing is in, and pairs of zones with two different round trips."""
    for name, zone in zones.items():
        for other, rtt_s in zone.rtt_s.items():
            path = ("zones", name, "rtt_s", other)
            yield from known(path, other, {*zones, *in_use}, "zone")
            back_s = zones[other].rtt_s.get(name, rtt_s) if other in zones else rtt_s
            if back_s != rtt_s and name < other:
                yield FieldError(path, rtt_s, f"the same as zones.{other}.rtt_s.{name}, which is {back_s:g}")


def demand_field_errors(models: Models, nodes: Collection[NodeEntry]) -> Iterator[FieldError]:
    """Demands that no node of the model can hold, where all of them declare their capacity."""
    for name, model in models.items():
        serving = [node for node in nodes if name in (*node.models, *node.adapters)]
        for resource, amount in model.demand.items():
            capacities = [node.capacity.resources.get(resource) for node in serving]
            most = max((has for has in capacities if has is not None), default=0.0)
            if capacities and None not in capacities and amount > most:
                expected = f"at most {most:g}, the capacity of the largest of its nodes"
                yield FieldError(("models", name, "demand", resource), amount, expected)
