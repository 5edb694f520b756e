"""Dask: futures over blocks; values stay on the workers between tasks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import numpy as np
from distributed import Client

from bench.engines import workload
from bench.engines.workload import blocks, embedding, near_duplicates, step, thumbnail


@contextmanager
def connected(address: str) -> Iterator[Client]:
    with Client(address) as client:
        yield client


def images(client: Client, files: list[str]) -> list[tuple[int, int]]:
    small = client.map(_thumbnails, blocks(files), pure=False)
    return client.submit(_duplicates, client.map(_embeddings, small, pure=False), pure=False).result()


def _thumbnails(files: list[str]) -> list[np.ndarray]:
    return [thumbnail(file) for file in files]


def _embeddings(small: list[np.ndarray]) -> list[np.ndarray]:
    return [embedding(each) for each in small]


def _duplicates(parts: list[list[np.ndarray]]) -> list[tuple[int, int]]:
    return near_duplicates(chain.from_iterable(parts))


def paced(client: Client, chains: list[list[float]]) -> list[float]:
    totals = []
    for number, row in enumerate(chains):
        total = 0.0
        for stage, seconds in enumerate(row):
            total = client.submit(step, number, stage, seconds, total, pure=False)
        totals.append(total)
    return client.gather(totals)


def nothing(client: Client, count: int) -> int:
    return len(client.gather(client.map(workload.nothing, range(count), pure=False)))
