"""A gateway whose policy plans parts and batches: its nodes serve them, and clients notice nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp

from support.gateway.parts_backend import PartsBackend, answer_to
from support.gateway.plane import one_of
from support.gateway.served_gateway import serving_here
from support.waiting import until
from trimtab.gateway.observe.exposition import exposition

EMBEDDINGS = "/v1/embeddings"
CONFIG = """
insecure_no_auth: true
policy: 'split-merge(plan_period_s=0.2,batch_from_load_frac=0)'
models: {{m: {{split: true}}, n: {{batch: true}}}}
nodes:
  - {{name: a, url: 'http://127.0.0.1:{}', models: [m, n], type: same, capacity: 4}}
  - {{name: b, url: 'http://127.0.0.1:{}', models: [m, n], type: same, capacity: 4}}
"""


async def test_plans_of_a_policy_split_and_batch_requests() -> None:
    backends = [PartsBackend(), PartsBackend()]
    servers = [await asyncio.start_server(one_of(one), "127.0.0.1", 0) for one in backends]
    ports = [server.sockets[0].getsockname()[1] for server in servers]
    here = serving_here(CONFIG.format(*ports))
    async with here as (gateway, url), aiohttp.ClientSession() as session:

        async def ask(said: dict[str, Any], header: str) -> str | None:
            async with session.post(url + EMBEDDINGS, json=said) as answer:
                assert await answer.json(content_type=None) == answer_to(EMBEDDINGS, said)
                return answer.headers.get(header)

        texts = {"model": "m", "input": [f"text {k}" for k in range(8)]}
        (pool,) = gateway.dispatcher.pools.values()
        await ask(texts, "x-trimtab-parts")
        await ask({"model": "n", "input": "a"}, "x-trimtab-batch")
        await until(lambda: len(pool.plan.split_max))
        parts = [await ask(texts, "x-trimtab-parts") for _ in range(3)]
        assert parts == ["2"] * 3, "no more than nodes"
        halves = [[one for one in backend.asked if len(one["input"]) == 4] for backend in backends]
        assert list(map(len, halves)) == [3, 3], "each node has one part of each"

        async def batched() -> bool:
            said = [{"model": "n", "input": f"text {k}"} for k in range(8)]
            found = await asyncio.gather(*(ask(one, "x-trimtab-batch") for one in said))
            return any(found)

        await until(batched, "plans batch once they know requests", poll_s=0.1)
        page = exposition(gateway.metrics.store()).decode()
        assert 'trimtab_requests_total{code_class="2xx",kind="embedding",model="m",outcome="done"} 4' in page
    for server in servers:
        server.close()
