"""Ray: an actor for each worker, in a pool that gives the next block to whichever is free."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import numpy as np
import ray
from ray.util import ActorPool

from bench.engines import workload
from bench.engines.workload import blocks, embedding, near_duplicates, step, thumbnail


@contextmanager
def connected(address: str) -> Iterator[ActorPool]:
    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    yield ActorPool([_Worker.remote() for _ in range(2)])
    ray.shutdown()


@ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=-1)
class _Worker:
    def embeddings(self, number: int, files: list[str]) -> tuple[int, list[np.ndarray]]:
        return number, [embedding(thumbnail(file)) for file in files]

    def chain(self, number: int, row: list[float]) -> tuple[int, float]:
        total = 0.0
        for stage, seconds in enumerate(row):
            total = step(number, stage, seconds, total)
        return number, total

    def nothing(self, number: int) -> int:
        return workload.nothing(number)


def images(pool: ActorPool, files: list[str]) -> list[tuple[int, int]]:
    found = pool.map_unordered(lambda actor, each: actor.embeddings.remote(*each), enumerate(blocks(files)))
    return near_duplicates(chain.from_iterable(part for _, part in sorted(found, key=lambda each: each[0])))


def paced(pool: ActorPool, chains: list[list[float]]) -> list[float]:
    found = pool.map_unordered(lambda actor, each: actor.chain.remote(*each), enumerate(chains))
    return [total for _, total in sorted(found)]


def nothing(pool: ActorPool, count: int) -> int:
    return len(list(pool.map_unordered(lambda actor, k: actor.nothing.remote(k), range(count))))
