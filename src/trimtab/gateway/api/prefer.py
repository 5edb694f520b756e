"""The header Prefer (RFC 7240): preferences of a client for the handling of its request."""

from __future__ import annotations

import re
from typing import Final

_PREFERENCE: Final = re.compile(rb'(?:[^,"]|"(?:[^"\\]|\\.)*"?)+')  # a comma in quotes is no border


def wants_async(prefer: bytes) -> bool:
    """Whether a Prefer header with one or several preferences requests a job instead of a response."""
    preferences = _PREFERENCE.findall(prefer)
    return any(one.partition(b";")[0].strip().lower() == b"respond-async" for one in preferences)
