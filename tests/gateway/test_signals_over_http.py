"""Exporters' pages, a gateway and requests over HTTP: what a node reports decides where requests go."""

from __future__ import annotations

from collections import Counter

import aiohttp
import pytest

from support.gateway.node_world import Backend
from support.gateway.served_gateway import serving_here
from support.waiting import until
from trimtab.gateway.app.assembly import GatewayCore
from trimtab.gateway.decide.registry import SignalFigures
from trimtab.gateway.observe.exposition import exposition
from trimtab.gateway.observe.status import node_figures

ANSWER = '{"id": "x", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}'
CHAT = "/v1/chat/completions"
CONFIG = """
insecure_no_auth: true
policy: load-aware
polling: {{period_s: 0.1, timeout_s: 5}}
health: {{period_s: 0.1, timeout_s: 5}}
nodes:
  - {{name: calm, url: '{calm}', models: [m], type: same, zone: a, exporter_url: '{calm}/machine',
     gpu_exporter_url: '{calm}/gpu', metrics_url: /metrics, usd_per_hour: 2}}
  - {{name: busy, url: '{busy}', models: [m], type: same, zone: b, exporter_url: '{busy}/machine',
     gpu_exporter_url: '{busy}/gpu', metrics_url: /metrics, usd_per_hour: 1}}
models: {{m: {{demand: {{ram_gib: 1}}}}}}
"""


def pages(frac: float) -> dict[str, tuple[int, str]]:
    """What the exporters of a machine say with this share of it in use."""
    total = 64 << 30
    machine = f"node_memory_MemTotal_bytes {total}\nnode_memory_MemAvailable_bytes {(1 - frac) * total}\n"
    gpu = f"DCGM_FI_DEV_GPU_UTIL {frac * 100}\nDCGM_FI_DEV_FB_USED {frac * 81920}\n"
    return {
        "/machine": (200, machine),
        "/gpu": (200, f"{gpu}DCGM_FI_DEV_FB_FREE {(1 - frac) * 81920}\n"),
        "/metrics": (200, "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"),
    }


async def ask(url: str, times: int) -> None:
    async with aiohttp.ClientSession() as session:
        for _ in range(times):
            async with session.post(f"{url}{CHAT}", json={"model": "m", "messages": []}) as answer:
                assert answer.status == 200, await answer.text()


def served(backends: dict[str, Backend]) -> Counter[str]:
    """Requests that each has got since the last call."""
    found = Counter({name: sum(seen[0] == CHAT for seen in one.seen) for name, one in backends.items()})
    for one in backends.values():
        one.seen.clear()
    return found


async def test_the_node_that_others_keep_busy_gets_next_to_nothing() -> None:
    async with Backend() as calm, Backend() as busy:
        for backend, frac in ((calm, 0.01), (busy, 0.99)):
            backend.answers |= {CHAT: (200, ANSWER), **pages(frac)}
            backend.headers["Content-Type"] = "application/json"
        backends = {"calm": calm, "busy": busy}
        async with serving_here(CONFIG.format(calm=calm.url, busy=busy.url)) as (gateway, url):
            await until(lambda: figures(gateway)["busy"]["resources"].get("gpu_milli"))
            served(backends)
            await ask(url, 40)
            assert served(backends) == {"calm": 40, "busy": 0}
            shown(gateway)
            calm.answers |= pages(0.99)
            busy.answers |= pages(0.01)
            await until(lambda: figures(gateway)["busy"]["resources"]["gpu_milli"]["used"] < 100)

            async def is_seen() -> bool:
                served(backends)
                await ask(url, 1)
                return served(backends)["busy"] == 1

            await until(is_seen)  # it is written to the state
            await ask(url, 40)
            assert served(backends) == {"calm": 0, "busy": 40}


def figures(gateway: GatewayCore) -> dict[str, SignalFigures]:
    return gateway.dispatcher.registry.signal_figures()


def shown(gateway: GatewayCore) -> None:
    """Status and metrics show it."""
    store, nodes = gateway.metrics.store(), gateway.fleet.present()
    calm, busy = (
        node["signals"] for node in node_figures(store, nodes, gateway.loop.time(), figures(gateway))
    )
    assert calm is not None
    assert busy is not None
    assert (calm["zone"], busy["zone"]) == ("a", "b")
    assert busy["resources"]["gpu_gib"] == pytest.approx({"capacity": 80.0, "used": 79.2}, rel=1e-3)
    assert set(busy["report_age_s"]) == {"backend", "machine", "gpu"}
    assert all(0.0 <= age_s < 60.0 for age_s in busy["report_age_s"].values())
    assert 0.0 < calm["round_trip_s"] < 60.0  # type: ignore[operator]
    text = exposition(store).decode()
    assert 'trimtab_node_resource_capacity{node="busy",resource="gpu_milli"} 1000' in text
    assert 'trimtab_node_usd_per_hour{node="calm"} 2' in text
    assert 'trimtab_class_demand{class="m/chat",resource="ram_gib"} 1' in text
    assert 'trimtab_node_report_age_seconds{node="calm",source="machine"}' in text
