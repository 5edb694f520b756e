"""Slurm: an array of jobs over blocks, and a job that depends on it; files carry values between them.

Run as a program it is one job: `slurm_array.py WHAT FOLDER`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from bench.engines import workload
from bench.engines.workload import blocks, embedding, near_duplicates, step, thumbnail

JOB_IMAGES, JOB_CHAINS = 250, 3  # each job loads Python anew, and Slurm starts some once a second
POLL_S = 0.05


@contextmanager
def connected(configuration: str) -> Iterator[Path]:
    os.environ["SLURM_CONF"] = configuration
    with tempfile.TemporaryDirectory(dir=Path(configuration).parent) as folder:
        yield Path(folder)


def _submit(what: str, folder: Path, *options: str) -> str:
    """The number of a job that was handed in."""
    command = f"{sys.executable} -m {__spec__.name} {what} {folder}"
    return _told("sbatch", "--parsable", f"--output={folder}/out-%A-%a", *options, "--wrap", command)


def _wait() -> None:
    while _told("squeue", "--noheader", "--name=wrap"):
        time.sleep(POLL_S)


def _told(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def images(home: Path, files: list[str]) -> list[tuple[int, int]]:
    folder = Path(tempfile.mkdtemp(dir=home))
    parts = blocks(files, JOB_IMAGES)
    (folder / "blocks").write_text(json.dumps(parts))
    array = _submit("embeddings", folder, f"--array=0-{len(parts) - 1}")
    _submit("duplicates", folder, "--kill-on-invalid-dep=yes", f"--dependency=afterok:{array}")
    _wait()
    return [(a, b) for a, b in json.loads((folder / "pairs").read_text())]


def paced(home: Path, chains: list[list[float]]) -> list[float]:
    folder = Path(tempfile.mkdtemp(dir=home))
    parts = blocks(list(enumerate(chains)), JOB_CHAINS)
    (folder / "blocks").write_text(json.dumps(parts))
    _submit("chains", folder, f"--array=0-{len(parts) - 1}")
    _wait()
    files = [folder / f"totals-{k}" for k in range(len(parts))]
    return [total for file in files for total in json.loads(file.read_text())]


def nothing(folder: Path, count: int) -> int:
    _submit("nothing", folder, f"--array=0-{count - 1}")
    _wait()
    return count


def _job(what: str, folder: Path) -> Any:
    """One job of an array, or the last one."""
    number = int(os.environ.get("SLURM_ARRAY_TASK_ID", "0"))
    if what == "nothing":
        return workload.nothing(number)
    parts = json.loads((folder / "blocks").read_text())
    if what == "embeddings":
        found = np.stack([embedding(thumbnail(file)) for file in parts[number]])
        return np.save(folder / f"{number}.npy", found)
    if what == "duplicates":
        found = chain.from_iterable(np.load(folder / f"{k}.npy") for k in range(len(parts)))
        return (folder / "pairs").write_text(json.dumps(near_duplicates(found)))
    totals = [_total(*each) for each in parts[number]]
    return (folder / f"totals-{number}").write_text(json.dumps(totals))


def _total(number: int, row: list[float]) -> float:
    total = 0.0
    for stage, seconds in enumerate(row):
        total = step(number, stage, seconds, total)
    return total


if __name__ == "__main__":
    _job(sys.argv[1], Path(sys.argv[2]))
