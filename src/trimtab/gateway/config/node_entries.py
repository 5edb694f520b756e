"""Backends in gateway.yaml: nodes, their capacity, discovery and registration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from trimtab.domain.cluster import RESOURCES, ResourceName
from trimtab.gateway.config.loading import LoadingSpec
from trimtab.gateway.config.types import (
    BackendUrl,
    Cidr,
    Count,
    EnvName,
    ExistingFile,
    FilePath,
    HostName,
    Model,
    Name,
    Url,
    UrlOrPath,
    UrlPath,
)
from trimtab.gateway.nodes.node_state import NodeSpec
from trimtab.validation.base import NonNegative, Positive, Spec

AUTO_MAX_REQUESTS = 256  # default upper bound of `auto`
MOST = 1e9  # of a resource: sums of its steps are then exact


Requests = Annotated[
    Annotated[Count, Tag("<number>")] | Annotated[Literal["auto"], Tag("<auto>")],
    Discriminator(lambda value: "<auto>" if isinstance(value, str) else "<number>"),
]


Amount = Annotated[float, Field(gt=0, le=MOST)]
"""How much of a resource a node has."""


class CapacitySpec(Spec):
    """The capacity of a node. Work beyond it waits in the gateway."""

    requests: Requests = Field("auto", description="requests in flight; auto = adapted to measured latencies")
    tokens: NonNegative = Field(0, description="tokens in flight, prompt and expected output; 0 = no limit")
    max_requests: Count = Field(AUTO_MAX_REQUESTS, description="upper limit of requests when auto")
    cpu_cores: Amount | None = Field(None, description="for policies; default: as node_exporter reports")
    ram_gib: Amount | None = Field(None, description="for policies; default: as node_exporter reports")
    io_gib_per_s: Amount | None = Field(
        None, description="disk bandwidth, for policies; default: 1 where node_exporter reports a disk's load"
    )
    network_gib_per_s: Amount | None = Field(
        None, description="for policies; default: the fastest device that node_exporter reports"
    )
    gpu_milli: Amount | None = Field(
        None, description="thousandths of a GPU, for policies; default: as dcgm-exporter reports"
    )
    gpu_gib: Amount | None = Field(
        None, description="GPU memory, for policies; default: as dcgm-exporter reports"
    )

    @property
    def resources(self) -> dict[ResourceName, float]:
        """The capacities that are declared."""
        return {name: has for name in RESOURCES if (has := getattr(self, name)) is not None}

    @property
    def is_auto(self) -> bool:
        """Whether the bound on requests is determined from latencies."""
        return self.requests == "auto"

    @property
    def most_requests(self) -> int:
        """The bound on requests, or the upper bound of auto."""
        return self.max_requests if isinstance(self.requests, str) else self.requests


def _as_capacity(value: object) -> object:
    return value if isinstance(value, Mapping | CapacitySpec) else {"requests": value}


Capacity = Annotated[
    CapacitySpec,
    BeforeValidator(_as_capacity, json_schema_input_type=Count | Literal["auto"] | CapacitySpec),
]


class NodeSettings(Spec):
    """The settings of a node, except name and address."""

    models: tuple[Model, ...] = Field(
        (), description="models that the node serves; empty = those of its /v1/models"
    )
    adapters: tuple[Model, ...] = Field((), description="adapters that the node serves, besides its models")
    adapter_load_s: NonNegative = Field(1.0, description="time to load an adapter, for policies")
    loading: LoadingSpec | None = Field(
        None, description="calls that load and unload models or adapters at the node; default: none"
    )
    capacity: Capacity = Field(
        CapacitySpec(), description="limit of requests, or of requests and tokens, in flight; resources"
    )
    type: str = Field(
        "", description="node type; nodes of one type share estimates; default: the node's name"
    )
    weight: Positive = Field(1.0, description="share of requests under weighted policies")
    zone: str = Field("", description="location, for policies; default: the gateway's own")
    nic_gib_per_s: Positive | None = Field(
        None, description="bandwidth of the link to the node; default: measured on large request bodies"
    )
    usd_per_hour: NonNegative = Field(0.0, description="price of the node, for policies")
    api_key_env: EnvName | None = Field(
        None, description="environment variable that holds the backend's API key"
    )
    ca_file: ExistingFile | None = Field(
        None, description="PEM file of certificates to trust instead of the system's"
    )
    rate_limit_scope: Literal["request", "node"] = Field(
        "request", description="what its 429 is about: the request's key or model, or the node itself"
    )
    health_path: UrlPath | None = Field(
        None, description="path of health checks; default: /health, or /v1/models if that is missing"
    )
    metrics_url: UrlOrPath | None = Field(
        None,
        description="metrics of vLLM, SGLang, TensorRT-LLM, llama.cpp or TGI: a path of the node or a URL",
    )
    exporter_url: Url | None = Field(None, description="node_exporter of the node's machine")
    gpu_exporter_url: Url | None = Field(None, description="dcgm-exporter of the node's machine")
    idempotent_jobs: bool = Field(
        False, description="a job may run twice; needed to restart jobs after a crash"
    )
    job_api: Literal["none", "videos"] = Field(
        "none",
        description="job API of the backend: videos = OpenAI's /v1/videos; none = it responds when done",
    )

    def described(self, name: str, url: str) -> NodeSpec:
        """The NodeSpec of a node with these settings."""
        return NodeSpec(
            name=name,
            url=url,
            models=self.models,
            max_requests=self.capacity.most_requests,
            max_tokens=self.capacity.tokens,
            auto=self.capacity.is_auto,
            api_key_env=self.api_key_env or "",
            ca_file=str(self.ca_file or ""),
            type_name=self.type,
            adapters=self.adapters,
            adapter_load_s=self.adapter_load_s,
            hooks=None if self.loading is None else self.loading.hooks(),
            weight=self.weight,
            resources=self.capacity.resources,
            zone=self.zone,
            nic_gib_per_s=self.nic_gib_per_s or 0.0,
            usd_per_hour=self.usd_per_hour,
            is_429_its_own=self.rate_limit_scope == "node",
            health_path=self.health_path or "",
            metrics_url=self.metrics_url or "",
            exporter_url=self.exporter_url or "",
            gpu_exporter_url=self.gpu_exporter_url or "",
        )


class NodeEntry(NodeSettings):
    """A backend."""

    name: Name = Field(description="name in headers, logs and metrics")
    url: BackendUrl = Field(description="http(s)://host:port")

    def spec(self) -> NodeSpec:
        """The NodeSpec of this node."""
        return self.described(self.name, self.url)


class DnsEntry(NodeSettings):
    """A DNS name whose addresses are nodes. It is resolved periodically."""

    name: HostName = Field(description="host name; the nodes are called NAME-ADDRESS")
    port: int = Field(ge=1, le=65535, description="port of every node")
    tls: bool = Field(False, description="use https")
    period_s: Positive = Field(10.0, description="seconds between two DNS lookups")

    def template(self) -> NodeSpec:
        """The template of its nodes' specs. The host of its URL is the DNS name."""
        return self.described(self.name, f"{'https' if self.tls else 'http'}://{self.name}:{self.port}")


