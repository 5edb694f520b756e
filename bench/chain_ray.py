"""The host of chains on Ray beside a bare asyncio loop over the same kind of actors; ratios taken in one run.

    python -m bench.chain_ray

- throughput: stages per second of quick stages, by the host with and without its journal, over those of a
  loop that keeps as many calls at every actor; each round measures all of them in turn.
- late_binding_frac: of the ideal, 160 stages of 100 ms on 4 workers, by the attempts that a worker may hold.

The actors share this machine's cores with the host, so the ratios depend on what else runs there.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import sys
import time
from pathlib import Path
from typing import Any

import cloudpickle
import ray

from bench.chain_rates import host_rate_per_s, throughput
from bench.chain_runner import SLEEP_S, SLEEPS, quick, quickly, sleeping
from trimtab.chains import Session
from trimtab.clusters.messages import attempt_fields
from trimtab.clusters.ray import connection
from trimtab.clusters.ray.object_values import INLINE_BYTES
from trimtab.clusters.ray.ray_backend import Ray
from trimtab.clusters.ray.stage_actor import CONTROL, StageWorker
from trimtab.live.stage_backend import Argument, Attempt, Ref, StageCode, StageNode, digest_of
from trimtab.live.value_codec import encode

RESULTS = Path(__file__).with_name("chain-ray.json")
WORKERS, DEPTH, QUICK, ROUNDS = 4, 2, 1_500, 3


def main() -> None:
    """Measure, print and save."""
    connection.connect(None, num_cpus=WORKERS, dashboard=False, options={})
    try:
        found = {
            "ray": ray.__version__,
            "throughput": throughput(bare_rate_per_s, host_per_s, ROUNDS),
            "late_binding_frac": {f"depth_{depth}": late_binding_frac(depth) for depth in (1, 2)},
        }
    finally:
        connection.disconnect()
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    json.dump(found, sys.stdout, indent=1)
    print()


def bare_rate_per_s(workers: int = WORKERS, depth: int = DEPTH) -> float:
    """Calls per second of a loop that keeps `depth` calls at every actor, each with a message of its own."""
    setup = pickle.dumps(((StageCode("quick", cloudpickle.dumps(quick.stage_code)),), INLINE_BYTES, ".", []))
    kind = ray.remote(num_cpus=1, concurrency_groups={CONTROL: 2})(StageWorker)
    actors = [kind.remote(setup, "one") for _ in range(workers)]

    async def call(actor: Any, number: int) -> None:
        data = encode(number)
        inputs = [Argument("n", (Ref(digest_of(data), len(data), data),))]
        message = pickle.dumps(attempt_fields(Attempt("r", "quick", 0, number, "k"), inputs), 5)
        told, _ = actor.run.remote(number, message)
        await told

    async def measured() -> float:
        await asyncio.gather(*(call(actor, k) for k, actor in enumerate(actors)))
        numbers = iter(range(workers, QUICK + workers))

        async def feed(actor: Any) -> None:
            for number in numbers:
                await call(actor, number)

        begun_s = time.perf_counter()
        await asyncio.gather(*(feed(actor) for actor in actors for _ in range(depth)))
        return QUICK / (time.perf_counter() - begun_s)

    try:
        return asyncio.run(measured())
    finally:
        for actor in actors:
            ray.kill(actor)


def host_per_s(journal: Path | None) -> float:
    """Stages per second of a run."""
    return host_rate_per_s(
        Ray([StageNode("one", slots=WORKERS, depth=DEPTH)]), quickly, range(QUICK), WORKERS, journal
    )


def late_binding_frac(depth: int) -> float:
    """Ideal makespan over the measured one."""
    backend = Ray([StageNode("one", slots=WORKERS, depth=depth)])
    with Session(sleeping, on=backend) as session:
        session.run(sleeping, [0.0] * WORKERS).wait()
        begun_s = time.perf_counter()
        session.run(sleeping, [SLEEP_S] * SLEEPS).wait()
        return SLEEPS * SLEEP_S / WORKERS / (time.perf_counter() - begun_s)


if __name__ == "__main__":
    main()
