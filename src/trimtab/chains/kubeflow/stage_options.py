"""The options of a stage that a compiled task and its container stand for."""

from __future__ import annotations

import re
from typing import Any, Final

from trimtab.chains.kubeflow.pipeline_spec import Resources, Task
from trimtab.errors import ChainError, UsageError
from trimtab.validation.quantities import whole

_GIB: Final = 1 << 30
_ANY_GPU: Final = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915")  # resources that name no type


def options_of(task: Task, resources: Resources, file: str, where: str) -> tuple[dict[str, Any], list[str]]:
    """Options by name, and notes on what a chain does otherwise. Raises ChainError."""
    notes: list[str] = []
    options = _resources(resources, file, f"{where}.container.resources", notes)
    if (retries := task.retry_policy) is not None and retries.max_retry_count:
        options["retries"] = retries.max_retry_count
        options["backoff_s"] = _seconds(retries.backoff_duration, file, where)
        options["backoff_max_s"] = _seconds(retries.backoff_max_duration, file, where)
        if retries.backoff_factor != 2.0:
            notes.append(f"waits between attempts double, they grow {retries.backoff_factor:g}-fold there")
    if task.caching_options.enable_cache:
        options["deterministic"] = True
    if task.caching_options.cache_key:
        options["version"] = task.caching_options.cache_key
    return options, notes


def _resources(given: Resources, file: str, where: str, notes: list[str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    cpu = given.resource_cpu_request or given.cpu_request or given.resource_cpu_limit or given.cpu_limit
    if cpu:
        options["cpu"] = _amount(cpu, file, f"{where}.cpuRequest", 1000) / 1000
    limit = given.resource_memory_limit or given.memory_limit * 1e9
    request = given.resource_memory_request or given.memory_request * 1e9
    if memory := limit or request:
        options["memory_gib"] = round(_amount(memory, file, f"{where}.memoryLimit", 1) / _GIB, 6)
        if not limit:
            notes.append("its memory request is a limit, too")
    if (wanted := given.accelerator) is not None:
        count = wanted.resource_count or wanted.count
        kind = wanted.resource_type or wanted.type
        options["gpu"] = float(_amount(count, file, f"{where}.accelerator.count", 1))
        if kind and kind not in _ANY_GPU:
            options["accelerator"] = kind
    return {name: amount for name, amount in options.items() if amount}


def _amount(given: Any, file: str, field: str, per: int) -> int:
    if "{{$" in str(given):
        problem = "depends on an input, which is not supported"
        raise ChainError(problem, file=file, field=field, value=given, expected="a quantity")
    try:
        return whole(f"{given:f}" if isinstance(given, float) else given, field, per=per)
    except UsageError as error:
        raise ChainError(
            error.problem, file=file, field=field, value=given, expected=error.expected
        ) from None


def _seconds(given: str, file: str, where: str) -> float:
    if (found := re.fullmatch(r"(\d+(?:\.\d+)?)s", given)) is None:
        field = f"{where}.retryPolicy"
        raise ChainError("no duration", file=file, field=field, value=given, expected="seconds, such as 10s")
    return float(found[1])
