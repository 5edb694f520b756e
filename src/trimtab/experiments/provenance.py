"""Where results come from: settings, policies, files and the command line, so that they can be made again."""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from trimtab.domain.parameters import artifacts_of
from trimtab.validation.tuned_policy import placed, spelled

_CHUNK_BYTES: Final = 1 << 20
_PACKAGE: Final = "trimtab."
PATH_KEYS: Final = ("file", "profiles", "estimate_profiles")  # of settings, whose values are paths


def made_by(content: Mapping[str, Any], policies: Sequence[tuple[str, Sequence[object]]]) -> dict[str, Any]:
    """The software and the machine that made results.

    `content` are the settings' values, `policies` each policy's name, as it can be given again, and its
    objects. Files that are gone meanwhile have no hash.
    """
    placed = _absolute(content)
    return {
        "command": _command(),
        "scenario_yaml": yaml.safe_dump(placed, sort_keys=False, allow_unicode=True),
        "policies": [_absolute_spec(name) for name, _ in policies],
        "files": {str(path): sha256_of(path) for path in _files(placed, policies)},
    }


def _absolute(value: Any) -> Any:
    """The values with whole paths of files, which then hold in every folder."""
    if isinstance(value, Mapping):
        return {key: _path(inner) if key in PATH_KEYS else _absolute(inner) for key, inner in value.items()}
    return [_absolute(inner) for inner in value] if isinstance(value, list | tuple) else value


def _path(value: Any) -> Any:
    return str(Path(value).absolute()) if isinstance(value, str | os.PathLike) else _absolute(value)


def _absolute_spec(name: str) -> str:
    """A policy as it is spelled, one of `trimtab tune` too; with whole paths of files."""
    return placed(spelled(name), Path.cwd())


def _command() -> list[str] | None:
    """The command line; None in a program of the user's own."""
    program = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else ""
    is_ours = program == "trimtab" or program == "__main__.py"  # python -m trimtab
    return ["trimtab", *sys.argv[1:]] if is_ours else None


def _files(content: Mapping[str, Any], policies: Sequence[tuple[str, Sequence[object]]]) -> Iterator[Path]:
    """The files that figures depend on: traces, profiles, policies of the user's own, learned weights."""
    yield from dict.fromkeys(_named_files(content))
    objects = [part for _, parts in policies for part in parts]
    weights = (artifact.path for part in objects for artifact in artifacts_of(part) if artifact.path)
    yield from (Path(path).absolute() for path in dict.fromkeys(weights))
    classes = dict.fromkeys(map(type, objects))
    own = (cls for cls in classes if not cls.__module__.startswith(_PACKAGE))
    for cls in own:
        try:
            yield Path(inspect.getfile(cls))
        except (OSError, TypeError):  # made in a notebook
            continue


def _named_files(value: Any) -> Iterator[Path]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key in PATH_KEYS and isinstance(inner, str):
                yield Path(inner)
            else:
                yield from _named_files(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _named_files(inner)


def sha256_of(path: Path) -> str | None:
    """Hash of a file, or of all files of a folder with their names; None if it is not there."""
    if not path.exists():
        return None
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            if path.is_dir():
                digest.update(str(file.relative_to(path)).encode() + b"\0")
            with file.open("rb") as stream:
                while chunk := stream.read(_CHUNK_BYTES):
                    digest.update(chunk)
    return digest.hexdigest()


def file_stamp(path: Path) -> tuple[int, int]:
    """Size and modification time of a file, to notice that it was written anew. Zeros without a file."""
    found = path.stat() if path.exists() else None
    return (0, 0) if found is None else (found.st_size, found.st_mtime_ns)
