"""Error messages for failures in a policy's own code, with the line of that code."""

from __future__ import annotations

import linecache
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from trimtab.compiled.kernel import kernel
from trimtab.domain.policy import Policy
from trimtab.domain.view import Memory, Plan, View, can_take
from trimtab.errors import PolicyError

_PACKAGE = Path(__file__).parents[1]
_POLICIES = _PACKAGE / "policies"
_LIBRARIES = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]


class BadDecision(Exception):  # noqa: N818 - a signal between a policy's adapter and the driver
    """A policy in plain Python returned no valid decision."""

    def __init__(self, problem: str, expected: str) -> None:
        super().__init__(problem)
        self.problem, self.expected = problem, expected


def policy_failure(label: str, error: BaseException | None, when: str) -> PolicyError:
    """The PolicyError for a policy's exception. `error` keeps only the frames of the policy's own code."""
    assert error is not None  # what `Raised` was raised from
    if isinstance(error, BadDecision):
        return PolicyError(f"policy {label!r} {error.problem} {when}; expected {error.expected}")
    error.__traceback__ = _of_policy(error.__traceback__)
    line = line_of(error)
    return PolicyError(f"policy {label!r} raised {error!r} {when}" + (f"\n  {line}" if line else ""))


def line_of(error: BaseException) -> str:
    """The user's line that raised: `file:line, in function: source`; empty if no such frame is left.

    The line belongs to the deepest frame outside Python's library and installed packages. For an installed
    policy it is the line of the last entry into the policy.
    """
    traceback = _of_policy(error.__traceback__)
    if traceback is None:
        return ""
    found, step = traceback, traceback.tb_next
    while step is not None:
        if not _is_library(_file_of(step)):
            found = step
        step = step.tb_next
    file, name = found.tb_frame.f_code.co_filename, found.tb_frame.f_code.co_name
    source = linecache.getline(file, found.tb_lineno).strip()
    return f"{_shown(file)}:{found.tb_lineno}, in {name}" + (f": {source}" if source else "")


def place_of(function: Callable[..., Any]) -> str:
    """The place of a user's function: `file:line, in function`; empty for one of trimtab's own."""
    code = getattr(function, "__code__", None)
    if code is None or _is_ours(Path(code.co_filename)):
        return ""
    return f"{_shown(code.co_filename)}:{code.co_firstlineno}, in {code.co_name}"


def _of_policy(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback from the policy's first frame on."""
    while traceback is not None and _is_ours(_file_of(traceback)):
        traceback = traceback.tb_next
    return traceback


def _file_of(traceback: TracebackType) -> Path:
    return Path(traceback.tb_frame.f_code.co_filename)


def _is_ours(file: Path) -> bool:
    return file.is_relative_to(_PACKAGE) and not file.is_relative_to(_POLICIES)


def _is_library(file: Path) -> bool:
    return _is_ours(file) or not file.is_absolute() or any(file.is_relative_to(p) for p in _LIBRARIES)


def _shown(file: str) -> str:
    """Relative to the current folder where the file lies in it."""
    path, here = Path(file), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else file


class Fallback(Policy):
    """Least connections by a scan without memory, so it can decide at any time. O(nodes)."""

    @staticmethod
    @kernel
    def dispatch(view: View, plan: Plan, work: Any, memory: Memory, draws: Any, ranking: Any) -> int:
        """Choose the node that can take the work and has the least in flight per slot, ties by node."""
        best, nodes = -1, view.nodes
        for j in range(view.context.n_nodes):
            if can_take(view, work, j) and (
                best < 0 or nodes.in_flight[j] * nodes.slots[best] < nodes.in_flight[best] * nodes.slots[j]
            ):
                best = j
        ranking[0] = best
        return 1 if best >= 0 else 0
