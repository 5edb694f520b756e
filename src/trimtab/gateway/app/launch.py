"""`trimtab serve` and `trimtab epp`: sockets, demonstration, and the text that the commands print."""

from __future__ import annotations

import contextlib
import resource
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from trimtab.errors import ConfigError
from trimtab.gateway.app.process_memory import collect_later
from trimtab.gateway.config import GatewayConfig, Overrides
from trimtab.gateway.config.node_entries import NodeEntry
from trimtab.gateway.config.types import HostPort
from trimtab.gateway.nodes.address import with_port
from trimtab.gateway.tenancy.tenants import ShownKeys, with_new_keys
from trimtab.live.event_loop import new_runner

if TYPE_CHECKING:
    from trimtab.gateway.app.assembly import GatewayCore, Plane
    from trimtab.gateway.app.lifecycle import Sockets
    from trimtab.gateway.demo import DemoNode

Reload = Callable[[], GatewayConfig]
BACKLOG = 4096
OPEN_FILES = 65_536


def serve(
    config: GatewayConfig | None,
    *,
    overrides: Overrides,
    reload: Reload | None = None,
    keys: ShownKeys | None = None,
    quiet: bool = False,
) -> None:
    """Serve until a signal arrives. Without a configuration (None), serve the demonstration's own backends.

    `keys` are shown once. Raises ConfigError: a port is in use, or a file cannot be written.
    """
    raise_open_files()
    collect_later()
    if config is not None:
        _run(config, reload, keys, quiet, example_model=None)
        return
    from trimtab.gateway.demo import DEMO_NODES, running_nodes

    with running_nodes() as nodes:
        config, keys = demo_config(nodes, overrides)
        _run(config, None, keys, quiet, example_model=DEMO_NODES[0].model)


def _run(
    config: GatewayConfig,
    reload: Reload | None,
    keys: ShownKeys | None,
    quiet: bool,
    example_model: str | None,
) -> None:
    from trimtab.gateway.app.lifecycle import Sockets

    def ready(link: str) -> None:
        if not quiet:
            _say(clients, admin, keys, link, example_model)

    from trimtab.gateway.app.http_plane import HttpPlane

    with (
        listening(config.listen_address, "listen", config.reuse_port) as clients,
        listening(config.admin_address, "admin.listen") as admin,
        new_runner() as runner,
    ):
        runner.run(_start(config, Sockets(clients, admin), HttpPlane, reload, ready, quiet))


def pick(config: GatewayConfig, *, reload: Reload, quiet: bool = False) -> None:
    """Pick endpoints for a proxy until a signal arrives.

    Raises ConfigError: a port is in use, or a file cannot be written or read.
    """
    from trimtab.gateway.app.lifecycle import Sockets
    from trimtab.gateway.app.picker_plane import PickerPlane

    raise_open_files()
    collect_later()
    with (
        listening(config.picker.address, "picker.listen", config.reuse_port, is_bound_only=True) as proxy,
        listening(config.admin_address, "admin.listen") as admin,
        new_runner() as runner,
    ):
        address = _url(proxy, "grpc" if config.picker.tls is None else "grpcs")

        def ready(link: str) -> None:
            if not quiet:
                print(
                    "\n".join([f"trimtab picks endpoints at {address}", *_admin_lines(admin, link)]),
                    flush=True,
                )

        runner.run(_start(config, Sockets(proxy, admin), PickerPlane, reload, ready, quiet))


async def _start(
    config: GatewayConfig,
    sockets: Sockets,
    plane: Callable[[GatewayCore], Plane],
    reload: Reload | None,
    ready: Callable[[str], None],
    quiet: bool,
) -> None:
    """Compile what the kernel cache lacks, then serve."""
    from trimtab.compiled.numba_extras import preload_numba
    from trimtab.gateway.app.config_mapping import policies_of, settings_of
    from trimtab.gateway.app.http_plane import HttpPlane
    from trimtab.gateway.app.lifecycle import run_process
    from trimtab.gateway.app.readiness import are_compiled, compile_first, not_ready

    policies = policies_of(config)
    if not are_compiled(policies):
        async with contextlib.AsyncExitStack() as meanwhile:
            if plane is HttpPlane and not config.reuse_port:  # else the other replicas on the port answer
                says = "it compiles policies, once on this machine"
                await meanwhile.enter_async_context(not_ready(sockets.clients, settings_of(config), says))
            await compile_first(policies, quiet=quiet)
    preload_numba()
    await run_process(config, sockets, plane, reload, ready)


@contextmanager
def listening(
    address: HostPort, field: str, reuse_port: bool = False, *, is_bound_only: bool = False
) -> Iterator[socket.socket]:
    """A listening socket. Raises ConfigError if the address cannot be used.

    On a shared port, or with `is_bound_only`, the socket is only bound, and it listens once the gateway
    serves. Until then the other replicas on the port get all connections.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            if reuse_port:
                found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            found.bind((address.host, address.port))
            if not (reuse_port or is_bound_only):
                found.listen(BACKLOG)
        except OSError as error:
            value = f"{address.host}:{address.port}"
            problem, expected = f"cannot listen: {error.strerror or error}", "a free address of this machine"
            raise ConfigError(problem, field=field, value=value, expected=expected) from error
        yield found
    finally:
        found.close()


def raise_open_files() -> None:
    """Raise the limit of open files to the maximum that the system allows this user."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def demo_config(
    nodes: Mapping[str, DemoNode], overrides: Overrides
) -> tuple[GatewayConfig, ShownKeys | None]:
    """The demonstration's configuration for these nodes by URL, and the keys generated for it."""
    entries = tuple(
        NodeEntry(name=node.name, url=url, models=(node.model,), capacity=node.slots, metrics_url="/metrics")
        for url, node in nodes.items()
    )
    return with_new_keys(overrides.over(GatewayConfig(nodes=entries)), "demo")


def _say(
    clients: socket.socket,
    admin: socket.socket,
    keys: ShownKeys | None,
    link: str,
    example_model: str | None,
) -> None:
    """Print the addresses and how to use them. This is the command's output, so it is not logged."""
    url, admin_url = _url(clients), _url(admin)
    lines = [f"trimtab serves {url}", *_admin_lines(admin, link)]
    if keys is not None:
        lines += [f"  key         {keys.client}   (shown once)", f"  admin key   {keys.admin}   (shown once)"]
    if example_model is not None:
        lines += ["", "try:", _chat(url, keys, example_model), _nodes(admin_url, keys)]
    print("\n".join(lines), flush=True)


def _admin_lines(admin: socket.socket, link: str) -> list[str]:
    url = _url(admin)
    return [f"  dashboard   {url}/login?token={link}   (good once)", f"  metrics     {url}/metrics"]


def _chat(url: str, keys: ShownKeys | None, model: str) -> str:
    body = f'{{"model":"{model}","messages":[{{"role":"user","content":"hello"}}],"stream":true}}'
    with_key = "" if keys is None else _bearer(keys.client)
    return f"  curl -N {url}/v1/chat/completions{with_key} -H 'Content-Type: application/json' -d '{body}'"


def _nodes(admin_url: str, keys: ShownKeys | None) -> str:
    return f"  curl {admin_url}/admin/nodes{'' if keys is None else _bearer(keys.admin)}"


def _bearer(key: str) -> str:
    return f" -H 'Authorization: Bearer {key}'"


def _url(listening: socket.socket, scheme: str = "http") -> str:
    return f"{scheme}://{with_port(*listening.getsockname()[:2])}"
