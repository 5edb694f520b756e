"""Discovery of nodes at run time: names in the DNS, a watched file, the admin API.

When a source fails its nodes stay as they are and the fleet reports the problem: an empty answer of the DNS
or half a file must not remove nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trimtab.errors import ConfigError, UsageError
from trimtab.gateway.model import Node
from trimtab.gateway.nodes.address import Address, AllowedNetworks, Resolver, beside, parse_base, resolve
from trimtab.gateway.nodes.fleet import Fleet
from trimtab.gateway.nodes.node_state import NodeSpec
from trimtab.gateway.nodes.periodic import PeriodicTask
from trimtab.live.program_host import HostNode, NodeSource, Told, Troubled
from trimtab.validation.yaml_text import document, read_yaml

Parse = Callable[[Any], Sequence[NodeSpec]]  # plain data → entries; raises UsageError
_MOST_BYTES = 4 << 20


def reconcile(fleet: Fleet, source: str, specs: Iterable[NodeSpec]) -> list[str]:
    """Make these the nodes of `source`; returns the problems.

    New ones come; missing ones, and those that an operator removed, drain and go. One that is described anew
    is changed in place where that is possible; else the old one drains and goes while the new one works.
    """
    wanted = {spec.name: spec for spec in specs if spec.name not in fleet.removed}
    for node in fleet.present():
        state = fleet.state(node)
        if state.source == source and node.name not in wanted:
            fleet.dismiss(node)
    problems = [_reconcile_one(fleet, source, spec) for spec in wanted.values()]
    return [problem for problem in problems if problem]


def _reconcile_one(fleet: Fleet, source: str, spec: NodeSpec) -> str:
    """Add or change one; returns what is wrong."""
    node = fleet.find(spec.name)
    try:
        if node is None or not _is_staying(fleet, node):
            fleet.add(spec, source)
        elif fleet.state(node).source != source:
            return f"{spec.name}: is the name of a node of {fleet.state(node).source}"
        elif fleet.state(node).spec != spec and not fleet.update(node, spec):
            fleet.replace(node, spec, source)
    except ConfigError as error:
        return f"{spec.name}: {error}"
    return ""


def _is_staying(fleet: Fleet, node: Node) -> bool:
    return fleet.state(node).remove_by_s == float("inf")


class FileSource:
    """A file with a list of nodes, in YAML or JSON."""

    def __init__(self, fleet: Fleet, path: Path, parse: Parse, period_s: float = 1.0) -> None:
        self._fleet, self._path, self._parse = fleet, path, parse
        self._name = f"file:{path.name}"
        self._seen: tuple[int, ...] = ()
        self._taken: tuple[int, ...] = ()
        self._task = PeriodicTask(f"watch of {path.name}", self.look, period_s)

    def start(self) -> None:
        """Read it now, and watch it."""
        self._task.start()

    def again(self) -> None:
        """Take the file over again at the next look, though it has not changed."""
        self._taken = ()

    async def close(self) -> None:
        """Stop watching the file. `start` begins again."""
        await self._task.close()

    async def look(self) -> None:
        """Take it over if it has changed, and stands still since the last look: a writer may be at work."""
        try:
            mark = _mark(self._path)
        except OSError as error:
            self._fleet.report(self._name, f"cannot be read: {error.strerror}; its nodes stay as they are")
            return
        is_still, self._seen = mark == self._seen or not self._taken, mark
        if is_still and mark != self._taken:
            self._taken = mark
            await self._take()

    async def _take(self) -> None:
        try:
            specs = self._parse(await asyncio.to_thread(_load, self._path))
        except (OSError, UsageError) as error:
            self._fleet.report(self._name, f"is not taken over, its nodes stay as they are: {error}")
            return
        self._fleet.report(self._name, "; ".join(reconcile(self._fleet, self._name, specs)))


def _mark(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return (found.st_ino, found.st_mtime_ns, found.st_size)


def _load(path: Path) -> Any:
    if path.stat().st_size > _MOST_BYTES:
        raise ConfigError("is too large", expected=f"at most {_MOST_BYTES} bytes")
    data = document(read_yaml(path, ConfigError), path.name, ConfigError)  # JSON is YAML
    if not isinstance(data, list):
        raise ConfigError("holds no list", expected="a list of nodes; [] for none")
    return data


class DnsNodes:
    """The addresses of a name, which is resolved again and again."""

    def __init__(self, name: str, port: int, period_s: float = 10.0, resolver: Resolver = resolve) -> None:
        self._name, self._port, self._resolve = name, port, resolver
        self._known: dict[str, HostNode] = {}
        self._task = PeriodicTask(f"resolution of {name}", self.look, period_s)

    def nodes(self) -> Sequence[HostNode]:
        """Those that it had last."""
        return list(self._known.values())

    def follow(self, added: Told, changed: Told, removed: Told, troubled: Troubled) -> None:
        """Resolve it now, and again."""
        self._told = added, removed, troubled
        self._task.start()

    async def close(self) -> None:
        """Stop resolving the name. `follow` begins again."""
        await self._task.close()
        self._known.clear()

    async def look(self) -> None:
        """Resolve it once."""
        added, removed, troubled = self._told
        try:
            found = await self._resolve(self._name, self._port)
        except (OSError, UnicodeError):
            found = []
        if not found:
            troubled("has no address")
            return
        for ip in set(self._known) - set(found):
            removed(self._known.pop(ip))
        for ip in found:
            if ip not in self._known:
                self._known[ip] = HostNode(ip, address=ip)
                added(self._known[ip])
        troubled("")


class FollowedNodes:
    """The nodes of a source, each by one template: its `url` gets the node's address and port."""

    def __init__(self, fleet: Fleet, name: str, source: NodeSource, template: NodeSpec) -> None:
        self._fleet, self._name, self._source, self._template = fleet, name, source, template
        self._known: dict[str, HostNode] = {}
        self._trouble = ""
        self._is_due = False

    def start(self) -> None:
        """Follow the source."""
        self._known = {node.name: node for node in self._source.nodes()}
        self._source.follow(self._put, self._put, self._drop, self._troubled)

    async def close(self) -> None:
        """Follow it no more. `start` begins again."""
        await self._source.close()

    def _put(self, node: HostNode) -> None:
        self._known[node.name] = node
        self._take_soon()

    def _drop(self, node: HostNode) -> None:
        self._known.pop(node.name, None)
        self._take_soon()

    def _troubled(self, why: str) -> None:
        self._trouble = why
        self._take_soon()

    def _take_soon(self) -> None:
        """Many changes may come at once."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._take)

    def _take(self) -> None:
        self._is_due = False
        if self._trouble:
            self._fleet.report(self._name, f"{self._trouble}; its nodes stay as they are")
            return
        specs = [self._spec(node) for node in self._known.values()]
        self._fleet.report(self._name, "; ".join(reconcile(self._fleet, self._name, specs)))

    def _spec(self, node: HostNode) -> NodeSpec:
        template = self._template
        address = parse_base(template.url)
        host, port = _host_and_port(node.address, address.port)
        return replace(
            template,
            name=f"{template.name}-{node.name}",
            url=replace(address, host=host, port=port).url,
            type_name=template.type_name or node.type or template.name,
            server_name=template.server_name or address.host,
            zone=node.zone or template.zone,
            usd_per_hour=node.usd_per_hour or template.usd_per_hour,
        )


def _host_and_port(text: str, port: int) -> tuple[str, int]:
    """The parts of an address: HOST, HOST:PORT or [HOST]:PORT. `port` where it has none."""
    host, colon, own = text.rpartition(":")
    if not colon or (":" in host and not host.endswith("]")):  # a name, or an IPv6 address
        return text, port
    return host.strip("[]"), int(own)


class Registrar:
    """The admin API's nodes: vetted, pinned, added.

    They may use only the variables and certificate files that the configuration lists: otherwise a holder of
    the admin key could send any secret of the environment to a node, or probe for files.
    """

    def __init__(self, fleet: Fleet, guard: AllowedNetworks, allowed: Collection[str] = ()) -> None:
        self._fleet, self._guard = fleet, guard
        self._allowed = frozenset(allowed) | {""}

    def vet(self, entry: Mapping[str, Any]) -> None:
        """Before anything looks at the file that an entry names: may it? Raises ConfigError."""
        ca = entry.get("ca_file")
        if ca is not None and not (isinstance(ca, str) and ca in self._allowed):
            raise _not_for_registered("ca_file", ca)

    async def add(self, spec: NodeSpec) -> Node:
        """A new node. Raises ConfigError for an address that is not allowed, or a bad entry."""
        for field, value in (("api_key_env", spec.api_key_env), ("ca_file", spec.ca_file)):
            if value not in self._allowed:
                raise _not_for_registered(field, value)
        base = await self._guard.pin(parse_base(spec.url))
        spec = replace(
            spec,
            url=base.url,
            server_name=spec.server_name or base.server_name,
            metrics_url=await self._page(base, spec.metrics_url, "metrics_url"),
            exporter_url=await self._page(base, spec.exporter_url, "exporter_url"),
            gpu_exporter_url=await self._page(base, spec.gpu_exporter_url, "gpu_exporter_url"),
        )
        return self._fleet.add(spec, "admin")

    async def _page(self, base: Address, url: str, field: str) -> str:
        if not url or url.startswith("/"):
            return url
        return (await self._guard.pin(beside(base, url, field=field))).url


def _not_for_registered(field: str, value: object) -> ConfigError:
    return ConfigError("may not be used by registered nodes", field=field, value=value)
