"""Maps metrics of known servers and exporters to the gateway's own names.

Sources of the names: vLLM ("Production Metrics": `vllm:…`; before its version 1 `gpu_cache_usage_perc`),
SGLang ("Production Metrics": `sglang:…`), TensorRT-LLM (`trtllm-serve` with `return_perf_metrics`:
`trtllm_…`), llama.cpp (`llama-server --metrics`), TGI ("Metrics" of its reference), node_exporter, and
NVIDIA's dcgm-exporter (default-counters.csv; memory in MiB).

Names: `running`, `waiting`, `kv_used_frac`, `kv_tokens` (capacity), `token_s` (mean time between the tokens
of an answer since the reading before); `cpu_cores`, `cpu_busy_frac`, `memory_gib`,
`memory_used_frac`, `disk_busy_frac` (of the busiest disk), `disk_read_bytes_per_s`, `disk_write_bytes_per_s`,
`net_link_gib_per_s` (of the fastest device), `net_receive_bytes_per_s`, `net_transmit_bytes_per_s`; `gpus`,
`gpu_busy_frac` (mean), `gpu_memory_gib`, `gpu_memory_used_frac` (of all).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from trimtab.traces.prometheus_text import KV_CACHES, Sample, SampleFinder, kv_tokens

_GAUGES = {  # summed over engines of one server, but for fractions: their mean
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv_used_frac",
    "vllm:gpu_cache_usage_perc": "kv_used_frac",
    "sglang:num_running_reqs": "running",
    "sglang:num_queue_reqs": "waiting",
    "sglang:token_usage": "kv_used_frac",
    "sglang_num_running_reqs": "running",
    "sglang_num_queue_reqs": "waiting",
    "sglang_token_usage": "kv_used_frac",
    "trtllm_num_requests_running": "running",
    "trtllm_num_requests_waiting": "waiting",
    "trtllm_kv_cache_utilization": "kv_used_frac",
    "llamacpp:requests_processing": "running",
    "llamacpp:requests_deferred": "waiting",
    "llamacpp:kv_cache_usage_ratio": "kv_used_frac",  # not in every version
    "tgi_batch_current_size": "running",
    "tgi_queue_size": "waiting",
}
_ADAPTERS = "vllm:lora_requests_info"
_TRTLLM_BLOCKS, _TRTLLM_BLOCK_TOKENS = "trtllm_kv_cache_max_blocks", "trtllm_kv_cache_tokens_per_block"
_LLAMACPP_HELD = "llamacpp:kv_cache_tokens"  # in versions that have the ratio too
_HISTOGRAMS = (  # of the seconds between tokens, or of their mean in each answer
    "vllm:inter_token_latency_seconds",
    "vllm:time_per_output_token_seconds",
    "sglang:inter_token_latency_seconds",
    "sglang_inter_token_latency_seconds",
    "trtllm_time_per_output_token_seconds",
    "tgi_request_mean_time_per_token_duration",
)
_TOKEN_COUNTERS = {
    **{f"{name}_sum": "token_s" for name in _HISTOGRAMS},
    **{f"{name}_count": "tokens" for name in _HISTOGRAMS},
    "llamacpp:tokens_predicted_seconds_total": "token_s",
    "llamacpp:tokens_predicted_total": "tokens",
}
_CPU = "node_cpu_seconds_total"
_DISK_BUSY = "node_disk_io_time_seconds_total"
_MEMORY_ALL, _MEMORY_FREE = "node_memory_MemTotal_bytes", "node_memory_MemAvailable_bytes"
_FLOWS = {
    "node_disk_read_bytes_total": "disk_read_bytes_per_s",
    "node_disk_written_bytes_total": "disk_write_bytes_per_s",
    "node_network_receive_bytes_total": "net_receive_bytes_per_s",
    "node_network_transmit_bytes_total": "net_transmit_bytes_per_s",
}
_LINK_SPEED = "node_network_speed_bytes"  # per second; -1 or 0 where the device does not say
_GPU_BUSY, _GPU_USED, _GPU_FREE = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE"
_GIB, _MIB_PER_GIB = float(1 << 30), 1024.0
_NOT_HARDWARE = re.compile(r"lo|veth.*|docker.*|br-.*|ifb.*|cni.*|cali.*|loop.*|ram.*|zram.*|dm-.*|md.*")

_MACHINE = (*_FLOWS, _CPU, _DISK_BUSY, _MEMORY_ALL, _MEMORY_FREE, _LINK_SPEED)
_SERVER = (
    *_GAUGES, *_TOKEN_COUNTERS, *KV_CACHES, _ADAPTERS, _TRTLLM_BLOCKS, _TRTLLM_BLOCK_TOKENS, _LLAMACPP_HELD
)  # fmt: skip
SAMPLE_FINDER = SampleFinder((*_SERVER, *_MACHINE, _GPU_BUSY, _GPU_USED, _GPU_FREE))


@dataclass(slots=True)
class Reading:
    """The values of one page. `counters` mean something only against an earlier reading."""

    read_s: float = 0.0
    gauges: dict[str, float] = field(default_factory=dict)
    counters: dict[tuple[str, str], float] = field(default_factory=dict)  # (quantity, device)
    adapters: tuple[str, ...] = ()  # with requests there, as vLLM reports them


class Reader:
    """Collects the samples of a page, some at a time, under the gateway's names."""

    def __init__(self) -> None:
        self._reading = Reading()
        self._values: dict[str, list[float]] = defaultdict(list)
        self._adapters_at = float("-inf")
        self._cores: set[str] = set()

    def feed(self, samples: Iterable[Sample]) -> None:
        """Take further samples of the page."""
        for sample in samples:
            if sample.name == _CPU:
                labels = sample.labels
                is_idle = labels.get("mode") in ("idle", "iowait")
                self._cores.add(labels.get("cpu", ""))
                self._count("cpu_idle" if is_idle else "cpu_busy", "", sample.value)
            elif sample.name in _FLOWS or sample.name in (_DISK_BUSY, _LINK_SPEED):
                self._take_device(sample)
            elif sample.name == _ADAPTERS:
                self._take_adapters(sample)
            elif sample.name in _TOKEN_COUNTERS:
                self._count(_TOKEN_COUNTERS[sample.name], "", sample.value)
            elif sample.name in KV_CACHES:
                self._values["kv_tokens"].append(kv_tokens(sample))
            else:
                self._values[_GAUGES.get(sample.name, sample.name)].append(sample.value)

    def reading(self, read_s: float) -> Reading:
        """The values of the page, as of `read_s`."""
        self._reading.read_s = read_s
        _put_gauges(self._reading.gauges, self._values)
        if self._cores:
            self._reading.gauges["cpu_cores"] = float(len(self._cores))
        return self._reading

    def _take_device(self, sample: Sample) -> None:
        device = sample.label("device")
        if _NOT_HARDWARE.fullmatch(device):
            return
        if sample.name == _LINK_SPEED:
            self._values[_LINK_SPEED].append(sample.value)
        else:
            self._count(_FLOWS.get(sample.name, "disk_busy"), device, sample.value)

    def _count(self, what: str, device: str, value: float) -> None:
        key = (what, device)
        self._reading.counters[key] = self._reading.counters.get(key, 0.0) + value

    def _take_adapters(self, sample: Sample) -> None:
        if sample.value >= self._adapters_at:  # its value is the time at which it was so
            self._adapters_at, self._reading.adapters = sample.value, _adapters(sample)


