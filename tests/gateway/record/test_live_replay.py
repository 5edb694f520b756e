"""A live run over fake backends, recorded and replayed: the replay gives the live run's figures."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import aiohttp
import numpy as np

from support.backends import Options, launched
from support.builders import cluster, requests
from support.recordings import record
from trimtab.domain.cluster import Cluster
from trimtab.domain.options import Options as HostOptions
from trimtab.domain.requests import Requests
from trimtab.engine.driver import Driver
from trimtab.engine.state import REPLAYED
from trimtab.experiments.serving.replay import Completions, replay
from trimtab.live.clock import WallClock
from trimtab.live.planner import InlinePlanner
from trimtab.live.runner import LiveRunner
from trimtab.policies import find

SPEEDS = (1.0, 1.0, 1.0)  # alike, and sizes bounded: else p99 hangs on where a few of them went
SLOTS, N_REQUESTS, LOAD, RUNS = 2, 600, 0.75, 3
BASE_S, TOKEN_S, MEAN_TOKENS = 0.015, 0.0075, 16


class OverHttp:
    """Serves by asking a fake backend for as many tokens as the request has units."""

    def __init__(self, session: aiohttp.ClientSession, urls: list[str], tokens: list[int]) -> None:
        self._session, self._urls, self._tokens = session, urls, tokens

    async def serve(self, node_idx: int, serial: int, until_s: float) -> None:
        """One completion."""
        body = {
            "model": "demo-chat",
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": self._tokens[serial],
        }
        async with self._session.post(f"{self._urls[node_idx]}/v1/chat/completions", json=body) as response:
            assert response.status == 200
            await response.read()

    def cancel(self, node_idx: int, serial: int) -> None:
        """Nothing is cancelled here."""


def nodes() -> Cluster:
    plain = cluster(len(SPEEDS), types=len(SPEEDS), slots=SLOTS, queue_max=0)
    speed = np.array(SPEEDS)
    return replace(plain, fixed_s=BASE_S / speed[None, :], unit_s=TOKEN_S / speed[None, :])


def traffic(c: Cluster) -> Requests:
    drawn = requests(c, N_REQUESTS, seed=11)
    rng, work, truth = np.random.default_rng(11), drawn.work.copy(), drawn.truth.copy()
    work["units"] = rng.integers(1, 2 * MEAN_TOKENS, N_REQUESTS)
    rate_per_s = LOAD * SLOTS * sum(SPEEDS) / (BASE_S + TOKEN_S * MEAN_TOKENS)
    work["arrival_s"] = np.cumsum(rng.exponential(1.0 / rate_per_s, N_REQUESTS))
    work["estimate_s"] = c.best_estimate_s(work["class_idx"], work["units"])
    truth["units"], truth["factor"] = work["units"], 1.0
    return replace(drawn, work=work, truth=truth)


async def live(driver: Driver, clock: WallClock, urls: list[str], tokens: list[int]) -> None:
    async with aiohttp.ClientSession() as session:
        planner = InlinePlanner(driver.policy, driver.planning)
        await LiveRunner(driver, clock, OverHttp(session, urls, tokens), planner).run()


def test_a_live_run_over_demo_backends_replays(tmp_path: Path) -> None:
    """Of up to three runs one has to be that near: a machine's stalls are no faults of the replay."""
    errors: list[Completions] = []
    for number in range(RUNS):
        errors.append(_error_of_a_run(tmp_path / str(number)))
        if _is_near(errors[-1]):
            break
    assert _is_near(errors[-1]), errors


def _is_near(error_frac: Completions) -> bool:
    return abs(error_frac.mean_s) <= 0.05 and abs(error_frac.p99_s) <= 0.10


def _error_of_a_run(folder: Path) -> Completions:
    c = nodes()
    drawn = traffic(c)
    served = {"slots": SLOTS, "base_s": BASE_S, "output_s": TOKEN_S, "prefill_s": 0.0, "sigma": 0.3}
    backends = [Options(name=f"b{k}", speed=speed, seed=k, **served) for k, speed in enumerate(SPEEDS)]
    name = "least-expected-wait"
    driver = Driver(c, drawn, HostOptions(), find(name), mode="interpreted", host=REPLAYED)
    with launched(*backends) as started:
        clock = WallClock(1.0)
        clock.run(live(driver, clock, [b.url for b in started], drawn.work["units"].astype(int).tolist()))
    asyncio.run(record(folder, c, driver, name, ticks_per_s=1e6))
    done = replay(folder, mode="interpreted")
    (only,) = done.policies
    assert done.requests == N_REQUESTS
    return only.error_frac
