"""A gateway that is itself stopped and goes on: its nodes are as good as before."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from support.backends.children import launched
from support.gateway_load import HELLO, Load, ask, bad, client, sixteen_slots
from support.served import config_of, served

TIMEOUT_S, STOPPED_S, STOPS = 5.0, 6.0, 2  # nothing else takes that long on a slow machine


def test_after_a_stop_all_nodes_are_ready_and_requests_succeed_at_once(tmp_path: Path) -> None:
    with launched(*(sixteen_slots(f"b{i}", seed=i) for i in range(3))) as backends:
        config = config_of(
            *backends,
            health={"period_s": 0.1, "timeout_s": TIMEOUT_S, "unhealthy_threshold": 1},
            timeouts={"default": {"first_byte_s": TIMEOUT_S, "idle_s": TIMEOUT_S, "connect_s": TIMEOUT_S}},
            policy="round-robin",
        )
        with served(tmp_path, config) as gateway:

            async def main() -> None:
                async with client() as session:
                    for _ in range(STOPS):  # at different moments of its checks
                        load = Load(session, gateway.url)
                        await load.send(40)
                        gateway.tell(signal.SIGSTOP)
                        load.tasks += [asyncio.create_task(ask(session, gateway.url)) for _ in range(5)]
                        await asyncio.sleep(STOPPED_S)
                        gateway.tell(signal.SIGCONT)
                        load.body = {**HELLO, "stream": True}
                        await load.send(40)
                        assert bad(await load.answers()) == []

            asyncio.run(main())
            nodes = gateway.admin("/admin/nodes").json()["nodes"]
            assert [node["health"] for node in nodes] == ["up"] * 3
            assert gateway.metric("trimtab_retries_total") == 0
            for word in ("down", "suspect", "ejected"):  # so none was on trial, and none warms up
                assert f": {word}" not in gateway.said()
