"""Every example of the guides to the gateway runs, and shows its effect.

Nodes are put on backends of the test.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path

import pytest

import trimtab as tt
from support.gateway.guide_gateway import PATIENT_S, Backend, Served, served
from support.guide_examples import (
    OF_GATEWAYS,
    Check,
    found,
    missing_tests,
    of_pages,
    run_here,
)
from support.waiting import until
from trimtab.gateway.config import config_warnings, digest_of, parse_config
from trimtab.gateway.nodes.planned_outages import Maintenance

KEY = "tt-key-of-this-test-0123456789"


def on_gateway(
    *backends: Callable[[], Backend],
) -> Callable[[Callable[[Served, list[Backend]], Awaitable[None]]], Check]:
    """A check of an example of gateway.yaml on so many backends."""

    def of(check: Callable[[Served, list[Backend]], Awaitable[None]]) -> Check:
        def run_it(example: str, folder: Path) -> None:
            async def main() -> None:
                made = [backend() for backend in backends]
                async with served(example, *made, folder=folder) as gateway:
                    await check(gateway, made)

            asyncio.run(main())

        return run_it

    return of


def chat(*models: str) -> Callable[[], Backend]:
    return lambda: Backend(*(models or ("m",)))


def without_key(example: str, folder: Path) -> None:
    """Clients need the key; the second node takes 16 at a time, what the first takes is found out."""
    own = re.sub(r"sha256: \w+", f"sha256: {digest_of(KEY.encode())}", example)

    async def check(gateway: Served, _: list[Backend]) -> None:
        assert [(await gateway.chat("m", key))[0] for key in ("", KEY)] == [401, 200]
        found_out, declared = (gateway.gateway.fleet.known(name).max_requests for name in ("gpu-1", "gpu-2"))
        assert (declared, found_out > 0) == (16, True)

    on_gateway(chat(), chat())(check)(own, folder)


@on_gateway(chat("small-chat", "large-chat"))
async def policies_by_model(gateway: Served, _: list[Backend]) -> None:
    policies = []
    for model in ("small-chat", "large-chat"):
        _, headers, _ = await gateway.chat(model)
        record = gateway.gateway.decision_records.find(headers["x-request-id"])
        policies.append(record["decision"]["policy"] if record else None)
    assert policies == ["late-binding", "least-expected-completion"]


@on_gateway(chat("small-chat"), chat("large-chat"))
async def routes(gateway: Served, backends: list[Backend]) -> None:
    """An alias, 5 of 100 to the canary (no one of 150: once in 2,000 runs), and a fallback."""
    assert (await gateway.chat("chat"))[2]["model"] == "small-chat"
    served_by = [(await gateway.chat("chat-canary"))[2]["model"] for _ in range(150)]
    assert 1 <= served_by.count("large-chat") <= 30
    gateway.gateway.fleet.drain("gpu-2")
    assert (await gateway.chat("large-chat"))[2]["model"] == "small-chat"


def batches(example: str, folder: Path) -> None:
    """Eight clients on one slot: what waits goes as one."""

    async def check(gateway: Served, backends: list[Backend]) -> None:
        gateway.gateway.fleet.set_capacity(gateway.gateway.fleet.known("gpu-1"), 1)

        async def batched() -> bool:
            answers = await asyncio.gather(*(gateway.embed("embed") for _ in range(8)))
            assert {status for status, _, _ in answers} == {200}
            return max(int(headers.get("x-trimtab-batch", 1)) for _, headers, _ in answers) >= 4

        await until(batched, "what waits is batched", timeout_s=PATIENT_S)
        assert max(count for _, count in backends[0].calls) >= 4

    sooner = example.replace("split-merge ", "split-merge(plan_period_s=1) ", 1)
    on_gateway(lambda: Backend("embed", service_s=0.1))(check)(sooner, folder)


@on_gateway(chat("chat"))
async def loads(gateway: Served, backends: list[Backend]) -> None:
    """A request for the adapter wakes the model, then loads the adapter by the call of the example."""
    status, _, answer = await gateway.chat("legal")
    assert (status, answer["model"]) == (200, "legal")
    assert ("load", {"name": "legal", "base": "chat"}) in backends[0].calls
    assert not backends[0].is_asleep


def maintenance(example: str, folder: Path) -> None:
    """gpu-1 gets nothing from 2 to 4 on that day, gpu-2 every Sunday from 2 to 3."""

    async def check(gateway: Served, _: list[Backend]) -> None:
        dispatcher, fleet = gateway.gateway.dispatcher, gateway.gateway.fleet
        await gateway.gateway.maintenance.close()  # which goes by the clock
        for at, nodes in (
            ("2026-12-24T03:00:00Z", {"gpu-2"}),
            ("2026-12-24T05:00:00Z", {"gpu-1", "gpu-2"}),
            ("2026-12-27T02:30:00Z", {"gpu-1"}),
        ):
            utc_s = datetime.fromisoformat(at).timestamp()
            windows = dispatcher.rules.declared.windows
            Maintenance(fleet, windows, dispatcher.write_outages, lambda utc_s=utc_s: utc_s).look()
            answers = [await gateway.chat("m") for _ in range(8)]
            assert {headers["x-trimtab-node"] for _, headers, _ in answers} <= nodes

    on_gateway(chat(), chat())(check)(example, folder)


def replica(example: str, folder: Path) -> None:
    config = parse_config(example, "gateway.yaml")
    warnings = config_warnings(config)
    assert any("TRIMTAB_STORE_URL is not set" in warning for warning in warnings)
    assert not any("no nodes" in warning for warning in warnings)
    assert (config.listen_address.port, config.drain_s, config.nodes[0].spec().max_requests) == (8080, 60, 32)


@on_gateway(chat(), chat())
async def shadow(gateway: Served, _: list[Backend]) -> None:
    for _ in range(10):
        assert (await gateway.chat("m"))[0] == 200
    assert gateway.gateway.dispatcher.rules.default.spec == "least-expected-wait"
    assert gateway.gateway.dispatcher.log.shadow.counts[0] == 10


def recording(example: str, folder: Path) -> None:
    async def check(gateway: Served, _: list[Backend]) -> None:
        for _ in range(3):
            await gateway.chat("m")

    on_gateway(chat())(check)(example, folder)
    (file,) = (folder / "recordings").iterdir()
    assert tt.read_trace(file).table.height == 3


REDACTED = "record-and-replay: record: {folder: recordings, redact: coarse, keep_days: 30"
CHECKS: dict[str, Check | str] = {
    "deploy: # /etc/trimtab/gateway.yaml": replica,
    "record-and-replay: record: {folder: recordings}": recording,
    REDACTED: "gateway/record/test_redaction.py",
    "serve: - name: clinic": "gateway/observe/test_private_counts.py",
    "serve: from openai import OpenAI": "e2e/gateway_clients/test_openai_client.py",
    "serve: keys:": without_key,
    "serve: maintenance:": maintenance,
    "serve: nodes:": loads,
    "serve: policy:": policies_by_model,
    "serve: policy: split-merge": batches,
    "serve: routes:": routes,
    "shadow-and-switch: policy: least-expected-wait": shadow,
}


def test_every_example_has_a_check() -> None:
    assert CHECKS.keys() == of_pages(OF_GATEWAYS)
    assert not missing_tests(CHECKS)


@run_here(CHECKS)
def test_an_example_shows_its_effect(
    name: str, check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check(found()[name], tmp_path)
