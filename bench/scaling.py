"""Ten million requests: memory and linear time; each size in a process of its own."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from bench.figures import Benchmark, Effort, Measured, at_most, figure
from bench.startup import ROOT
from bench.work import SLOTS_TEXT, slots, timed
from trimtab.domain.requests import TRUTH
from trimtab.domain.view import WORK
from trimtab.engine.records import records_of
from trimtab.engine.state import REQUEST
from trimtab.metrics import compute

SIZES, NODES, POLICY = (1_000_000, 3_000_000, 10_000_000), 100, "power-of-d"
MADE_BYTES = WORK.itemsize + TRUTH.itemsize
MEMORY_GB, LINEAR = 4.0, 1.25


@dataclass(frozen=True, slots=True)
class Sample:
    """The use of one process."""

    requests: int
    build_s: float
    loop_s: list[float]
    metrics_s: float
    loop_gb: float  # peak until the loop was done
    peak_gb: float  # peak with records and metrics


def _peak_gb() -> float:
    """Most memory this process has had, in 10^9 bytes (the kernel counts kibibytes, macOS bytes)."""
    return (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e9
    )


def sample(n_requests: int, repetitions: int) -> Sample:
    """Build, run and measure, as `trimtab run` does."""
    timed(slots(NODES, 1_000), POLICY)  # load the kernels
    begun_s = time.process_time()
    built = slots(NODES, n_requests)
    build_s = time.process_time() - begun_s
    loop_s = [timed(built, POLICY).loop_s for _ in range(repetitions - 1)]
    run = timed(built, POLICY)
    loop_gb = _peak_gb()
    begun_s = time.process_time()
    compute(records_of(run.driver, built.cluster, built.requests, built.slo_s))
    metrics_s = time.process_time() - begun_s
    return Sample(n_requests, build_s, [*loop_s, run.loop_s], metrics_s, loop_gb, _peak_gb())


def _in_own_process(n_requests: int, repetitions: int) -> Sample:
    command = [sys.executable, "-m", "bench.scaling", str(n_requests), str(repetitions)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr[-2000:]}")
    return Sample(**json.loads(done.stdout))


def _figures(s: Sample, is_largest: bool) -> Iterator[Measured]:
    limit = at_most(MEMORY_GB) if is_largest else None
    labels = {"requests": s.requests}
    yield figure([t / s.requests * 1e9 for t in s.loop_s], "ns/request", **labels, figure="loop")
    yield figure([s.build_s / s.requests * 1e9], "ns/request", **labels, figure="making the requests")
    yield figure([s.metrics_s / s.requests * 1e9], "ns/request", **labels, figure="records and all metrics")
    yield figure([s.loop_gb], "GB", limit, **labels, figure="peak memory, requests and loop")
    yield figure([s.peak_gb], "GB", limit, **labels, figure="peak memory, with records and metrics")


def measure(effort: Effort) -> Iterator[Measured]:
    sizes = tuple(n // 1_000 for n in SIZES) if effort.is_quick else SIZES
    samples = [_in_own_process(n, effort.repetitions) for n in sizes]
    for s in samples:
        yield from _figures(s, s.requests == SIZES[-1])
    first, last = samples[0], samples[-1]
    growth = [
        (b / last.requests) / (a / first.requests) for a, b in zip(first.loop_s, last.loop_s, strict=True)
    ]
    yield figure(
        growth,
        "×",
        at_most(LINEAR),
        requests=last.requests,
        figure=f"time per request over that at {first.requests:,}",
    )


BENCHMARK = Benchmark(
    "scaling",
    "Ten million requests",
    f"`{POLICY}` on {NODES} nodes, each size in a process of its own: peak resident memory, and processor "
    "time per request of making the requests, of the loop, and of records and metrics. Time counts as "
    f"linear if a request costs at most {LINEAR} times as much. {SLOTS_TEXT}.",
    measure,
    pivot=("figure", "requests"),
    profile=f"A request takes {MADE_BYTES} bytes as it is made, which runs share and do not change, and "
    f"{REQUEST.itemsize} more in the state of a run; some of a run's records are copies beside these.",
)


if __name__ == "__main__":
    print(json.dumps(asdict(sample(int(sys.argv[1]), int(sys.argv[2])))))
