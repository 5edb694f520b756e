"""The description of a node: from the configuration, a watched file or the admin API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trimtab.domain.cluster import ResourceName
from trimtab.gateway.nodes.load_hooks import LoadHooks


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A described node. It names where a secret is (`api_key_env`), never the secret itself."""

    name: str
    url: str  # http(s)://host[:port][/base]; a base that ends in /v1 loses it: requests bring their own
    models: tuple[str, ...] = ()  # empty = all that it lists itself
    max_requests: int = 64  # capacity in requests in flight; with `auto`, the most it may become
    max_tokens: float = 0.0  # capacity in tokens in flight; 0 = not counted
    auto: bool = False  # find the capacity from latencies
    api_key_env: str = ""  # the environment variable that holds its key
    ca_file: str = ""  # a file of certificates to trust instead of the system's
    type_name: str = ""  # nodes of one type share estimates; "" = the name
    adapters: tuple[str, ...] = ()  # served besides `models`
    adapter_load_s: float = 1.0  # about what it takes to load one that it does not hold yet
    hooks: LoadHooks | None = None  # calls that load and unload; None = the gateway never does
    weight: float = 1.0
    resources: Mapping[ResourceName, float] = field(default_factory=dict)  # capacities that are declared
    zone: str = ""  # "" = the gateway's
    nic_gib_per_s: float = 0.0  # bandwidth of the link to it; 0 = measured on large bodies
    usd_per_hour: float = 0.0
    health_path: str = ""  # "" = /health, and /v1/models where that does not exist
    metrics_url: str = ""  # whole, or a path at the node itself; "" = not polled
    exporter_url: str = ""  # of the machine: node_exporter or dcgm-exporter; "" = not polled
    gpu_exporter_url: str = ""  # a second one of the machine
    is_429_its_own: bool = False  # its 429 says that it is full, not that a key or a model is limited
    server_name: str = ""  # for TLS and the Host header where the URL has an address


@dataclass(frozen=True, slots=True)
class Listing:
    """The list of a node: models, and adapters with the model that each is made for."""

    models: tuple[str, ...]
    adapters: Mapping[str, str]
