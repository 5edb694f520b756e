"""Many requests at a time to a gateway that is served: at a steady rate, or as traffic that was drawn."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import numpy as np

from support.backends import BackendProcess, Options
from support.served import KEY, WAIT_S, config_of
from support.waiting import until

BEARER = {"Authorization": f"Bearer {KEY}"}
HELLO = {"model": "demo-chat", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
SPEEDS, SLOTS = (1.0, 2.0, 3.0), 2
ALIKE = (2.0, 2.0, 2.0)  # as fast in sum
BASE_S, TOKEN_S, MEAN_TOKENS = 0.03, 0.015, 16


@dataclass(slots=True)
class Reply:
    """What a client got. `status` 0 = no head came; `error` = why its answer is not whole."""

    status: int = 0
    error: str = ""
    node: str = ""
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        return self.status == 200 and not self.error and b'"error"' not in self.body

    def json(self) -> Any:
        return json.loads(self.body)


@contextlib.asynccontextmanager
async def client(*, keep: bool = True) -> AsyncIterator[aiohttp.ClientSession]:
    """A session without limits. `keep` = connections are used again."""
    connector = aiohttp.TCPConnector(limit=0, force_close=not keep)
    timeout = aiohttp.ClientTimeout(total=WAIT_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        yield session


async def ask(
    session: aiohttp.ClientSession,
    url: str,
    body: object = HELLO,
    *,
    path: str = "/v1/chat/completions",
    headers: Mapping[str, str] = BEARER,
    method: str = "POST",
    refused_again_s: float = 0.0,
) -> Reply:
    """One request. A refused connection is tried again for so long: nothing was sent then."""
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **headers}
    end_s = time.monotonic() + refused_again_s
    while True:
        reply = Reply()
        try:
            async with session.request(method, url + path, data=data, headers=headers) as response:
                reply.status = response.status
                reply.headers = response.headers.copy()
                reply.node = response.headers.get("x-trimtab-node", "")
                reply.body = await response.read()
        except aiohttp.ClientConnectorError as error:
            if time.monotonic() < end_s:
                await asyncio.sleep(0.05)
                continue
            reply.error = repr(error)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            reply.error = repr(error)
        return reply


@dataclass
class Load:
    """Requests at a steady rate, whatever becomes of those before."""

    session: aiohttp.ClientSession
    url: str
    rate_per_s: float = 200.0
    body: object = field(default_factory=lambda: HELLO)
    refused_again_s: float = 0.0
    tasks: list[asyncio.Task[Reply]] = field(default_factory=list)

    async def send(self, count: int) -> None:
        """Send so many from now on."""
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        for n in range(count):
            await asyncio.sleep(max(0.0, begun_s + n / self.rate_per_s - loop.time()))
            again_s = self.refused_again_s
            work = ask(self.session, self.url, self.body, refused_again_s=again_s)
            self.tasks.append(loop.create_task(work))

    async def answers(self) -> list[Reply]:
        """All answers, when they are there."""
        return await asyncio.gather(*self.tasks)


def bad(answers: Sequence[Reply]) -> list[str]:
    """Those that are not good, in words."""
    return [f"{a.status} {a.error} {a.body[-200:]!r}" for a in answers if not a.is_good]


async def comes(check: Callable[[], Awaitable[bool]], what: str, timeout_s: float = WAIT_S) -> None:
    """Wait for `await check()` to be true."""
    await until(check, what, timeout_s=timeout_s, poll_s=0.02)


@dataclass(frozen=True)
class Traffic:
    """When requests come, and how many tokens they ask for."""

    at_s: np.ndarray
    tokens: np.ndarray


def poisson(n: int, load: float, seed: int) -> Traffic:
    """Traffic for the backends of `of_speeds`."""
    rng = np.random.default_rng(seed)
    rate_per_s = load * SLOTS * sum(SPEEDS) / (BASE_S + TOKEN_S * MEAN_TOKENS)
    at_s = np.cumsum(rng.exponential(1.0 / rate_per_s, n))
    return Traffic(at_s, 1 + rng.poisson(rng.exponential(MEAN_TOKENS - 1, n)))


def bounded(n: int, load: float, seed: int) -> Traffic:
    """Such traffic with sizes between 1 and twice the mean: its p99 does not hang on the luck of a few."""
    sizes = np.random.default_rng(seed).integers(1, 2 * MEAN_TOKENS, n)
    return Traffic(poisson(n, load, seed).at_s, sizes)


def sixteen_slots(name: str, **fields: Any) -> Options:
    """A backend for chats with many places; only this one has the model that is called as it is."""
    return Options(kind="chat", name=name, models=f"demo-chat,{name}", slots=16, sigma=0.3, **fields)


def of_speeds(speeds: Sequence[float] = SPEEDS, sigma: float = 0.3) -> list[Options]:
    """Backends of these speeds."""
    shared: Any = {"slots": SLOTS, "base_s": BASE_S, "output_s": TOKEN_S, "prefill_s": 0.0, "sigma": sigma}
    return [Options(name=f"b{k}", speed=speed, seed=k, **shared) for k, speed in enumerate(speeds)]


def recorded(backends: Sequence[BackendProcess], **more: object) -> dict[str, Any]:
    """A configuration that records, with nothing that takes a busy machine's stalls for faults of nodes."""
    return config_of(*backends, health={}, record={"folder": "recording"}, **more)


def numbered(tokens: int, number: int) -> tuple[dict[str, object], dict[str, str]]:
    """The body and the headers of the request with the id rNUMBER that makes so many tokens."""
    return {**HELLO, "max_tokens": tokens, "ignore_eos": True}, {**BEARER, "x-request-id": f"r{number}"}


async def drive(url: str, traffic: Traffic) -> list[int]:
    """Send it all at its times; returns the statuses."""
    async with client() as session:
        loop = asyncio.get_running_loop()
        begun_s, tasks = loop.time(), []
        for i, at_s in enumerate(traffic.at_s):
            await asyncio.sleep(begun_s + at_s - loop.time())
            body, headers = numbered(int(traffic.tokens[i]), i)
            tasks.append(loop.create_task(ask(session, url, body, headers=headers)))
        return [reply.status for reply in await asyncio.gather(*tasks)]
