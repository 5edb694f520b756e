"""The meaning of a node's error status: whether the node is at fault, or the request.

A 503 is about the node (RFC 9110 §15.6.4). A 429 is about the sender (RFC 6585 §4): the request's key or its
model has used up its rate, and the node has room for others. Some servers answer 429 when they are full
themselves. They say so in the error's type (text-generation-inference: `overloaded`), or the node's entry in
the configuration does.
"""

from __future__ import annotations

import re
from typing import Final

from trimtab.gateway.model import Cause, Node

RATE_LIMITED_STATUS: Final = 429
_UNAVAILABLE: Final = 503
_OVERLOADED: Final = re.compile(rb'"(?:error_type|type|code)"\s*:\s*"[^"]{0,64}overloaded', re.IGNORECASE)


def cause_of_status(status: int, node: Node) -> Cause | None:
    """The cause that an error status stands for; None = no error of the node."""
    if status == RATE_LIMITED_STATUS:
        return Cause.BUSY if node.is_429_its_own else Cause.RATE_LIMITED
    if status == _UNAVAILABLE:
        return Cause.BUSY
    return Cause.SERVER_ERROR if status >= 500 else None


def says_overloaded(body: bytes) -> bool:
    """Whether the body of an error says that the node itself is full."""
    return _OVERLOADED.search(body) is not None
