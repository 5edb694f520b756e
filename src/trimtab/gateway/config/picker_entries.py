"""The endpoint picker in gateway.yaml, for `trimtab epp`."""

from __future__ import annotations

from pydantic import Field

from trimtab.gateway.config.types import Count, HostPort, Listen, TlsSpec, host_port
from trimtab.validation.base import Spec


class PickerSpec(Spec):
    """The endpoint picker: a proxy asks it where each request goes."""

    listen: Listen = Field("127.0.0.1:9002", description="host:port for the proxy (gRPC)")
    max_endpoints: Count = Field(
        8, description="endpoints told to the proxy, best first; 1 where its cluster is ORIGINAL_DST"
    )
    tls: TlsSpec | None = Field(None, description="TLS towards the proxy; default: none")

    @property
    def address(self) -> HostPort:
        """The address for the proxy."""
        return host_port(self.listen)
