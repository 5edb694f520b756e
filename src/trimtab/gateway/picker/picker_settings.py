"""The endpoint picker's settings; importable without its extra."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PickerSettings:
    """The picker's settings."""

    max_endpoints: int = 8  # told to Envoy for one request
    body_bytes: int = 512 << 20
    buffered_bytes: int = 512 << 20  # sum over all bodies in memory
    held_s: float = 60.0  # the longest that a request may be held
