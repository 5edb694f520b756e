"""Where the time of a stage without work goes when trimtab runs it on Ray: its host's thread, profiled."""

from __future__ import annotations

import cProfile
import pstats
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from bench.engines.programs import ray_tasks, trimtab_chain
from bench.engines.two_workers import ray_nodes, stage_nodes
from bench.engines.workload import WORKERS

TASKS, WARM, ROUNDS = 400, 50, 3
AREAS = {  # part of a file's path or of a builtin's name → what it does
    "poll": "waiting: nothing to do",
    "/ray/": "Ray's client: calls of actors, answers",
    "ray._raylet": "Ray's client: calls of actors, answers",
    "trimtab/engine": "decisions",
    "trimtab/policies": "decisions",
    "trimtab/compiled": "decisions",
    "trimtab/chains": "runs and stages: what is ready, what has ended",
    "trimtab/clusters": "attempts and values: messages, references",
    "trimtab/live": "attempts and values: messages, references",
    "pickle": "attempts and values: messages, references",
    "blake2b": "attempts and values: messages, references",
    "asyncio": "asyncio",
}
OTHER = "other"
TASKS_OF_RAY, BARE = "tasks of Ray", "a bare loop over such actors, one call at a time"
ONE_CALL, TWO_CALLS = (f"trimtab, {calls} at a time for each slot" for calls in ("one call", "two calls"))


def profile() -> dict[str, Any]:
    """Steps from plain Ray to trimtab, and shares of the host's thread by area."""
    import ray

    from bench.chain_ray import bare_rate_per_s
    from trimtab.clusters.ray.ray_backend import Ray

    steps: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="engines-") as folder, ray_nodes(Path(folder)) as address:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        for _ in range(ROUNDS):
            ray_tasks.nothing(None, WARM)
            steps.setdefault(TASKS_OF_RAY, []).append(_costs(partial(ray_tasks.nothing, None, TASKS)))
            bare = {"ms": 1e3 / bare_rate_per_s(workers=len(WORKERS), depth=1)}
            steps.setdefault(BARE, []).append(bare)
            for name, depth in ((ONE_CALL, 1), (TWO_CALLS, 2)):
                backend = Ray(stage_nodes(is_machine=True, depth=depth))
                with trimtab_chain.connected(backend) as session:
                    trimtab_chain.nothing(session, WARM)
                    run = partial(trimtab_chain.nothing, session, TASKS)
                    steps.setdefault(name, []).append(_costs(run))
        with trimtab_chain.connected(Ray(stage_nodes(is_machine=True))) as session:
            trimtab_chain.nothing(session, WARM)
            shares = _shares(session)
        ray.shutdown()
    return {"steps": steps, "shares": shares}


def _costs(run: Callable[[], object]) -> dict[str, float]:
    """Milliseconds of a task: elapsed, of the processor in this process, and in the others of the cluster."""
    begun_s, own_s, others_s = time.perf_counter(), time.process_time(), _others_s()
    run()
    spent_s = time.perf_counter() - begun_s, time.process_time() - own_s, _others_s() - others_s
    return dict(zip(("ms", "driver_ms", "others_ms"), (1e3 * each / TASKS for each in spent_s), strict=True))


def _others_s() -> float:
    """Processor seconds of all processes that this one began, Ray's and its workers."""
    total_s = 0.0
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            times = process.cpu_times()
            total_s += times.user + times.system
    return total_s


def _shares(session: Any) -> Mapping[str, float]:
    """Share of the time of the thread that decides and sends, by area."""
    profiler, loop = cProfile.Profile(), session._thread.loop
    loop.call_soon_threadsafe(profiler.enable)
    trimtab_chain.nothing(session, TASKS)
    loop.call_soon_threadsafe(profiler.disable)
    time.sleep(0.1)
    spent: Counter[str] = Counter()
    for (file, _, name), (_, _, own_s, _, _) in pstats.Stats(profiler).stats.items():  # type: ignore[attr-defined]
        spent[next((area for part, area in AREAS.items() if part in f"{file} {name}"), OTHER)] += own_s
    total_s = sum(spent.values())
    return {area: own_s / total_s for area, own_s in spent.most_common()}
