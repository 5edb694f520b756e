"""`python -m bench.engines`: the same work on each engine, alone and with trimtab, and the pages.

Saves bench/engines.json after each engine, so that a run that was interrupted goes on where it was.
`--only NAME` measures some anew, `--docs` only writes the pages.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bench.engines.opinions_page import with_opinions
from bench.engines.page import LEAST_ROUNDS, PROGRAM, page
from bench.engines.profile_ray import profile
from bench.engines.two_workers import KFP
from bench.engines.workload import chains, draw_images, ideal_s, without_place
from bench.machine import machine, versions
from bench.page_command import page_parser, save_figures, saved_figures, write_page
from bench.startup import ROOT

RESULTS, PAGE = ROOT / "bench" / "engines.json", ROOT / "docs" / "benchmarks" / "engines.md"
CONCEPTS = ROOT / "docs" / "concepts" / "engines.md"
ENGINE_S = 300.0
PACKAGES = ("ray", "distributed", "pyspark")


WORKERS = {  # of each contender of the page
    "processes": "pool",
    "Ray tasks": "ray",
    "Ray actors": "ray",
    "Ray Data": "ray",
    "Dask": "dask",
    "Spark": "spark",
    "Kubeflow local": "kfp",
    "Slurm arrays": "slurm",
    "trimtab, processes": "trimtab-processes",
    "trimtab, Ray": "trimtab-ray",
    "trimtab, in Dask's scheduler": "dask-placement",
    "trimtab, Dask": "trimtab-dask",
    "trimtab, Slurm": "trimtab-slurm",
    "trimtab, Kubeflow imported": "kfp-imported",
}


def main() -> None:
    """Run from the command line."""
    parser = page_parser("bench.engines", __doc__)
    parser.add_argument(
        "--only", action="append", choices=PROGRAM, metavar="NAME", help="measure this engine anew"
    )
    parser.add_argument("--rounds", type=int, default=LEAST_ROUNDS)
    given = parser.parse_args()
    if not given.docs:
        measure(given.only, given.rounds)
    figures = saved_figures(RESULTS)
    write_page(PAGE, page(figures))
    write_page(CONCEPTS, with_opinions(CONCEPTS.read_text(encoding="utf-8"), figures))


def measure(only: Iterable[str] | None, rounds: int) -> None:
    """Measure what is not saved yet, or all of it where everything is; engines take turns."""
    subprocess.run(
        [sys.executable, "-m", "trimtab", "warmup", "--quiet"], check=True
    )  # kernels are compiled once
    figures = begun(only)
    save_figures(RESULTS, figures)
    with tempfile.TemporaryDirectory(prefix="engines-") as folder:
        draw_images(Path(folder, "images"))
        for number in range(rounds):
            for name in PROGRAM:
                runs = figures["runs"].setdefault(name, [])
                if len(runs) > number:
                    continue
                begun_s = time.monotonic()
                runs.append(outcome(PROGRAM[name], WORKERS[name], Path(folder)))
                save_figures(RESULTS, figures)
                told = runs[-1].get("error") or [runs[-1]["images_s"], runs[-1]["paced_s"]]
                print(f"{number} {name}: {told}, in all {time.monotonic() - begun_s:.0f} s", flush=True)
    figures["profile"] = figures["profile"] or profile()
    figures["is_whole"] = True
    save_figures(RESULTS, figures)


def begun(only: Iterable[str] | None) -> dict[str, Any]:
    """The figures so far: all that is kept, or none."""
    saved = saved_figures(RESULTS) if RESULTS.exists() else {}
    if saved and (only or not saved["is_whole"]):
        runs = {name: own for name, own in saved["runs"].items() if name not in (only or ())}
        return saved | {"is_whole": False, "runs": runs}
    from importlib import metadata

    found = versions() | {name: metadata.version(name) for name in PACKAGES} | {"kfp": _version_of_kfp()}
    return {
        "is_whole": False,
        "machine": machine(),
        "versions": found | {"slurm": _first_word_after("slurm-wlm", ["slurmctld", "-V"])},
        "ideal_s": ideal_s(chains()),
        "profile": {},
        "runs": {},
    }


def _version_of_kfp() -> str:
    return _first_word_after("Version:", [str(KFP), "-m", "pip", "show", "kfp"])


def _first_word_after(word: str, command: list[str]) -> str:
    """Of what a command prints; empty where it is not there."""
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""
    return (told.partition(word)[2].split() or [""])[0]


def outcome(program: str, workers: str, images: Path) -> Mapping[str, Any]:
    """What an engine's process found; where it failed, why."""
    python = str(KFP) if program == "kfp_local" else sys.executable
    with tempfile.TemporaryDirectory(prefix="engine-") as folder:
        Path(folder, "images").symlink_to(images / "images")
        command = [python, "-m", "bench.engines.contender", program, workers, folder]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, cwd=ROOT, timeout=ENGINE_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return {"error": without_place(f"{type(error).__name__}: {error}")}
    told = [line for line in done.stdout.splitlines() if line.startswith('{"load_average"')]
    if not told:
        lines = [line for line in done.stderr.splitlines() if "Error" in line or "Exception" in line]
        return {"error": without_place((lines or [f"exit code {done.returncode}"])[-1].strip())}
    return dict(json.loads(told[-1]))


if __name__ == "__main__":
    main()
