"""Asks nodes for the usage of streams, and learns which nodes refuse the field that asks for it.

`stream_options` is the only field that the gateway adds to requests. A server that does not know it may
refuse every request with it. So an error that may be about the field is held back, and the request goes to
the same node again without it. Where that is answered, the node's streams of that model go without the field
for a time. A node that has answered with the field is believed in all its errors that do not name the field.
"""

from __future__ import annotations

import logging
from typing import Final

from trimtab.gateway.api.sse import inject_include_usage
from trimtab.gateway.http.framing import ResponseHead
from trimtab.gateway.http.response_observer import plain_body
from trimtab.gateway.model import Node

logger = logging.getLogger(__name__)

UNASKED_S: Final = 600.0  # until a node that has refused the field is asked again: it may have been upgraded
MOST_ERROR_BYTES: Final = 65_536  # a longer error is passed on
_MAY_BE_ABOUT_IT: Final = frozenset((400, 422, 500, 501))
_SAYS_NO_FIELD: Final = frozenset((400, 422))  # for what is wrong with a request
_NAMES: Final = (b"stream_options", b"include_usage")


class UsageOption:
    """The field in the request of one attempt."""

    __slots__ = ("_has_refused", "_is_judged", "_model", "_node", "_payload", "_raw", "_status", "is_asked")

    def __init__(self, node: Node, model: str, now_s: float) -> None:
        self._node, self._model = node, model
        self.is_asked = node.unasked_until_s.get(model, 0.0) <= now_s  # the request has the field
        self._has_refused = self._is_judged = False
        self._status = 0  # of the error that is held back; 0 = none
        self._raw = self._payload = b""  # of that error so far

    def asking(self, body: bytes) -> bytes:
        """The request's body for this node."""
        asked = inject_include_usage(body) if self.is_asked else body
        self.is_asked = asked is not body
        return asked

    def takes_head(self, status: int, now_s: float) -> bool:
        """Look at the status of an answer; returns whether the answer is held back."""
        if status < 300:
            self._learn(now_s)
        elif self.is_asked and not self._is_judged and status in _MAY_BE_ABOUT_IT:
            self._status = status
            return True
        return False

    @property
    def holds_back(self) -> bool:
        """Whether an error is held back."""
        return self._status > 0

    def keep(self, raw: bytes, payload: bytes) -> bool:
        """Keep a piece of the error. False = it is too long to be held back."""
        self._raw += raw
        self._payload += payload
        return len(self._payload) <= MOST_ERROR_BYTES

    def is_refused(self, head: ResponseHead) -> bool:
        """Whether the error that is held back, now whole, may be about the field: send again without it."""
        error = plain_body(head, self._payload) or b""
        is_named = any(name in error for name in _NAMES)
        is_known = self._node.unasked_until_s.get(self._model) == 0.0
        self._has_refused = is_named or (self._status in _SAYS_NO_FIELD and not is_known)
        if self._has_refused:
            self.is_asked = False
            self.released()
        return self._has_refused

    def released(self) -> tuple[bytes, bytes]:
        """The error, with and without its framing, which is held back no more."""
        kept = self._raw, self._payload
        self._is_judged, self._status, self._raw, self._payload = True, 0, b"", b""
        return kept

    def stop(self, now_s: float) -> None:
        """What the field asks for cannot be read: ask no more for a time."""
        self._node.unasked_until_s[self._model] = now_s + UNASKED_S

    def _learn(self, now_s: float) -> None:
        if self.is_asked:
            self._node.unasked_until_s[self._model] = 0.0
        elif self._has_refused:
            logger.warning(
                "node %s refuses stream_options: its streams of %s go without for %.0f s, and their tokens "
                "are not counted unless it reports them unasked",
                self._node.name,
                self._model,
                UNASKED_S,
            )
            self.stop(now_s)
