"""The header Prefer (RFC 7240): what a client would like, beside the request itself."""

from __future__ import annotations

import re
from typing import Final

_PREFERENCE: Final = re.compile(rb'(?:[^,"]|"(?:[^"\\]|\\.)*"?)+')  # a comma in quotes ends none


def wants_async(prefer: bytes) -> bool:
    """Whether a Prefer header, of one or several preferences, asks for a job instead of an answer."""
    preferences = _PREFERENCE.findall(prefer)
    return any(one.partition(b";")[0].strip().lower() == b"respond-async" for one in preferences)
