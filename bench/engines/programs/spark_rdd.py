"""Spark: a resilient distributed dataset; steps that need no shuffle run in one task for each partition."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import SparkContext
from pyspark.sql import SparkSession

from bench.engines import workload
from bench.engines.workload import BLOCK, embedding, near_duplicates, step, thumbnail


@contextmanager
def connected(address: str) -> Iterator[SparkContext]:
    spark = SparkSession.builder.master(address).config("spark.ui.showConsoleProgress", "false").getOrCreate()
    yield spark.sparkContext
    spark.stop()


def images(spark: SparkContext, files: list[str]) -> list[tuple[int, int]]:
    data = spark.parallelize(files, max(1, len(files) // BLOCK))
    return near_duplicates(data.map(thumbnail).map(embedding).collect())


def paced(spark: SparkContext, chains: list[list[float]]) -> list[float]:
    data = spark.parallelize([(k, row, 0.0) for k, row in enumerate(chains)], len(chains))
    for stage in range(len(chains[0])):
        data = data.map(lambda each, stage=stage: _step(stage, *each))
    return data.map(lambda each: each[2]).collect()


def _step(stage: int, number: int, row: list[float], total: float) -> tuple[int, list[float], float]:
    return number, row, step(number, stage, row[stage], total)


def nothing(spark: SparkContext, count: int) -> int:
    return len(spark.parallelize(range(count), count).map(workload.nothing).collect())
