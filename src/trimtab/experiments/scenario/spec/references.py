"""Checks that the names in a scenario exist and that its parts fit together. Reports all errors at once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from trimtab.experiments.scenario.spec.cluster_section import ClusterSpec
from trimtab.experiments.scenario.spec.network_links import links_of, network_field_errors
from trimtab.experiments.scenario.spec.node_services import has_seconds
from trimtab.experiments.scenario.spec.service_classes import Served, ServiceClass
from trimtab.experiments.scenario.spec.serving import BackgroundSpec, StruckNodes
from trimtab.experiments.scenario.spec.shared_types import holds
from trimtab.experiments.scenario.spec.workload import GenerateSpec, WorkloadSpec
from trimtab.validation.names import FieldError, Path, known, listed


def cluster_field_errors(cluster: ClusterSpec) -> Iterator[FieldError]:
    """Types and zones that nodes and round trips name, and the graph of the network."""
    zones = cluster.zone_names
    for k, group in enumerate(cluster.nodes):
        yield from known(("cluster", "nodes", k, "type"), group.type, cluster.types, "node type")
        if group.zone is not None:
            yield from known(("cluster", "nodes", k, "zone"), group.zone, zones, "zone")
    rows = cluster.rtt_s if isinstance(cluster.rtt_s, Mapping) else {}
    for source, row in rows.items():
        for zone in (source, *row):
            yield from known(("cluster", "rtt_s", source), zone, zones, "zone")
    yield from network_field_errors(cluster)


def served_field_errors(served: Served, cluster: ClusterSpec) -> Iterator[FieldError]:
    """Models and adapters that classes name, and node types in all tables."""
    for section, families in (("models", served.models), ("adapters", served.adapters)):
        for name, family in families.items():
            yield from _load_field_errors((section, name, "load_s"), family.load_s, cluster)
    for name, service in served.classes.items():
        path = ("classes", name)
        if service.model is not None:
            yield from known((*path, "model"), service.model, served.models, "model")
        if service.adapter is not None:
            yield from known((*path, "adapter"), service.adapter, served.adapters, "adapter")
        yield from _service_field_errors(path, service, cluster)
        yield from _demand_field_errors((*path, "demand"), service, cluster)


def _load_field_errors(
    path: Path, load_s: float | Mapping[str, float | None], cluster: ClusterSpec
) -> Iterator[FieldError]:
    if isinstance(load_s, Mapping):
        yield from _known_types(path, load_s, cluster)
        missing = [name for name in cluster.types if load_s.get(name) is None]
        if missing:
            yield FieldError(path, dict(load_s), f"seconds for every node type, also {listed(missing)}")


def _service_field_errors(path: Path, service: ServiceClass, cluster: ClusterSpec) -> Iterator[FieldError]:
    for field, table in (("fixed_s", service.fixed_s), ("unit_s", service.unit_s)):
        if isinstance(table, Mapping):
            yield from _known_types((*path, field), table, cluster)
    idle = [
        name
        for name, kind in cluster.types.items()
        if not has_seconds(kind.service) and service.service_on(name, kind.speed) == (0.0, 0.0)
    ]
    if idle:
        yield FieldError(path, None, f"fixed_s or unit_s above 0 on {listed(idle)}")


def _demand_field_errors(path: Path, service: ServiceClass, cluster: ClusterSpec) -> Iterator[FieldError]:
    missing = [name for name in service.demand if name not in cluster.resource_names]
    for name in missing:
        expected = f"a resource of some node type: {listed(cluster.resource_names) or 'none has any'}"
        yield FieldError((*path, name), service.demand[name], expected)
    types = cluster.types.items()
    serving = {n: t.resources for n, t in types if service.service_on(n, t.speed) is not None}
    if not missing and serving and not any(holds(has, service.demand) for has in serving.values()):
        has = "; ".join(f"{name} has {dict(resources)}" for name, resources in serving.items())
        yield FieldError(
            path, dict(service.demand), f"no more than one node has that serves this class: {has}"
        )


def _known_types(path: Path, table: Mapping[str, object], cluster: ClusterSpec) -> Iterator[FieldError]:
    unknown = [name for name in table if name not in cluster.types]
    if unknown:
        yield FieldError(path, unknown, f"node types of the cluster: {listed(cluster.types)}")


def workload_field_errors(
    workload: WorkloadSpec, served: Served, cluster: ClusterSpec, chains: Collection[str] = ()
) -> Iterator[FieldError]:
    """Classes and zones that the workload names."""
    for zone in workload.origin or {}:
        yield from known(("workload", "origin", zone), zone, cluster.zone_names, "zone")
    if workload.generate is not None:
        yield from _mix_field_errors(workload.generate, served, chains)
    if workload.trace is not None and served.classes:
        path = ("workload", "trace")
        for value, name in workload.trace.class_of.items():
            yield from known((*path, "class_of", value), name, served.classes, "class")
        if workload.trace.default_class is not None:
            yield from known((*path, "default_class"), workload.trace.default_class, served.classes, "class")


def _mix_field_errors(
    generate: GenerateSpec, served: Served, chains: Collection[str]
) -> Iterator[FieldError]:
    for k, change in enumerate(generate.changes):
        for name in change.shares or {}:
            of_change = ("workload", "generate", "changes", k, "shares", name)
            yield from known(of_change, name, generate.mix, "class of the mix")
    for name, entry in generate.mix.items():
        path = ("workload", "generate", "mix", name)
        yield from known(path, name, served.classes, "class or chain")
        if name in chains:
            if entry.size is not None:
                yield FieldError((*path, "size"), entry.size, "no size: the stages of a chain have sizes")
        elif entry.size is None and generate.size is None:
            yield FieldError((*path, "size"), None, "a size, here or in workload.generate.size")
        service = served.classes.get(name)
        if entry.adapter_frac and service is not None and service.adapter is None:
            yield FieldError((*path, "adapter_frac"), entry.adapter_frac, f"0, or classes.{name}.adapter")


def store_field_errors(cluster: ClusterSpec, on_failure: str) -> Iterator[FieldError]:
    """Engines that resume: they load their models again at once, and not over the network."""
    has_store = cluster.network is not None and cluster.network.store is not None
    has_engines = any(kind.service is not None for kind in cluster.types.values())
    if has_store and has_engines and on_failure == "resume":
        expected = "restart, where node types have a service and cluster.network a store"
        yield FieldError(("serving", "on_failure"), on_failure, expected)


def background_field_errors(
    background: Collection[BackgroundSpec], noise: Collection[str], cluster: ClusterSpec
) -> Iterator[FieldError]:
    """Nodes, and resources that no node type has, of background work and of errors in reports."""
    yield from struck_field_errors("background", background, cluster)
    had = {name for kind in cluster.types.values() for name in kind.resources}
    for k, entry in enumerate(background):
        if entry.resource is not None:
            yield from known(("background", k, "resource"), entry.resource, had, "resource of a node type")
    for name in noise:
        yield from known(("serving", "telemetry", "noise_frac", name), name, had, "resource of a node type")


def struck_field_errors(
    section: str, entries: Collection[StruckNodes], cluster: ClusterSpec
) -> Iterator[FieldError]:
    """Nodes, types and zones that faults and background work name."""
    nodes = [node.name for node in cluster.each_node()] if entries else []
    for k, fault in enumerate(entries):
        for field, names in (("node", nodes), ("type", cluster.types), ("zone", cluster.zone_names)):
            name = getattr(fault, field)
            if name is not None:
                yield from known((section, k, field), name, names, field)
        link = getattr(fault, "link", None)
        if link is not None:
            ends = [] if cluster.network is None else [sorted((of.a, of.b)) for of in links_of(cluster)]
            if sorted(link) not in ends:
                yield FieldError(
                    (section, k, "link"), list(link), "the two ends of a link of cluster.network"
                )
