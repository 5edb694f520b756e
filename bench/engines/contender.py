"""One engine in a process of its own: started, warmed, measured, a worker killed. Prints one line of JSON.

python -m bench.engines.contender PROGRAM WORKERS FOLDER
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.engines import workload
from bench.engines.shown import shown
from bench.engines.two_workers import TWO_WORKERS
from bench.engines.workload import FOLDER, begun, chains, plan_death, without_place

RUNS = 2  # of each piece of work, in a round
WARM_IMAGES, WARM_SCALE = 400, 0.2
KILLED = (12, 1)  # chain and stage that kill their process
FAULT_S = 60.0  # after which a run with a fault has not ended
MANY = {"kfp_local": 4, "slurm_array": 12, "ray_data": 100, "spark_rdd": 100}  # tasks without work; others:
TASKS = 400


def main(name: str, workers: str, folder: Path) -> None:
    """Measure, and print what was found."""
    os.environ[FOLDER] = str(folder)
    work = folder / name
    work.mkdir(exist_ok=True)
    program = importlib.import_module(f"bench.engines.programs.{name}")
    files, paced = sorted(map(str, (folder / "images").iterdir())), chains()
    found: dict[str, Any] = {"load_average": round(os.getloadavg()[0], 2)}
    begun_s = time.perf_counter()
    with TWO_WORKERS[workers](work) as address, program.connected(address) as on:
        program.nothing(on, 2)
        found["cold_s"] = time.perf_counter() - begun_s
        program.images(on, files[:WARM_IMAGES])
        program.paced(on, [[WARM_SCALE * each for each in row] for row in paced])
        begun(folder)
        found["images_s"], found["paced_s"], outputs = [], [], {}
        for _ in range(RUNS):
            seconds, outputs["images"] = _timed(lambda: program.images(on, files))
            found["images_s"].append(seconds)
            seconds, outputs["paced"] = _timed(lambda: program.paced(on, paced))
            found["paced_s"].append(seconds)
        found["begun"] = len(begun(folder)) / RUNS
        many = MANY.get(name, TASKS)
        seconds, _ = _timed(lambda: program.nothing(on, many))
        found["nothing_ms"] = 1e3 * seconds / many
        seconds, expected = _timed(lambda: workload.plain(files, paced))
        found["plain_s"], found["is_right"] = seconds, outputs == expected
        found["shown"] = shown(name, on)
        found["fault"] = _with_fault(lambda: program.paced(on, paced), folder, outputs["paced"])
        print(json.dumps(found), flush=True)
        if not found["fault"]["is_over"]:
            os._exit(0)  # it would not end


def _timed(run: Callable[[], Any]) -> tuple[float, Any]:
    begun_s = time.perf_counter()
    output = run()
    return time.perf_counter() - begun_s, output


def _with_fault(run: Callable[[], Any], folder: Path, expected: Any) -> dict[str, Any]:
    """A run whose worker is killed in the middle: how it ended, after how long, and what began again."""
    plan_death(folder, *KILLED)
    told: dict[str, Any] = {"error": ""}

    def attempt() -> None:
        try:
            told["is_right"] = run() == expected
        except Exception as error:
            told["error"] = without_place(f"{type(error).__name__}: {error}".partition("\n")[0])

    thread = threading.Thread(target=attempt, daemon=True)
    begun_s = time.perf_counter()
    thread.start()
    thread.join(FAULT_S)
    seen = [stage for *stage, _ in begun(folder)]
    again = len(seen) - len({tuple(stage) for stage in seen})
    return {
        "is_over": not thread.is_alive(),
        "is_right": told.get("is_right", False),
        "error": told["error"],
        "seconds": time.perf_counter() - begun_s,
        "again": again,
        "done": len({tuple(stage) for stage in seen}),
    }


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
