"""Kubeflow Pipelines: components in a pipeline, by its local runner. Each component is a process of its own.

The local runner runs one component at a time, so a pipeline has as few of them as it has steps.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from kfp import dsl, local


@contextmanager
def connected(folder: str) -> Iterator[None]:
    local.init(runner=local.SubprocessRunner(use_venv=False), pipeline_root=folder)
    yield


@dsl.component
def thumbnails(files: list, small: dsl.Output[dsl.Dataset]):
    import numpy as np

    from bench.engines.workload import thumbnail

    with open(small.path, "wb") as file:
        np.save(file, np.stack([thumbnail(each) for each in files]))


@dsl.component
def embeddings(small: dsl.Input[dsl.Dataset], found: dsl.Output[dsl.Dataset]):
    import numpy as np

    from bench.engines.workload import embedding

    with open(found.path, "wb") as file:
        np.save(file, np.stack([embedding(each) for each in np.load(small.path)]))


@dsl.component
def duplicates(found: dsl.Input[dsl.Dataset]) -> list:
    import numpy as np

    from bench.engines.workload import near_duplicates

    return near_duplicates(np.load(found.path))


@dsl.pipeline
def images_pipeline(files: list) -> list:
    small = thumbnails(files=files)
    found = embeddings(small=small.outputs["small"])
    return duplicates(found=found.outputs["found"]).output


def images(on: None, files: list[str]) -> list[tuple[int, int]]:
    return [(a, b) for a, b in images_pipeline(files=files).output]


@dsl.component
def steps(chains: list, totals: list, stage: int) -> list:
    from bench.engines.workload import step

    return [step(k, stage, row[stage], totals[k]) for k, row in enumerate(chains)]


@dsl.pipeline
def paced_pipeline(chains: list, totals: list) -> list:
    for stage in range(3):
        totals = steps(chains=chains, totals=totals, stage=stage).set_retry(num_retries=2).output
    return totals


def paced(on: None, chains: list[list[float]]) -> list[float]:
    return paced_pipeline(chains=chains, totals=[0.0] * len(chains)).output


@dsl.component
def _nothing(number: int) -> int:
    from bench.engines import workload

    return workload.nothing(number)


def nothing(on: None, count: int) -> int:
    @dsl.pipeline
    def many():
        for k in range(count):
            _nothing(number=k)

    many()
    return count
