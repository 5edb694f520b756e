"""The work that every engine gets: images to near-duplicates, chains that sleep, tasks that do nothing.

Two unequal workers do it: the slow one does all of its work twice, or sleeps twice as long. A worker knows
which one it is from its environment. This file is all that workers need: it loads NumPy and Pillow only.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from PIL import Image

T = TypeVar("T")
WORKERS: Final = {"fast": 1, "slow": 2}  # how many times as long each takes
_NAMES = ("BENCH_WORKER", "TRIMTAB_NODE", "SLURMD_NODENAME")  # variables that name the worker
FOLDER: Final = "BENCH_FOLDER"  # variable with the folder of images, log and fault
IMAGES, BLOCK, SIDE, THUMB, WAVES = 2_000, 50, 128, 32, 8
COPY_EVERY = 10  # the last image of so many is nearly the first of them
LIKE = 0.98  # cosine from which on two embeddings are those of near-duplicates
CHAINS, STAGES, MEAN_S, SIGMA = 24, 3, 0.05, 0.8
NAPS_S = 0.3
_COSINES = np.cos(np.pi / THUMB * (np.arange(THUMB) + 0.5) * np.arange(WAVES)[:, None])  # [waves, pixels]


def slowness() -> int:
    """How many times as long this worker takes; 1 where no worker has a name."""
    return WORKERS.get(next((name for name in map(os.environ.get, _NAMES) if name), ""), 1)


def blocks(items: Sequence[T], size: int = BLOCK) -> list[list[T]]:
    """The items in lists of so many."""
    return [list(items[k : k + size]) for k in range(0, len(items), size)]


# Images.


def draw_images(folder: Path, count: int = IMAGES) -> list[str]:
    """Write smooth random pictures, each tenth a darker, noisy copy; returns their files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [str(folder / f"{k:05d}.png") for k in range(count)]
    for k, file in enumerate(files):
        is_copy = k % COPY_EVERY == COPY_EVERY - 1
        rng = np.random.default_rng(k - COPY_EVERY + 1 if is_copy else k)
        coarse = rng.integers(0, 256, (WAVES, WAVES, 3), dtype=np.uint8)
        pixels = np.asarray(Image.fromarray(coarse).resize((SIDE, SIDE), Image.Resampling.BICUBIC))
        if is_copy:
            noise = np.random.default_rng(k).integers(-4, 5, pixels.shape)
            pixels = np.clip(pixels * 0.9 + noise, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(file, compress_level=1)
    return files


def thumbnail(file: str) -> np.ndarray:
    """[pixels, pixels] of a picture, small and grey."""
    for _ in range(slowness()):
        with Image.open(file) as picture:
            small = picture.convert("L").resize((THUMB, THUMB), Image.Resampling.LANCZOS)
    return np.asarray(small)


def embedding(small: np.ndarray) -> np.ndarray:
    """[waves²] its slowest cosine waves, in whole numbers: the same on every machine."""
    for _ in range(slowness()):
        waves = _COSINES @ (small - small.mean()) @ _COSINES.T
    return np.rint(waves.reshape(-1)).astype(np.int32)


def near_duplicates(embeddings: Iterable[np.ndarray]) -> list[tuple[int, int]]:
    """Pairs of images that look alike, in order."""
    found = np.stack(list(embeddings)).astype(float)
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    first, second = np.nonzero(np.triu(found @ found.T > LIKE, 1))
    return list(zip(first.tolist(), second.tolist(), strict=True))


# Chains that sleep.


def chains(count: int = CHAINS, seed: int = 0) -> list[list[float]]:
    """Seconds of each stage of each chain: skewed, so that some chains are long."""
    drawn = np.random.default_rng(seed).lognormal(-(SIGMA**2) / 2, SIGMA, (count, STAGES))
    return [[round(float(MEAN_S * each), 4) for each in row] for row in drawn]


def ideal_s(paced: Sequence[Sequence[float]]) -> float:
    """No two workers of these speeds end sooner: all of the work, or the longest chain on the fast one."""
    speed = sum(1.0 / slow for slow in WORKERS.values())
    return max(sum(map(sum, paced)) / speed, *map(sum, paced))


def step(chain: int, stage: int, seconds: float, before: float) -> float:
    """One stage: sleep, and add to what the stages before were told to sleep."""
    _note(chain, stage)
    time.sleep(seconds * slowness())
    _die_if_told(chain, stage)
    return round(before + seconds, 4)


def nothing(number: int) -> int:
    """A task without work."""
    return number


def _note(chain: int, stage: int) -> None:
    """One line for each time that a stage begins."""
    if folder := os.environ.get(FOLDER):
        with Path(folder, "log").open("a") as log:
            log.write(f"{chain} {stage} {slowness()}\n")


def begun(folder: Path) -> list[tuple[int, int, int]]:
    """(chain, stage, slowness of its worker) each time that a stage began; forgets them."""
    log = folder / "log"
    lines = log.read_text().splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    return [(int(a), int(b), int(c)) for a, b, c in map(str.split, lines)]


def plan_death(folder: Path, chain: int, stage: int) -> None:
    """The process that next ends this stage is killed."""
    (folder / f"kill-{chain}-{stage}").touch()


def _die_if_told(chain: int, stage: int) -> None:
    folder = os.environ.get(FOLDER)
    told = Path(folder, f"kill-{chain}-{stage}") if folder else None
    if told is not None and told.exists():
        told.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


# For tiny programs that show what an engine can express.


def nap(number: int) -> tuple[int, float, float]:
    """The number, and when the nap began and ended."""
    begun_s = time.time()
    time.sleep(NAPS_S)
    return number, begun_s, time.time()


def overlap(naps: list[tuple[int, float, float]]) -> bool:
    """Whether all went on at one time."""
    return max(begun for _, begun, _ in naps) < min(ended for *_, ended in naps)


class Counter:
    """Counts its calls."""

    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        self.count += 1
        return self.count


# Everything in plain Python, in this process.


def plain(files: Sequence[str], paced: Sequence[Sequence[float]]) -> dict[str, Any]:
    """What each engine has to give, without sleeping."""
    totals = []
    for row in paced:
        total = 0.0
        for seconds in row:
            total = round(total + seconds, 4)
        totals.append(total)
    return {"images": near_duplicates(embedding(thumbnail(file)) for file in files), "paced": totals}


def without_place(error: str) -> str:
    """The beginning of what an error says, up to a path among temporary files: those are this run's own."""
    return error.partition(tempfile.gettempdir())[0].rstrip(" '")[:200]
