"""gateway.yaml on disk: reading and validation, JSON Schema, example, and overrides of the command line."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from trimtab.errors import ConfigError
from trimtab.gateway.config.gateway import CONFIG_TITLE, GatewayConfig, raw_field_errors
from trimtab.gateway.config.keys import KeySpec, is_readable_by_others, read_keys
from trimtab.gateway.config.node_entries import KubernetesEntry, NodeEntry
from trimtab.gateway.config.types import FOLDER
from trimtab.gateway.nodes.address import parse_base
from trimtab.gateway.nodes.node_state import NodeSpec
from trimtab.validation.base import Spec
from trimtab.validation.problems import checked
from trimtab.validation.yaml_text import parsed_yaml, read_yaml

LOOPBACK = ("localhost", "::1")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._:-]+")


def load_config(path: str | Path) -> GatewayConfig:
    """Read the configuration in a file, with the tenants of its `keys_file`.

    Raises ConfigError: the file is not readable, is malformed YAML, or has invalid fields (all are listed).
    """
    path = Path(path)
    return parse_config(read_yaml(path, ConfigError), str(path), path.parent)


def parse_config(text: str, file: str = "gateway.yaml", folder: Path | None = None) -> GatewayConfig:
    """Parse a configuration. Relative paths are relative to `folder`, if given. Raises ConfigError."""
    data = parsed_yaml(text, file, ConfigError, "no configuration", "keys such as listen and nodes")
    config = _validated(data, file, folder)
    if config.keys_file is None:
        return config
    return _with_keys(config, read_keys(config.keys_file), str(config.keys_file))


def _with_keys(config: GatewayConfig, keys: Sequence[KeySpec], file: str) -> GatewayConfig:
    """The configuration with further tenants, which come from `file`. Raises ConfigError."""
    return _validated({**_values(config), "keys": (*config.keys, *keys)}, file, None)


def _validated(data: dict[Any, Any], file: str, folder: Path | None) -> GatewayConfig:
    context = {FOLDER: None if folder is None else folder.absolute()}
    return checked(
        lambda: GatewayConfig.model_validate(data, context=context),
        GatewayConfig,
        file,
        ConfigError,
        lambda: raw_field_errors(data),
    )


class _NodesFile(Spec):
    nodes: tuple[NodeEntry, ...] = ()


def node_specs(data: Any, file: str) -> list[NodeSpec]:
    """The nodes of a list from another source, such as the watched file. Raises ConfigError."""
    entries = checked(lambda: _NodesFile.model_validate({"nodes": data}), _NodesFile, file, ConfigError).nodes
    names = [entry.name for entry in entries]
    if len(set(names)) < len(names):
        raise ConfigError("has two nodes of one name", file=file, expected="every name once")
    return [entry.spec() for entry in entries]


def _values(spec: Spec) -> dict[str, Any]:
    """The fields of a spec. dict() would take a field named `keys` for a method."""
    return {name: getattr(spec, name) for name in type(spec).model_fields}


def config_schema() -> dict[str, Any]:
    """JSON Schema of gateway.yaml, for editors."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **GatewayConfig.model_json_schema(),
        "title": CONFIG_TITLE,
    }


def example_text() -> str:
    """A valid gateway.yaml with comments."""
    return (resources.files("trimtab.gateway.config") / "example.yaml").read_text(encoding="utf-8")


def config_for_backends(urls: Sequence[str]) -> GatewayConfig:
    """The configuration of a quick start: these backends, and defaults. Raises ConfigError."""
    nodes = [{"name": name, "url": url} for name, url in zip(_node_names(urls), urls, strict=True)]
    return _validated({"nodes": nodes}, "--backend", None)


def _node_names(urls: Sequence[str]) -> Iterator[str]:
    """Names from host and port of each URL. Further nodes at the same address get a number."""
    taken: dict[str, int] = {}
    for url in urls:
        name = _NOT_IN_NAMES.sub("-", _host_and_port(url)).strip("-.:_") or "backend"
        taken[name] = taken.get(name, 0) + 1
        yield name if taken[name] == 1 else f"{name}-{taken[name]}"


def _host_and_port(url: str) -> str:
    try:
        address = parse_base(url)
    except ConfigError:
        return ""  # the field's own validation reports the error
    return f"{address.host}:{address.port}"


@dataclass(frozen=True, slots=True)
class Overrides:
    """Command-line values that override the file; None = not given. They also apply after a reload."""

    listen: str | None = None
    admin_listen: str | None = None
    policy: str | None = None
    insecure_no_auth: bool = False
    reuse_port: bool = False
    picker_listen: str | None = None
    pool: str | None = None  # an InferencePool, NAME or NAMESPACE/NAME, whose pods alone are nodes

    def over(self, config: GatewayConfig) -> GatewayConfig:
        """The configuration with the overrides. Raises ConfigError."""
        given = {"listen": self.listen, "policy": self.policy}
        changed: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
        if self.admin_listen is not None:
            changed["admin"] = {**_values(config.admin), "listen": self.admin_listen}
        if self.picker_listen is not None:
            changed["picker"] = {**_values(config.picker), "listen": self.picker_listen}
        if self.pool is not None:
            changed |= {"nodes": (), "discovery": {"kubernetes": (_pool_entry(config, self.pool),)}}
        for flag in ("insecure_no_auth", "reuse_port"):
            if getattr(self, flag):
                changed[flag] = True
        return _validated({**_values(config), **changed}, "command line", None) if changed else config


def _pool_entry(config: GatewayConfig, pool: str) -> dict[str, Any] | KubernetesEntry:
    """The file's settings of an InferencePool, or defaults."""
    namespace, _, name = pool.rpartition("/")
    for entry in config.discovery.kubernetes:
        if entry.pool == name and namespace in ("", entry.namespace):
            return entry
    return {"name": name, "pool": name, "namespace": namespace or "default"}


def require_keys(config: GatewayConfig) -> None:
    """Raise ConfigError if the gateway would serve clients without keys and the file does not allow it."""
    if not config.keys and not config.insecure_no_auth:
        expected = "keys or keys_file (`trimtab serve --new-key` makes one), or --insecure-no-auth by name"
        raise ConfigError("there are none: everybody would be served", field="keys", expected=expected)


def config_warnings(config: GatewayConfig) -> list[str]:
    """Warnings about settings that are valid but possibly unintended."""
    return list(_warnings(config))


def _warnings(config: GatewayConfig) -> Iterator[str]:
    if config.keys_file is not None and is_readable_by_others(config.keys_file):
        yield f"{config.keys_file} can be read by others: chmod 600 is enough for it"
    if config.insecure_no_auth:
        yield "insecure_no_auth: every client that reaches the port is served"
    for address, what in ((config.listen_address, "listen"), (config.admin_address, "admin.listen")):
        if not (address.host in LOOPBACK or address.host.startswith("127.")):
            yield f"{what} is no loopback address, and there is no TLS: put a proxy with TLS in front of it"
    if not config.nodes and not config.discovery.is_on and not config.registration.allowed_cidrs:
        yield "there are no nodes, and none can be found or added"
    yield from config.policy_notes()
    yield from (f"environment variable {name} is not set" for name in _unset(config))


def _unset(config: GatewayConfig) -> list[str]:
    nodes = [entry.api_key_env for entry in (*config.nodes, *config.discovery.templates)]
    keys = [secret.env for secret in (*config.keys, *config.admin.keys)]
    names = dict.fromkeys([*nodes, *keys, config.admin.key_env, config.store.url_env])
    return [name for name in names if name and not os.environ.get(name)]
