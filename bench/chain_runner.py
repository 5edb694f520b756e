"""The host of chains beside a bare loop over the same worker processes; ratios taken in one run.

    python -m bench.chain_runner

- throughput: stages per second of quick stages, by the host with and without its journal, over those of a
  bare asyncio loop that keeps every worker busy.
- added_ms: median time of a stage in a run with one input in flight, less that of the bare loop.
- late_binding_frac: of the ideal, 160 stages of 100 ms on 4 workers.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import cloudpickle

from bench.chain_rates import host_rate_per_s, throughput
from trimtab.chains import Session, chain, stage
from trimtab.clusters.processes import Processes
from trimtab.live.stage_backend import Argument, Attempt, StageCode, StageNode
from trimtab.live.value_codec import encode

RESULTS = Path(__file__).with_name("chain-runner.json")
WORKERS, QUICK, SLEEPS, SLEEP_S = 2, 3_000, 160, 0.1
ROUNDS = 3


@stage(cpu=0)
def quick(n: int) -> int:
    return n


@stage(cpu=0)
def sleep(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


@chain
def quickly(n: int) -> Any:
    return quick(n)


@chain
def sleeping(seconds: float) -> Any:
    return sleep(seconds)


def main() -> None:
    """Measure, print and save."""
    found = {
        "throughput": throughput(lambda: bare(WORKERS, bare_rate_per_s), host_per_s, ROUNDS),
        "added_ms": added_ms(),
        "late_binding_frac": late_binding_frac(),
    }
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    json.dump(found, sys.stdout, indent=1)
    print()


def bare(workers: int, work: Callable[[Processes], Awaitable[Any]]) -> Any:
    """The result of `work` with worker processes that can run `quick`."""

    async def measured() -> Any:
        backend = Processes([StageNode("one", slots=workers)])
        await backend.open([StageCode("quick", cloudpickle.dumps(quick.stage_code))], lambda change: None)
        try:
            return await work(backend)
        finally:
            await backend.close()

    return asyncio.run(measured())


async def call(backend: Processes, number: int) -> None:
    """One attempt."""
    value = await backend.put(encode(number))
    outcome = await backend.start(0, Attempt("r", "quick", 0, number, "k"), [Argument("n", (value,))])
    assert outcome.error is None


async def bare_rate_per_s(backend: Processes) -> float:
    """Attempts per second of a loop that keeps every worker busy."""

    async def feed(first: int) -> None:
        for number in range(first, QUICK, WORKERS):
            await call(backend, number)

    await asyncio.gather(*(call(backend, -1 - k) for k in range(WORKERS)))
    begun_s = time.perf_counter()
    await asyncio.gather(*(feed(k) for k in range(WORKERS)))
    return QUICK / (time.perf_counter() - begun_s)


def host_per_s(journal: Path | None) -> float:
    """Stages per second of a run."""
    return host_rate_per_s(
        Processes([StageNode("one", slots=WORKERS)]), quickly, range(QUICK), WORKERS, journal
    )


async def bare_times_s(backend: Processes) -> list[float]:
    """Seconds of attempts, one after the other."""
    times_s = []
    for number in range(500):
        begun_s = time.perf_counter()
        await call(backend, number)
        times_s.append(time.perf_counter() - begun_s)
    return times_s


def added_ms() -> dict[str, float]:
    """Medians with one in flight, journal on."""
    alone_s = statistics.median(bare(1, bare_times_s))
    with (
        tempfile.TemporaryDirectory() as folder,
        Session(quickly, on=Processes([StageNode("one")]), in_flight=1, journal=Path(folder)) as session,
    ):
        hosted_s = statistics.median(r.elapsed_s for r in session.run(quickly, range(500)).wait())
    return {"bare": 1e3 * alone_s, "host": 1e3 * hosted_s, "added": 1e3 * (hosted_s - alone_s)}


def late_binding_frac() -> dict[str, float]:
    """Ideal makespan over the measured one, journal on: of declared times, and of times really slept."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Session(
            sleeping, on=Processes([StageNode("one", slots=4, depth=2)]), journal=Path(folder)
        ) as session,
    ):
        session.run(sleeping, [0.0] * 4).wait()
        begun_s = time.perf_counter()
        handle = session.run(sleeping, [SLEEP_S] * SLEEPS)
        handle.wait()
        elapsed_s = time.perf_counter() - begun_s
        return {
            "of_declared": SLEEPS * SLEEP_S / 4 / elapsed_s,
            "of_slept": handle.counts["sleep"].busy_s / 4 / elapsed_s,
        }


if __name__ == "__main__":
    main()
