"""The metrics page of a fake backend, under the names that vLLM or SGLang use."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from support.backends.options import Options
from support.backends.service import Service

_Row = tuple[str, str, float]  # type, name, value


def _vllm(options: Options, service: Service) -> Iterator[_Row]:
    counts = service.counts
    yield "gauge", "vllm:num_requests_running", service.running
    yield "gauge", "vllm:num_requests_waiting", service.waiting
    yield "gauge", "vllm:kv_cache_usage_perc", min(1.0, service.tokens_held / options.kv_tokens)
    yield "counter", "vllm:prompt_tokens_total", counts.prompt_tokens
    yield "counter", "vllm:generation_tokens_total", counts.output_tokens
    yield "counter", "vllm:prefix_cache_queries_total", counts.prompt_tokens
    yield "counter", "vllm:prefix_cache_hits_total", counts.cached_tokens
    yield "counter", "vllm:request_success_total", counts.served


def _sglang(options: Options, service: Service) -> Iterator[_Row]:
    counts = service.counts
    hit_rate = counts.cached_tokens / counts.prompt_tokens if counts.prompt_tokens else 0.0
    yield "gauge", "sglang:num_running_reqs", service.running
    yield "gauge", "sglang:num_queue_reqs", service.waiting
    yield "gauge", "sglang:token_usage", min(1.0, service.tokens_held / options.kv_tokens)
    yield "gauge", "sglang:num_used_tokens", service.tokens_held
    yield "gauge", "sglang:cache_hit_rate", hit_rate
    yield "counter", "sglang:prompt_tokens_total", counts.prompt_tokens
    yield "counter", "sglang:generation_tokens_total", counts.output_tokens
    yield "counter", "sglang:cached_tokens_total", counts.cached_tokens
    yield "counter", "sglang:num_requests_total", counts.served


_NAMES: dict[str, Callable[[Options, Service], Iterator[_Row]]] = {"vllm": _vllm, "sglang": _sglang}


def page(options: Options, service: Service) -> str:
    """The page in Prometheus' text form."""
    model = options.served_models[0]
    lines = (
        f"# HELP {name} As the real server counts it.\n# TYPE {name} {kind}\n"
        f'{name}{{model_name="{model}"}} {float(value)}\n'
        for kind, name, value in _NAMES[options.metrics](options, service)
    )
    return "".join(lines)
