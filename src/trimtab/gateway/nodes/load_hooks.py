"""How the gateway makes a node load and unload models and adapters: HTTP calls of the node's own.

vLLM: `/sleep` and `/wake_up` ("Sleep Mode"; the server needs `--enable-sleep-mode` and
`VLLM_SERVER_DEV_MODE=1`), `/v1/load_lora_adapter` and `/v1/unload_lora_adapter` ("LoRA Adapters";
`VLLM_ALLOW_RUNTIME_LORA_UPDATING=True`). Ollama: `POST /api/generate` without a prompt loads a model,
with `keep_alive` 0 unloads it, and `/api/ps` lists what is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import orjson

from trimtab.gateway.model import Node


@dataclass(frozen=True, slots=True)
class HookCall:
    """A request to the node. `{model}` and `{adapter}` stand for names in its path and its body."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None  # sent as JSON

    def filled(self, names: Mapping[str, str]) -> tuple[str, bytes | None]:
        """Its path and its body with these names."""
        path = _filled(self.path, {name: quote(value, safe="") for name, value in names.items()})
        return path, None if self.body is None else orjson.dumps(_filled(self.body, names))


def _filled(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        for name, meant in names.items():
            value = value.replace(f"{{{name}}}", meant)
        return value
    if isinstance(value, Mapping):
        return {key: _filled(item, names) for key, item in value.items()}
    return [_filled(item, names) for item in value] if isinstance(value, list | tuple) else value


Held = Callable[[Any, frozenset[str]], set[str]]  # the page and the names in question → those that it holds


@dataclass(frozen=True, slots=True)
class Probe:
    """A page of the node that says what it holds."""

    path: str
    held: Held


@dataclass(frozen=True, slots=True)
class ItemHooks:
    """The calls for models, or for adapters."""

    load: HookCall
    unload: HookCall | None = None
    loads_on_request: bool = False  # the node itself loads what a request needs
    probe: Probe | None = None


@dataclass(frozen=True, slots=True)
class LoadHooks:
    """The calls of a node, and how the gateway uses them."""

    models: ItemHooks | None = None  # None = the node always holds its models
    adapters: ItemHooks | None = None
    timeout_s: float = 300.0
    backoff_s: float = 30.0  # after a failed load; doubled each time, up to 16 times this
    unload_unplaced: bool = False

    def of(self, node: Node, adapters: Container[str], item: str) -> ItemHooks | None:
        """The calls for a model of the node, or for one of these adapters of it."""
        if item in node.models:
            return self.models
        return self.adapters if item in adapters else None


def _awake(page: Any, names: frozenset[str]) -> set[str]:
    return set() if page["is_sleeping"] else set(names)


def _listed(page: Any, names: frozenset[str]) -> set[str]:
    listed = {entry["model"] for entry in page["models"]}
    return {name for name in names if name in listed or f"{name}:latest" in listed}


VLLM_MODELS: Final = ItemHooks(
    HookCall("POST", "/wake_up"), HookCall("POST", "/sleep?level=1"), probe=Probe("/is_sleeping", _awake)
)
OLLAMA_MODELS: Final = ItemHooks(
    HookCall("POST", "/api/generate", {"model": "{model}", "keep_alive": -1}),
    HookCall("POST", "/api/generate", {"model": "{model}", "keep_alive": 0}),
    loads_on_request=True,
    probe=Probe("/api/ps", _listed),
)


def vllm_adapters(path: str) -> ItemHooks:
    """The calls of vLLM for adapters. `path`: of an adapter's files at the node, with `{adapter}`."""
    return ItemHooks(
        HookCall("POST", "/v1/load_lora_adapter", {"lora_name": "{adapter}", "lora_path": path}),
        HookCall("POST", "/v1/unload_lora_adapter", {"lora_name": "{adapter}"}),
    )
