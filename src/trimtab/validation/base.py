"""Base of all parts of a file of settings: frozen, no unknown keys, no NaN or infinity; and common types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Frac = Annotated[float, Field(ge=0, le=1)]


def _texts(value: object) -> object:
    if isinstance(value, str):
        return tuple(filter(None, (part.strip() for part in value.split(","))))
    return value


Texts = Annotated[tuple[str, ...], BeforeValidator(_texts)]  # a list, or texts with commas between them


class Spec(BaseModel):
    """Base of all parts of a file."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def number_or_table(value: object) -> str:
    """Tag of the member of a union; tags in angle brackets are left out of messages."""
    return "<table>" if isinstance(value, Mapping) else "<number>"