def rates(before: Reading, after: Reading) -> dict[str, float]:
    """Rates between two readings. A counter that fell was reset and began at 0."""
    elapsed_s = after.read_s - before.read_s
    if elapsed_s <= 0:
        return {}
    grown: dict[str, list[float]] = defaultdict(list)
    for key, value in after.counters.items():
        if key in before.counters:
            grown[key[0]].append(value - before.counters[key] if value >= before.counters[key] else value)
    found = {word: sum(grown[word]) / elapsed_s for word in _FLOWS.values() if word in grown}
    if "disk_busy" in grown:
        found["disk_busy_frac"] = min(1.0, max(grown["disk_busy"]) / elapsed_s)
    if sum(grown["tokens"]) > 0:
        found["token_s"] = sum(grown["token_s"]) / sum(grown["tokens"])
    cpu_s = sum(grown["cpu_busy"]) + sum(grown["cpu_idle"])
    if cpu_s > 0:
        found["cpu_busy_frac"] = sum(grown["cpu_busy"]) / cpu_s
    return found


def _put_gauges(gauges: dict[str, float], values: dict[str, list[float]]) -> None:
    for word in ("running", "waiting", "kv_tokens"):
        if values[word]:
            gauges[word] = sum(values[word])
    if values["kv_used_frac"]:
        gauges["kv_used_frac"] = sum(values["kv_used_frac"]) / len(values["kv_used_frac"])
    if values[_TRTLLM_BLOCKS] and values[_TRTLLM_BLOCK_TOKENS]:
        gauges["kv_tokens"] = values[_TRTLLM_BLOCKS][0] * values[_TRTLLM_BLOCK_TOKENS][0]
    if values[_LLAMACPP_HELD] and gauges.get("kv_used_frac", 0.0) > 0:
        gauges["kv_tokens"] = round(values[_LLAMACPP_HELD][0] / gauges["kv_used_frac"])
    if values[_MEMORY_ALL] and values[_MEMORY_FREE]:
        gauges["memory_gib"] = values[_MEMORY_ALL][0] / _GIB
        gauges["memory_used_frac"] = 1 - values[_MEMORY_FREE][0] / values[_MEMORY_ALL][0]
    if values[_LINK_SPEED] and max(values[_LINK_SPEED]) > 0:
        gauges["net_link_gib_per_s"] = max(values[_LINK_SPEED]) / _GIB
    if values[_GPU_BUSY]:
        gauges["gpus"] = float(len(values[_GPU_BUSY]))
        gauges["gpu_busy_frac"] = sum(values[_GPU_BUSY]) / len(values[_GPU_BUSY]) / 100
    used, free = sum(values[_GPU_USED]), sum(values[_GPU_FREE])
    if used + free > 0:
        gauges["gpu_memory_gib"] = (used + free) / _MIB_PER_GIB
        gauges["gpu_memory_used_frac"] = used / (used + free)


def _adapters(sample: Sample) -> tuple[str, ...]:
    text = sample.label("running_lora_adapters") + "," + sample.label("waiting_lora_adapters")
    return tuple(dict.fromkeys(name for part in text.split(",") if (name := part.strip())))
