"""Calls that load and unload models and adapters at a node, in gateway.yaml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from trimtab.gateway.nodes.load_hooks import (
    OLLAMA_MODELS,
    VLLM_MODELS,
    HookCall,
    ItemHooks,
    LoadHooks,
    vllm_adapters,
)
from trimtab.validation.base import Positive, Spec

_PATH = re.compile(r"/[A-Za-z0-9._~/{}?&=%:-]*")
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_NAMES = ("model", "adapter")


def _hook_path(text: str) -> str:
    if not _PATH.fullmatch(text) or "//" in text or ".." in text or not _knows(text):
        raise ValueError("a path such as /load?name={model}, without // and .., with {model} or {adapter}")
    return text


def _hook_body(body: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    if body is not None and not all(_knows(text) for text in _texts(body)):
        raise ValueError("texts with {model} or {adapter} as the only names in braces")
    return body


def _knows(text: str) -> bool:
    return all(name in _NAMES for name in _PLACEHOLDER.findall(text))


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return [text for item in inner for text in _texts(item)]


class CallSpec(Spec):
    """A request to the node; 2xx = done."""

    method: Literal["POST", "PUT", "PATCH", "DELETE", "GET"] = Field("POST", description="method")
    path: Annotated[str, AfterValidator(_hook_path)] = Field(
        description="path at the node; {model} and {adapter} stand for names"
    )
    body: Annotated[Mapping[str, Any] | None, AfterValidator(_hook_body)] = Field(
        None, description="JSON body, in which {model} and {adapter} stand for names; default: none"
    )

    def call(self) -> HookCall:
        """The call."""
        return HookCall(self.method, self.path, self.body)


class CallsSpec(Spec):
    """Calls of any server."""

    load: CallSpec = Field(description="loads; its answer comes when the item is loaded")
    unload: CallSpec | None = Field(None, description="unloads; default: nothing is unloaded")
    loads_on_request: bool = Field(
        False,
        description="the node itself loads what a request needs; else the gateway does, before it sends it",
    )

    def hooks(self) -> ItemHooks:
        """The calls."""
        unload = None if self.unload is None else self.unload.call()
        return ItemHooks(self.load.call(), unload, self.loads_on_request)


def _kind(value: object) -> str:
    return "<name>" if isinstance(value, str) else "<calls>"


ModelCalls = Annotated[
    Annotated[Literal["vllm", "ollama"], Tag("<name>")] | Annotated[CallsSpec, Tag("<calls>")],
    Discriminator(_kind),
]
AdapterCalls = Annotated[
    Annotated[Literal["vllm"], Tag("<name>")] | Annotated[CallsSpec, Tag("<calls>")], Discriminator(_kind)
]


def _adapter_path(text: str) -> str:
    if "{adapter}" not in text or not _knows(text):
        raise ValueError("a path with {adapter}, such as /adapters/{adapter}")
    return text


class LoadingSpec(Spec):
    """How the gateway makes a node load what a plan places on it, or what a request needs."""

    models: ModelCalls | None = Field(
        None, description="vllm (/wake_up, /sleep), ollama, or calls; default: the node always has its models"
    )
    adapters: AdapterCalls | None = Field(
        None, description="vllm (/v1/load_lora_adapter, …), or calls; default: the node loads them itself"
    )
    adapter_path: Annotated[str, AfterValidator(_adapter_path)] = Field(
        "{adapter}", description="where vllm finds an adapter's files; {adapter} stands for its name"
    )
    timeout_s: Positive = Field(300.0, description="limit of one call; a load that takes longer is undone")
    backoff_s: Positive = Field(
        30.0, description="pause after a failed load of an item; doubled each time, up to 16 times this"
    )
    unload_unplaced: bool = Field(
        False, description="unload what no plan places any more; default: only to make room"
    )

    @model_validator(mode="after")
    def _some_calls(self) -> LoadingSpec:
        if self.models is None and self.adapters is None:
            raise ValueError("models or adapters, or both")
        return self

    def hooks(self) -> LoadHooks:
        """The calls."""
        named = {"vllm": VLLM_MODELS, "ollama": OLLAMA_MODELS}
        models = named[self.models] if isinstance(self.models, str) else self.models
        adapters = vllm_adapters(self.adapter_path) if isinstance(self.adapters, str) else self.adapters
        return LoadHooks(
            models.hooks() if isinstance(models, CallsSpec) else models,
            adapters.hooks() if isinstance(adapters, CallsSpec) else adapters,
            self.timeout_s,
            self.backoff_s,
            self.unload_unplaced,
        )
