"""Ray Data: batches of rows stream through operators."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import ray

from bench.engines import workload
from bench.engines.workload import BLOCK, IMAGES, embedding, near_duplicates, step, thumbnail


@contextmanager
def connected(address: str) -> Iterator[None]:
    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    ray.shutdown()


def images(on: None, files: list[str]) -> list[tuple[int, int]]:
    rows = [{"number": k, "file": file} for k, file in enumerate(files)]
    data = ray.data.from_items(rows, override_num_blocks=IMAGES // BLOCK)
    found = data.map_batches(_thumbnails, batch_size=BLOCK).map_batches(_embeddings, batch_size=BLOCK)
    ordered = sorted(found.iter_rows(), key=lambda row: row["number"])
    return near_duplicates(row["embedding"] for row in ordered)


def _thumbnails(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"number": batch["number"], "small": np.stack([thumbnail(file) for file in batch["file"]])}


def _embeddings(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"number": batch["number"], "embedding": np.stack([embedding(each) for each in batch["small"]])}


def paced(on: None, chains: list[list[float]]) -> list[float]:
    rows = [{"number": k, "row": row, "total": 0.0} for k, row in enumerate(chains)]
    data = ray.data.from_items(rows, override_num_blocks=len(rows))
    for stage in range(len(chains[0])):
        data = data.map(_step, fn_args=(stage,))
    return [row["total"] for row in sorted(data.iter_rows(), key=lambda row: row["number"])]


def _step(row: dict[str, Any], stage: int) -> dict[str, Any]:
    total = step(row["number"], stage, row["row"][stage], row["total"])
    return {**row, "total": total}


def nothing(on: None, count: int) -> int:
    data = ray.data.range(count, override_num_blocks=count)
    return len(data.map(_nothing).take_all())


def _nothing(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": workload.nothing(row["id"])}
