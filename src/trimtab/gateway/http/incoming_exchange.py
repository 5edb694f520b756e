"""A client's request as it comes in: what is known of it before a node is chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trimtab.gateway.http.request import Request
from trimtab.gateway.model import Exchange

if TYPE_CHECKING:
    from trimtab.gateway.tenants import Limits


class IncomingExchange(Exchange):
    """An exchange with the request that it came with. The data plane's own subclass sends it to nodes."""

    __slots__ = ("admitted", "hides_usage", "is_local", "request")

    def __init__(self, request: Request) -> None:
        Exchange.__init__(self)
        self.request = request
        self.method = request.method
        self.path = request.path
        self.target = request.target
        self.is_local = False  # the gateway answers it itself
        self.hides_usage = False  # the gateway asked for the stream's usage, the client did not
        self.admitted: tuple[Limits, float] | None = None  # limits that count it, and the tokens taken

    def read_usage(self) -> None:
        """Read what the node says it used, in an answer that came at once."""
        raise NotImplementedError

    def end(self) -> None:
        """The dispatcher has heard that it is done: it is over."""
        raise NotImplementedError
