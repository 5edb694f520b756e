"""The maintenance calendar in gateway.yaml: when nodes get no work."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from trimtab.gateway.config.types import Name
from trimtab.gateway.nodes.planned_outages import WEEK_S, Window
from trimtab.validation.base import Positive, Spec
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