class KubernetesEntry(NodeSettings):
    """Pods of Kubernetes that are ready, by exactly one of `selector`, `service` and `pool`."""

    name: Name = Field(description="the nodes are called NAME-POD")
    namespace: Name = Field("default", description="namespace of the pods")
    selector: str = Field("", description="label selector of pods, such as app=vllm")
    service: str = Field("", description="Service whose endpoints are nodes")
    pool: str = Field("", description="InferencePool (inference.networking.k8s.io/v1) whose pods are nodes")
    port: Annotated[int, Field(ge=1, le=65535)] | str = Field(
        "", description="number or name; default: the only one of the pod or Service; targetPorts of the pool"
    )
    tls: bool = Field(False, description="use https")
    kubeconfig: str = Field(
        "", description="file; default: $KUBECONFIG, ~/.kube/config, or the pod's service account"
    )
    context: str = Field("", description="context of that file")

    @model_validator(mode="after")
    def _one_of(self) -> KubernetesEntry:
        if sum(map(bool, (self.selector, self.service, self.pool))) != 1:
            raise ValueError("exactly one of selector, service and pool")
        if self.pool and self.port:
            raise ValueError("no port beside pool, which has targetPorts")
        return self

    def template(self) -> NodeSpec:
        """The template of its nodes' specs. The host of its URL is the Service, or its name."""
        host = f"{self.service}.{self.namespace}.svc" if self.service else ""
        scheme, port = ("https", 443) if self.tls else ("http", 80)
        return self.described(self.name, f"{scheme}://{host or self.name}:{port}")


class DiscoverySpec(Spec):
    """Discovery of nodes that this file does not list."""

    dns: tuple[DnsEntry, ...] = Field((), description="names whose addresses are nodes")
    kubernetes: tuple[KubernetesEntry, ...] = Field(
        (), description="pods that are nodes while they are ready"
    )
    file: FilePath | None = Field(
        None, description="YAML or JSON file with a list of nodes; changes take effect"
    )
    period_s: Positive = Field(2.0, description="seconds between two checks of the file")

    @model_validator(mode="after")
    def _names_once(self) -> DiscoverySpec:
        for field in ("dns", "kubernetes"):
            names = [entry.name for entry in getattr(self, field)]
            if len(set(names)) < len(names):
                raise ValueError(f"every name once under {field}")
        return self

    @property
    def templates(self) -> tuple[NodeSettings, ...]:
        """The settings of nodes that are found."""
        return (*self.dns, *self.kubernetes)

    @property
    def is_on(self) -> bool:
        """Whether discovery is configured."""
        return bool(self.templates) or self.file is not None


class RegistrationSpec(Spec):
    """The nodes that the admin API may add."""

    allowed_cidrs: tuple[Cidr, ...] = Field(
        (), description="networks that may contain added nodes; empty = no node can be added"
    )
