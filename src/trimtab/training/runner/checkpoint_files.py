"""Checkpoints: folders that get their name when they are whole and on the disk. Standard library only.

A job's folder of checkpoints has one folder for each generation, `g000003`, with one folder for each
checkpoint, `step-000000000120`: the files that the job wrote, and a manifest of generation, step, samples,
and size and SHA-256 of each file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trimtab.errors import TrimtabError

MANIFEST: Final = "manifest.json"
_PART, _REFUSED = ".part", ".refused"
_BLOCK_BYTES: Final = 1 << 20


class CheckpointRefused(TrimtabError):  # noqa: N818 - reads as the sentence it prints
    """A checkpoint that is not to be used; the message names it and says why."""


class StaleGeneration(TrimtabError):  # noqa: N818 - reads as the sentence it prints
    """A newer generation of the job has begun: this one writes no checkpoint."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that is whole."""

    path: Path
    generation: int
    step: int
    samples: int


def generation_folder(root: Path, generation: int) -> Path:
    """Where the checkpoints of a generation are."""
    return root / f"g{generation:06d}"


def write_checkpoint(
    folder: Path, generation: int, step: int, samples: int, write: Callable[[Path], Any], fence: Path | None
) -> Path:
    """Write a checkpoint whole or not at all: `write` puts its files into the folder that it is given.

    Raises OSError, and StaleGeneration where the file `fence` names a newer generation.
    """
    path = folder / f"step-{step:012d}"
    part = path.with_name(path.name + _PART)
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        write(part)
        files = {name: _kept(part / name) for name in _names(part)}
        told = {"generation": generation, "step": step, "samples": samples, "files": files}
        (part / MANIFEST).write_text(json.dumps(told), encoding="utf-8")
        _kept(part / MANIFEST)
        _flush_folder(part)
        _refuse_stale(fence, generation)
        shutil.rmtree(path, ignore_errors=True)  # of the same step: it has the same content
        part.rename(path)
        _flush_folder(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return path


def _names(folder: Path) -> Iterator[str]:
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            yield str(file.relative_to(folder))


def _kept(file: Path) -> dict[str, Any]:
    """Put a file on the disk; its size and digest."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return {"bytes": file.stat().st_size, "sha256": _digest(file)}


def _digest(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refuse_stale(fence: Path | None, generation: int) -> None:
    if fence is None:
        return
    with contextlib.suppress(FileNotFoundError):
        newest = int(fence.read_text())
        if newest > generation:
            raise StaleGeneration(f"generation {newest} of the job has begun, this is {generation}")


def read_checkpoint(path: Path) -> Checkpoint:
    """A checkpoint, checked: whole, and of the generation whose folder it is in. Raises CheckpointRefused."""
    try:
        told = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        generation, step, samples = (int(told[name]) for name in ("generation", "step", "samples"))
        files = dict(told["files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointRefused(f"{path}: no manifest that can be read ({error})") from error
    if generation_folder(path.parent.parent, generation) != path.parent:
        raise CheckpointRefused(f"{path}: written by generation {generation}, another than its folder's")
    for name, kept in files.items():
        file = path / name
        size = file.stat().st_size if file.is_file() else -1
        if size != kept["bytes"]:
            found = "missing" if size < 0 else f"truncated, {size} bytes"
            raise CheckpointRefused(f"{file}: {found}; expected {kept['bytes']} bytes")
        if _digest(file) != kept["sha256"]:
            raise CheckpointRefused(f"{file}: has other content than when it was written")
    return Checkpoint(path, generation, step, samples)


def newest_checkpoint(root: Path, *, may_rename: bool = True) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint of a job that is good, and what is wrong with newer ones, which are set aside."""
    problems: list[str] = []
    for path in _newest_first(root):
        try:
            return read_checkpoint(path), problems
        except CheckpointRefused as refused:
            problems.append(str(refused))
            if may_rename:
                set_aside(path)
    return None, problems


def set_aside(path: Path) -> None:
    """Rename a checkpoint, so that nothing goes on from it."""
    aside = path.with_name(path.name + _REFUSED)
    shutil.rmtree(aside, ignore_errors=True)
    with contextlib.suppress(OSError):
        path.rename(aside)


def link_newest(found: Checkpoint, link: Path) -> None:
    """Let `link` name the folder of a checkpoint, instead of the one before. Raises OSError."""
    new = link.with_name(link.name + _PART)
    new.unlink(missing_ok=True)
    new.symlink_to(os.path.relpath(found.path, link.parent), target_is_directory=True)
    new.rename(link)


def prune(root: Path, keep: int = 2) -> None:
    """Delete all but the newest checkpoints."""
    for path in _newest_first(root)[keep:]:
        shutil.rmtree(path, ignore_errors=True)


def _newest_first(root: Path) -> list[Path]:
    found = (path for path in root.glob("g[0-9]*/step-*") if path.suffix not in (_PART, _REFUSED))
    return sorted(found, key=lambda path: (path.parent.name, path.name), reverse=True)
