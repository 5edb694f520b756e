"""Virtual environments with some of the packages that are installed here, linked: nothing is downloaded."""

from __future__ import annotations

import sysconfig
import venv
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def linked_environment(folder: Path, requirements: Iterable[str]) -> Path:
    """The Python of a new environment with these requirements, all that they need, and nothing else.

    `trimtab` itself is not linked, only its metadata: its source is to be on the path.
    """
    venv.create(folder, symlinks=True)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    seen, left = set(), [Requirement(text) for text in requirements]
    while left:
        wanted = left.pop()
        key = (canonicalize_name(wanted.name), frozenset(wanted.extras))
        if key in seen:
            continue
        seen.add(key)
        of = distribution(wanted.name)
        for top in {file.parts[0] for file in of.files or ()} - {"..", "__pycache__", "trimtab"}:
            if not top.endswith(".pth") and not (site / top).exists():
                (site / top).symlink_to(str(of.locate_file(top)))
        for needed in map(Requirement, of.requires or ()):
            extras = wanted.extras | {""}
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                left.append(needed)
    return Path(sysconfig.get_path("scripts", "venv", {"base": str(folder)})) / "python"
