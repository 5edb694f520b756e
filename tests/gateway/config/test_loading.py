"""`loading`, `cache`, `split` and `batch` in gateway.yaml: what they become, and what is refused."""

from __future__ import annotations

import pytest

from trimtab.domain.needs import Need
from trimtab.errors import ConfigError
from trimtab.gateway.config import parse_config
from trimtab.gateway.nodes.load_hooks import OLLAMA_MODELS, VLLM_MODELS, HookCall, LoadHooks

NODE = "nodes: [{name: a, url: 'http://x:1', models: [m], adapters: [x], loading: %s}]"


def hooks_of(loading: str) -> LoadHooks:
    hooks = parse_config(NODE % loading).nodes[0].spec().hooks
    assert hooks is not None
    return hooks


def test_calls_are_named_or_written_out() -> None:
    hooks = hooks_of(
        "{models: ollama, adapters: {load: {path: '/l?a={adapter}', body: {m: ['{model}']}}}, timeout_s: 5}"
    )
    assert hooks.adapters is not None
    assert (hooks.models, hooks.adapters.unload, hooks.timeout_s) == (OLLAMA_MODELS, None, 5.0)
    assert hooks.adapters.load == HookCall("POST", "/l?a={adapter}", {"m": ["{model}"]})
    names = {"model": "m", "adapter": "a/b c"}
    assert hooks.adapters.load.filled(names) == ("/l?a=a%2Fb%20c", b'{"m":["m"]}')
    vllm = hooks_of("{models: vllm, adapters: vllm, adapter_path: '/f/{adapter}'}")
    assert vllm.adapters is not None
    assert vllm.models == VLLM_MODELS
    body = vllm.adapters.load.filled({"model": "m", "adapter": "x"})[1]
    assert body == b'{"lora_name":"x","lora_path":"/f/x"}'


@pytest.mark.parametrize(
    ("loading", "field", "expected"),
    [
        ("{}", "nodes[0].loading", "models or adapters"),
        ("{models: tgi}", "nodes[0].loading.models", "vllm"),
        ("{adapters: ollama}", "nodes[0].loading.adapters", "vllm"),
        ("{models: vllm, timeout_s: 0}", "nodes[0].loading.timeout_s", "0"),
        ("{models: vllm, backoff_s: -1}", "nodes[0].loading.backoff_s", "0"),
        ("{models: vllm, adapter_path: /files}", "nodes[0].loading.adapter_path", "{adapter}"),
        ("{models: {load: {path: load}}}", "nodes[0].loading.models.load.path", "a path such as"),
        ("{models: {load: {path: '/../x'}}}", "nodes[0].loading.models.load.path", "a path such as"),
        ("{models: {load: {path: '/{name}'}}}", "nodes[0].loading.models.load.path", "{model}"),
        ("{models: {load: {path: /l, body: {a: '{b}'}}}}", "nodes[0].loading.models.load.body", "{model}"),
        ("{models: {load: {path: /l, method: TRACE}}}", "nodes[0].loading.models.load.method", "POST"),
        ("{models: {unload: {path: /l}}}", "nodes[0].loading.models.load", ""),
    ],
)
def test_wrong_calls_are_refused_with_their_place(loading: str, field: str, expected: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config(NODE % loading, "g.yaml")
    message = str(refused.value)
    assert "g.yaml" in message
    assert field in message
    assert expected in message


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("result_cache: {max_entries: 0}", "result_cache.max_entries"),
        ("result_cache: {max_bytes: -1}", "result_cache.max_bytes"),
        ("result_cache: {max_age_s: 0}", "result_cache.max_age_s"),
        ("routes: {r: {targets: [m], cache: 7}}", "routes.r.cache"),
        ("models: {m: {split: 3}}", "models.m.split"),
        ("models: {m: {batch: often}}", "models.m.batch"),
    ],
)
def test_wrong_values_are_refused_with_their_place(text: str, field: str) -> None:
    with pytest.raises(ConfigError, match=field.replace(".", r"\.")):
        parse_config("nodes: [{name: a, url: 'http://x:1', models: [m]}]\n" + text, "g.yaml")


@pytest.mark.parametrize(
    ("need", "text"),
    [
        (Need.PLACEMENT, NODE % "{models: vllm}"),
        (Need.RESULT_CACHE, "routes: {r: {cache: true}}"),
        (Need.SPLITTING, "models: {m: {split: true}}"),
        (Need.BATCHING, "models: {m: {batch: true}}"),
    ],
)
def test_what_is_configured_is_provided(need: Need, text: str) -> None:
    assert need in parse_config(text).provided()
    assert need not in parse_config("nodes: [{name: a, url: 'http://x:1', models: [m]}]").provided()
