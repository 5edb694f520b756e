"""Ray: tasks over blocks; values stay in the object store between them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import numpy as np
import ray

from bench.engines import workload
from bench.engines.workload import blocks, embedding, near_duplicates, thumbnail


@contextmanager
def connected(address: str) -> Iterator[None]:
    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


def images(on: None, files: list[str]) -> list[tuple[int, int]]:
    small = [_thumbnails.remote(block) for block in blocks(files)]
    return ray.get(_duplicates.remote(*[_embeddings.remote(block) for block in small]))


@ray.remote
def _thumbnails(files: list[str]) -> list[np.ndarray]:
    return [thumbnail(file) for file in files]


@ray.remote
def _embeddings(small: list[np.ndarray]) -> list[np.ndarray]:
    return [embedding(each) for each in small]


@ray.remote
def _duplicates(*parts: list[np.ndarray]) -> list[tuple[int, int]]:
    return near_duplicates(chain.from_iterable(parts))


def paced(on: None, chains: list[list[float]]) -> list[float]:
    totals = []
    for number, row in enumerate(chains):
        total = 0.0
        for stage, seconds in enumerate(row):
            total = _step.remote(number, stage, seconds, total)
        totals.append(total)
    return ray.get(totals)


_step = ray.remote(workload.step)
_nothing = ray.remote(workload.nothing)


def nothing(on: None, count: int) -> int:
    return len(ray.get([_nothing.remote(k) for k in range(count)]))
