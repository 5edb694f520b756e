"""A client's request before a node is chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trimtab.gateway.http.request import Request
from trimtab.gateway.model import Exchange

if TYPE_CHECKING:
    from trimtab.gateway.tenancy.tenant_limits import Limits


class IncomingExchange(Exchange):
    """An exchange with its HTTP request. The data plane's subclass `ProxiedExchange` sends it to nodes."""

    __slots__ = ("admitted", "asks_usage", "is_local", "own_lines", "request")

    def __init__(self, request: Request) -> None:
        Exchange.__init__(self)
        self.request = request
        self.method = request.method
        self.path = request.path
        self.target = request.target
        self.is_local = False  # True = the gateway answers the request itself
        self.asks_usage = False  # True = the gateway requests the stream's usage, the client does not
        self.own_lines = b""  # further header lines of its response: limits, allowed origins
        self.admitted: tuple[Limits, float] | None = None  # limits that count the request, and its tokens

    @property
    def body_bytes(self) -> int:
        """Size of its body, spooled or not."""
        return self.request.body.size if self.body is None else len(self.body)

    def read_usage(self) -> None:
        """Read the usage from a response that arrived in one piece."""
        raise NotImplementedError

    def end(self) -> None:
        """End the exchange. Called after the dispatcher has processed its completion."""
        raise NotImplementedError
