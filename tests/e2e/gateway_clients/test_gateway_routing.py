"""What decides where a request goes, as clients see it: routes, sessions, hints, tenants, limits, times."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import aiohttp
import pytest

from support.backends import BackendProcess, Options, launched
from support.served import KEY, Answer, Served, chat, config_of, key_entry, node_of, posts, served
from support.waiting import wait_until

TRUSTED, SMALL, TOKENS = "tt-may-do-much", "tt-two-at-a-time", "tt-few-tokens"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@dataclass(frozen=True)
class Stage:
    gateway: Served
    nodes: dict[str, BackendProcess]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    quick = {"output_s": 0.001}
    wanted = (
        Options(name="alpha-1", models="alpha", **quick),
        Options(name="alpha-2", models="alpha", **quick),
        Options(name="beta-1", models="beta", **quick),
        Options(name="gamma-1", models="gamma", **quick),
        Options(name="one-1", models="one", slots=1, output_s=0.01),
        Options(name="slow-1", models="slow", **quick),
        Options(name="hedged-1", models="hedged", **quick),
        Options(name="hedged-2", models="hedged", **quick),
        Options(name="known-1", models="known", base_s=0.02, prefill_s=0.0, output_s=0.004),
    )
    keys = [
        key_entry("tests", KEY),
        key_entry("trusted", TRUSTED, may_set_priority=True, may_name_tenant=True),
        key_entry("small", SMALL, limits={"concurrency": 2}),
        key_entry("tokens", TOKENS, limits={"tokens_per_minute": 60}),
    ]
    with launched(*wanted) as running:
        config = config_of(
            *running,
            keys=keys,
            nodes=[node_of(backend) for backend in running],
            policy={
                "default": "least-expected-wait",
                "models": {
                    "alpha": "bounded-hash",
                    "one": "least-connections+priority-ageing",
                    "hedged": "round-robin",
                },
            },
            routes={
                "same": {"targets": "alpha"},
                "canary": {"targets": [{"model": "alpha", "weight": 9}, {"model": "beta", "weight": 1}]},
                "gamma": {"fallback": "beta"},
            },
            relay_paths=[{"path": "/v1/tokenize", "methods": ["POST"]}],
            timeouts={"models": {"slow": {"first_byte_s": 2.5}}},
            retries={"max_per_request": 0},
            hedge={"enabled": True, "delay_s": 2.5},
            queue={"max_requests": 30, "max_wait_s": 30, "max_wait_no_ready_node_s": 0.3},
            health={"period_s": 0.2, "timeout_s": 5.0, "unhealthy_threshold": 2},
        )
        with served(tmp_path_factory.mktemp("routing"), config) as gateway:
            yield Stage(gateway, {backend.name: backend for backend in running})


def say(stage: Stage, model: str, *, key: str = KEY, **headers: str) -> Answer:
    return stage.gateway.call("/v1/chat/completions", chat(model), key=key, **headers)


def receipt(stage: Stage, answer: Answer) -> dict[str, object]:
    """Why it went where it went."""
    return stage.gateway.receipt(answer.headers["x-request-id"])


def test_an_alias_and_the_receipt_of_a_request(stage: Stage) -> None:
    answer = say(stage, "same")
    assert answer.json()["model"] == "alpha"
    told = receipt(stage, answer)
    assert (told["model"], told["tenant"], told["status"], told["state"]) == ("alpha", "tests", 200, "done")
    assert told["node"] == answer.headers["x-trimtab-node"]
    assert told["decision"]["candidates"][0]["node"] == told["node"]
    assert stage.gateway.admin("/admin/requests/none").status == 404
    assert stage.gateway.admin("/admin/requests/none", key=KEY).status == 401  # a client's key


def test_a_weighted_canary_gets_its_share(stage: Stage) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = Counter(pool.map(lambda _: say(stage, "canary").json()["model"], range(300)))
    assert sum(found.values()) == 300
    assert 8 <= found["beta"] <= 60  # 30 expected; beyond that fewer than one run in a million


def test_a_fallback_while_no_node_is_ready_and_a_hold_where_there_is_none(stage: Stage) -> None:
    assert say(stage, "gamma").headers["x-trimtab-node"] == "gamma-1"
    stage.nodes["gamma-1"].set_faults({"fault": "status", "status": 500, "path": "/health"})
    answer = wait_until(lambda: say(stage, "gamma"), lambda a: a.headers["x-trimtab-node"] == "beta-1")
    assert answer.json()["model"] == "beta"
    stage.nodes["gamma-1"].set_faults()
    wait_until(lambda: say(stage, "gamma"), lambda a: a.headers["x-trimtab-node"] == "gamma-1")
    stage.nodes["known-1"].set_faults({"fault": "status", "status": 500, "path": "/health"})
    refused = wait_until(lambda: say(stage, "known"), lambda a: a.status != 200)
    assert refused.status == 503
    assert refused.json()["error"]["type"]
    assert int(refused.headers["retry-after"]) >= 1
    stage.nodes["known-1"].set_faults()
    wait_until(lambda: say(stage, "known"), lambda a: a.status == 200)


def test_sessions_return_to_their_node(stage: Stage) -> None:
    homes = set()
    for k in range(12):
        found = {say(stage, "alpha", x_trimtab_session=f"s{k}").headers["x-trimtab-node"] for _ in range(3)}
        assert len(found) == 1
        homes |= found
    assert homes == {"alpha-1", "alpha-2"}
    assert say(stage, "alpha", x_trimtab_session="not a name").status == 400


def test_ids_of_requests_and_traces_are_kept(stage: Stage) -> None:
    answer = say(stage, "beta", x_request_id="my-own.id-1", traceparent=TRACE)
    assert answer.headers["x-request-id"] == "my-own.id-1"
    got = posts(stage.nodes["beta-1"])[-1]
    assert got["id"] == "my-own.id-1"
    assert "traceparent" in got["headers"]
    assert not [name for name in got["headers"] if name.startswith("x-trimtab-") or name == "authorization"]
    made = say(stage, "beta").headers["x-request-id"]
    assert posts(stage.nodes["beta-1"])[-1]["id"] == made


def test_tenants_and_priorities_only_for_keys_that_may(stage: Stage) -> None:
    hints = {"x_trimtab_tenant": "customer-7", "x_trimtab_priority": "3"}
    told = receipt(stage, say(stage, "beta", key=TRUSTED, **hints))
    assert (told["tenant"], told["priority"]) == ("customer-7", 3)
    told = receipt(stage, say(stage, "beta", **hints))
    assert (told["tenant"], told["priority"]) == ("tests", 0)


async def _order(stage: Stage, key: str, priorities: list[str]) -> list[str]:
    """In which order requests of these priorities end on a node with one place."""
    ended: list[str] = []
    headers = {"Authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(stage.gateway.url, headers=headers) as session:

        async def one(name: str, tokens: int) -> None:
            body = chat("one", max_tokens=tokens)
            hint = {"x-trimtab-priority": name}
            async with session.post("/v1/chat/completions", json=body, headers=hint) as response:
                assert response.status == 200
                await response.read()
            ended.append(name)

        async with _long(session):
            waiting = []
            for k, name in enumerate(priorities):
                await asyncio.to_thread(_queued, stage, k)
                waiting.append(asyncio.create_task(one(name, 1)))
            await asyncio.to_thread(_queued, stage, len(priorities))
        await asyncio.gather(*waiting)
    return ended


@contextlib.asynccontextmanager
async def _long(session: aiohttp.ClientSession) -> AsyncIterator[None]:
    """A request that takes the only place of its node until the block ends, however long that is."""
    body = chat("one", max_tokens=4000, stream=True, ignore_eos=True)
    async with session.post("/v1/chat/completions", json=body) as running:
        await running.content.readline()
        yield
        running.close()


def _queued(stage: Stage, length: int) -> None:
    """Wait until so many requests are in the queue of the busy node."""
    wait_until(lambda: stage.nodes["one-1"].stats()["running"], lambda n: n == 1)
    wait_until(lambda: stage.gateway.metric("trimtab_queue_length"), lambda n: n == length)


def test_priorities_order_the_queue(stage: Stage) -> None:
    assert asyncio.run(_order(stage, TRUSTED, ["0", "5", "2"])) == ["5", "2", "0"]
    assert asyncio.run(_order(stage, KEY, ["0", "5", "2"])) == ["0", "5", "2"]


async def test_a_deadline_that_passes_in_the_queue(stage: Stage) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    session = aiohttp.ClientSession(stage.gateway.url, headers=headers)
    async with session, _long(session):
        late = await asyncio.to_thread(say, stage, "one", x_trimtab_deadline_ms="50")
        assert (late.status, late.json()["error"]["code"]) == (504, "deadline")
    assert say(stage, "one", x_trimtab_deadline_ms="30000").status == 200
    assert say(stage, "one", x_trimtab_deadline_ms="soon").status == 400


async def test_a_tenants_concurrency_and_tokens(stage: Stage) -> None:
    headers = {"Authorization": f"Bearer {SMALL}"}
    async with aiohttp.ClientSession(stage.gateway.url, headers=headers) as session:
        async with _long(session):
            waiting = asyncio.create_task(asyncio.to_thread(say, stage, "one", key=SMALL))
            await asyncio.to_thread(_queued, stage, 1)
            third = await asyncio.to_thread(say, stage, "one", key=SMALL)
            assert (third.status, third.json()["error"]["code"]) == (429, "concurrency_limit")
            assert int(third.headers["retry-after"]) >= 1
        assert (await waiting).status == 200
    assert say(stage, "one", key=SMALL).status == 200
    body = chat("beta", max_tokens=50)
    answers = [stage.gateway.call("/v1/chat/completions", body, key=TOKENS) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 429, 429]
    assert answers[1].json()["error"]["code"] == "tokens_limit"


def test_a_models_own_time_out(stage: Stage) -> None:
    wait_until(lambda: say(stage, "slow").status == 200)  # the machine may stall for longer, too
    stage.nodes["slow-1"].set_faults({"fault": "slow_prefill", "seconds": 30.0})
    late = say(stage, "slow")
    assert late.status == 504
    assert receipt(stage, late)["attempts"][0]["lost_by"] == "first_byte_timeout"
    wait_until(lambda: stage.nodes["slow-1"].stats()["running"], lambda n: n == 0)  # it was told to stop


def test_a_hedge_beside_a_slow_node(stage: Stage) -> None:
    for _ in range(40):  # hedges are at most a twentieth of all requests
        assert say(stage, "beta").status == 200
    stage.nodes["hedged-1"].set_faults({"fault": "slow_prefill", "seconds": 60.0})
    answers = [say(stage, "hedged") for _ in range(2)]  # in turns: one of them began at the slow one
    assert {answer.headers["x-trimtab-node"] for answer in answers} == {"hedged-2"}
    assert stage.gateway.metric("trimtab_hedges_total") >= 1
    wait_until(lambda: stage.nodes["hedged-1"].stats()["running"], lambda n: n == 0)  # the loser was aborted


def test_paths_are_an_allow_list(stage: Stage) -> None:
    for path in ("/v1/load_lora_adapter", "/flush_cache", "/sleep", "/_demo/stats", "/metrics"):
        assert stage.gateway.call(path, {"model": "beta"}).status == 404
    relayed = stage.gateway.call("/v1/tokenize", {"model": "beta"})
    assert relayed.headers["x-trimtab-node"] == "beta-1"  # which answers 404 itself
    assert stage.gateway.call("/v1/tokenize", method="GET").status == 405


def test_what_requests_take_is_learned(stage: Stage) -> None:
    """The backend takes .02 s + .004 s a token; the prior says .1 s + .02 s."""

    def error_sum(count: int) -> float:
        before = stage.gateway.metric("trimtab_prediction_error_ratio_sum", **{"class": "known/chat"})
        for k in range(count):
            body = chat("known", max_tokens=5 + 10 * (k % 4), ignore_eos=True)
            assert stage.gateway.call("/v1/chat/completions", body).status == 200
        after = stage.gateway.metric("trimtab_prediction_error_ratio_sum", **{"class": "known/chat"})
        return (after - before) / count

    first, _ = error_sum(4), error_sum(16)
    wait_until(lambda: error_sum(8), lambda later: later < first)  # again where the machine stalled meanwhile
