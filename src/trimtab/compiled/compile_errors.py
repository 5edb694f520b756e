"""Turns numba's report on a kernel that does not compile into a line of the user's file and a reason."""

from __future__ import annotations

import linecache
import os
import re
from pathlib import Path
from typing import Any

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_DIGESTS = re.compile(r"#[0-9a-f]{16}\b")  # of table types
_PLACE = re.compile(
    r'File "(?P<file>[^"]+)", line (?P<line>\d+)|(?:at|from) (?P<at>\S[^\n]*?) \((?P<n>\d+)\)'
)
_NOISE = ("Failed in nopython mode pipeline", "During:", "File ")


def explained(function: Any, error: BaseException) -> str:
    """Message with the kernel, the place, the reason and the source line."""
    report = _DIGESTS.sub("", _COLOURS.sub("", str(error)))
    file, line = _place(function, report, getattr(error, "loc", None))
    source = linecache.getline(file, line).strip()
    where = f"{_shown(file)}:{line}"
    text = f"kernel {function.py_func.__qualname__} does not compile: {where}: {_reason(report)}"
    return f"{text}\n    {source}" if source else text


def _place(function: Any, report: str, fallback: Any) -> tuple[str, int]:
    """The innermost place in numba's report, else the error's own place, else the start of the kernel."""
    for match in _PLACE.finditer(report):
        file = os.path.abspath(match["file"] or match["at"])
        if Path(file).is_file():
            return file, int(match["line"] or match["n"])
    if fallback is not None and Path(fallback.filename).is_file():
        return fallback.filename, fallback.line
    code = function.py_func.__code__
    return code.co_filename, code.co_firstlineno


def _reason(report: str) -> str:
    lines = [line.strip() for line in report.splitlines()]
    telling = [line for line in lines if line and not line.startswith(_NOISE)] or [report.strip()]
    calls = [line.removeprefix(">>> ") for line in telling if line.startswith(">>> ")]
    if telling[0].startswith("No implementation of function") and calls:
        return f"no implementation of {calls[0]}"
    return _PLACE.sub("", telling[0]).strip().removesuffix("Raised").rstrip(" .,:")


def _shown(file: str) -> str:
    """The shorter of the absolute path and the one from here."""
    relative = os.path.relpath(file)
    return file if relative.startswith("..") else relative
