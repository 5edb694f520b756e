"""Polling: pages of servers and exporters, real ones where they are installed."""

import asyncio
import shutil
import time
from pathlib import Path

import pytest

from support.gateway.node_world import Backend, VirtualLoop, fleet_of, spec
from support.ports import reserved_port
from support.waiting import until
from trimtab.gateway.nodes.fleet import Fleet
from trimtab.gateway.nodes.metric_mappings import SAMPLE_FINDER, Reader, Reading, rates
from trimtab.gateway.nodes.polling import Poller, PollingOptions
from trimtab.traces.prometheus_text import SampleFinder, pieces

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.7
vllm:num_requests_running_created{engine="0"} 99
vllm:cache_config_info{block_size="16",num_gpu_blocks="2588",engine="0"} 1.0
vllm:cache_config_info{block_size="16",num_gpu_blocks="None",engine="1"} 1.0
vllm:lora_requests_info{max_lora="4",running_lora_adapters="old",waiting_lora_adapters=""} 100.0
vllm:lora_requests_info{max_lora="4",running_lora_adapters="law,verse",waiting_lora_adapters="law"} 200.0
"""
SGLANG = """\
sglang:num_running_reqs{model_name="m"} 5.0
sglang:num_queue_reqs{model_name="m"} 6.0
sglang:token_usage{model_name="m"} 0.28
"""
TRTLLM = """\
# HELP trtllm_request_success_total Count of successfully processed requests.
# TYPE trtllm_request_success_total counter
trtllm_request_success_total{engine_type="trtllm",finished_reason="stop",model_name="m"} 7.0
# HELP trtllm_time_per_output_token_seconds Histogram of time per output token in seconds.
# TYPE trtllm_time_per_output_token_seconds histogram
trtllm_time_per_output_token_seconds_bucket{engine_type="trtllm",le="0.025",model_name="m"} 5.0
trtllm_time_per_output_token_seconds_bucket{engine_type="trtllm",le="+Inf",model_name="m"} 7.0
trtllm_time_per_output_token_seconds_count{engine_type="trtllm",model_name="m"} 7.0
trtllm_time_per_output_token_seconds_sum{engine_type="trtllm",model_name="m"} 0.14
# HELP trtllm_kv_cache_utilization KV cache utilization
# TYPE trtllm_kv_cache_utilization gauge
trtllm_kv_cache_utilization{engine_type="trtllm",model_name="m"} 0.375
trtllm_num_requests_running{engine_type="trtllm",model_name="m"} 6.0
trtllm_num_requests_waiting{engine_type="trtllm",model_name="m"} 1.0
trtllm_kv_cache_max_blocks{engine_type="trtllm",model_name="m"} 1024.0
trtllm_kv_cache_used_blocks{engine_type="trtllm",model_name="m"} 384.0
trtllm_kv_cache_tokens_per_block{engine_type="trtllm",model_name="m"} 32.0
"""
LLAMA_CPP = """\
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 33065
# HELP llamacpp:tokens_predicted_total Number of generation tokens processed.
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total 4000
# HELP llamacpp:tokens_predicted_seconds_total Predict process time
# TYPE llamacpp:tokens_predicted_seconds_total counter
llamacpp:tokens_predicted_seconds_total 120.5
# HELP llamacpp:requests_processing Number of requests processing.
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 3
# HELP llamacpp:requests_deferred Number of requests deferred.
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 5
"""
LLAMA_CPP_KV = """\
# HELP llamacpp:kv_cache_usage_ratio KV-cache usage. 1 means 100 percent usage.
# TYPE llamacpp:kv_cache_usage_ratio gauge
llamacpp:kv_cache_usage_ratio 0.25
# HELP llamacpp:kv_cache_tokens KV-cache tokens.
# TYPE llamacpp:kv_cache_tokens gauge
llamacpp:kv_cache_tokens 2048
"""
TGI = """\
tgi_batch_current_size 4
tgi_queue_size 7
tgi_batch_current_max_tokens 4096
"""
DCGM = """\
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a",Hostname="h"} 80
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-b",Hostname="h"} 40
DCGM_FI_DEV_FB_USED{gpu="0"} 30000
DCGM_FI_DEV_FB_FREE{gpu="0"} 10000
DCGM_FI_DEV_FB_USED{gpu="1"} 10000
DCGM_FI_DEV_FB_FREE{gpu="1"} 30000
"""
MACHINE = """\
node_cpu_seconds_total{{cpu="0",mode="idle"}} {idle}
node_cpu_seconds_total{{cpu="0",mode="user"}} {user}
node_memory_MemTotal_bytes 1.6e+10
node_memory_MemAvailable_bytes 4e+09
node_disk_io_time_seconds_total{{device="sda"}} {busy}
node_disk_io_time_seconds_total{{device="dm-0"}} 5000
node_disk_read_bytes_total{{device="sda"}} {read}
node_network_receive_bytes_total{{device="eth0"}} {received}
node_network_receive_bytes_total{{device="lo"}} 77777
node_network_speed_bytes{{device="eth0"}} 1.34217728e+08
node_network_speed_bytes{{device="eth1"}} -125000
node_network_speed_bytes{{device="docker0"}} 1e+12
"""


def reading(page: str, read_s: float = 0.0) -> Reading:
    reader = Reader()
    reader.feed(SAMPLE_FINDER.samples(page.encode()))
    return reader.reading(read_s)


def test_vllms_names() -> None:
    found = reading(VLLM)
    assert found.gauges == pytest.approx(
        {"running": 7.0, "waiting": 2.0, "kv_used_frac": 0.6, "kv_tokens": 2588 * 16}
    )
    assert found.adapters == ("law", "verse")


def test_sglangs_names_and_those_of_gpus() -> None:
    assert reading(SGLANG).gauges == {"running": 5.0, "waiting": 6.0, "kv_used_frac": 0.28}
    found = reading(DCGM).gauges
    assert found == pytest.approx(
        {"gpus": 2.0, "gpu_busy_frac": 0.6, "gpu_memory_used_frac": 0.5, "gpu_memory_gib": 80000 / 1024}
    )


def test_names_of_llama_cpp_and_tgi() -> None:
    assert reading(LLAMA_CPP).gauges == {"running": 3.0, "waiting": 5.0}
    older = {"running": 3.0, "waiting": 5.0, "kv_used_frac": 0.25, "kv_tokens": 8192}
    assert reading(LLAMA_CPP + LLAMA_CPP_KV).gauges == older
    assert reading(TGI).gauges == {"running": 4.0, "waiting": 7.0}


def test_names_of_tensorrt_llm() -> None:
    found = reading(TRTLLM).gauges
    assert found == {"running": 6.0, "waiting": 1.0, "kv_used_frac": 0.375, "kv_tokens": 1024 * 32}


@pytest.mark.parametrize(
    ("seconds", "tokens"),
    [
        ("vllm:inter_token_latency_seconds_sum", "vllm:inter_token_latency_seconds_count"),
        ("vllm:time_per_output_token_seconds_sum", "vllm:time_per_output_token_seconds_count"),
        ("sglang:inter_token_latency_seconds_sum", "sglang:inter_token_latency_seconds_count"),
        ("sglang_inter_token_latency_seconds_sum", "sglang_inter_token_latency_seconds_count"),
        ("trtllm_time_per_output_token_seconds_sum", "trtllm_time_per_output_token_seconds_count"),
        (
            "tgi_request_mean_time_per_token_duration_sum",
            "tgi_request_mean_time_per_token_duration_count",
        ),
        ("llamacpp:tokens_predicted_seconds_total", "llamacpp:tokens_predicted_total"),
    ],
)
def test_seconds_between_tokens_are_those_since_the_reading_before(seconds: str, tokens: str) -> None:
    def page(token_s: float, count: int, read_s: float) -> Reading:
        labelled = f'{seconds}{{model_name="m"}} {token_s}\n{tokens}{{model_name="m"}} {count}\n'
        return reading(labelled, read_s)

    before, after = page(10.0, 100, 1.0), page(16.0, 300, 3.0)
    assert rates(before, after) == pytest.approx({"token_s": 0.03})
    assert rates(after, page(16.0, 300, 5.0)) == {}, "no tokens since"
    assert "token_s" not in after.gauges


def test_rates_of_a_machine() -> None:
    before = reading(MACHINE.format(idle=100, user=50, busy=10, read=1000, received=9_000_000), 10.0)
    after = reading(MACHINE.format(idle=101, user=53, busy=11, read=5000, received=200), 14.0)
    assert after.gauges == pytest.approx(
        {"memory_used_frac": 0.75, "memory_gib": 1.6e10 / 2**30, "cpu_cores": 1, "net_link_gib_per_s": 0.125}
    )
    assert rates(before, after) == pytest.approx(
        {
            "cpu_busy_frac": 0.75,
            "disk_busy_frac": 0.25,
            "disk_read_bytes_per_s": 1000.0,
            "net_receive_bytes_per_s": 50.0,  # the counter began anew
        }
    )
    assert rates(after, before) == {}


def test_labels_with_escapes_and_lines_that_are_none() -> None:
    page = (
        b'x{a="q\\"}{\\\\",b="l\\n2"} 1.5 1700000000\n'
        b'x 2\n x 3\nxy 4\nx{a=} 5\n#x 6\nx NaN\nx +Inf\nx{unfinished="y\nx abc\n'
    )
    samples = list(SampleFinder(["x"]).samples(page))
    assert samples[0].labels == {"a": 'q"}{\\', "b": "l\n2"}
    assert [sample.value for sample in samples] == [1.5, 2.0, 5.0, float("inf")]


def test_pieces_are_whole_lines_and_lose_nothing() -> None:
    page = b"".join(b"line %d\n" % i for i in range(100)) + b"last"
    found = list(pieces(page, 50))
    assert b"".join(found) == page
    assert len(found) > 10
    assert all(piece.endswith(b"\n") for piece in found[:-1])


async def test_a_page_is_fetched_once_for_all_nodes_with_the_key_only_where_it_belongs() -> None:
    async with Backend() as backend, Backend() as machine:
        backend.answers["/metrics"] = (200, VLLM)
        machine.answers["/metrics"] = (200, DCGM)
        fleet = Fleet(asyncio.get_running_loop(), environment={"KEY": "abc"})
        for name in ("a", "b", "c"):
            fleet.add(
                spec(
                    name,
                    url=backend.url,
                    api_key_env="KEY",
                    metrics_url="/metrics",
                    exporter_url=machine.url + "/metrics",
                    adapters=("law", "prose"),
                )
            )
        poller = Poller(fleet)
        await poller.poll()
        assert [node.reported["gpu_busy_frac"] for node in fleet.nodes] == [0.6] * 3
        assert fleet.nodes[0].reported["running"] == 7.0
        assert fleet.state(fleet.nodes[0]).held_adapters == {"law"}, "of those that it may serve"
        assert [seen[2] for seen in machine.seen] == [""]
        assert {seen[2] for seen in backend.seen} == {"Bearer abc"}
        await poller.close()


async def test_old_reports_are_taken_away_and_marked() -> None:
    async with Backend() as backend:
        backend.answers["/metrics"] = (200, SGLANG)
        fleet = fleet_of(1, url=backend.url, metrics_url="/metrics")
        node = fleet.nodes[0]
        poller = Poller(fleet, PollingOptions(period_s=0.02, stale_after_s=0.2))
        before_s = time.time()
        poller.start()
        await until(lambda: node.reported.get("backend_stale") == 0.0)
        assert node.reported["waiting"] == 6.0
        assert before_s <= node.reported["backend_read_unix_s"] <= time.time()
        backend.answers["/metrics"] = (500, "")
        await until(lambda: node.reported.get("backend_stale") == 1.0)
        assert "waiting" not in node.reported
        assert fleet.problems == {"backend report of n0": "its page answers 500"}
        backend.answers["/metrics"] = (200, SGLANG)
        await until(lambda: node.reported.get("waiting") == 6.0)
        assert fleet.problems == {}
        await poller.close()


async def test_a_page_that_is_garbage_does_no_harm() -> None:
    async with Backend() as backend:
        backend.answers["/metrics"] = (200, "\x00\xff{{{" * 1000 + "\nvllm:num_requests_running{ 3\n")
        fleet = fleet_of(1, url=backend.url, metrics_url="/metrics", exporter_url="nonsense")
        poller = Poller(fleet)
        await poller.poll()
        assert "running" not in fleet.nodes[0].reported
        assert "machine page of n0" in fleet.problems
        await poller.close()


@pytest.mark.event_loop(factory=VirtualLoop)
async def test_nodes_that_name_no_pages_are_not_polled() -> None:
    fleet = fleet_of(3)
    poller = Poller(fleet)
    await poller.poll()
    await poller.close()


@pytest.mark.skipif(
    shutil.which("prometheus-node-exporter") is None,
    reason="Debian's prometheus-node-exporter is not installed",
)
def test_debians_node_exporter(tmp_path: Path) -> None:
    async def main(port: int) -> None:
        process = await asyncio.create_subprocess_exec(
            "prometheus-node-exporter",
            f"--web.listen-address=127.0.0.1:{port}",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            cwd=tmp_path,
        )
        fleet = fleet_of(1, exporter_url=f"http://127.0.0.1:{port}/metrics")
        poller = Poller(fleet, PollingOptions(period_s=0.3, timeout_s=30))
        poller.start()
        reported = fleet.nodes[0].reported
        try:
            await until(lambda: "cpu_busy_frac" in reported)
            assert 0 <= reported["cpu_busy_frac"] <= 1
            assert 0 < reported["memory_used_frac"] < 1
            assert reported["machine_stale"] == 0.0
            for word, value in reported.items():
                assert not word.endswith("_per_s") or value >= 0
        finally:
            await poller.close()
            fleet.close()
            process.terminate()
            await process.wait()

    with reserved_port() as port:
        asyncio.run(main(port))
