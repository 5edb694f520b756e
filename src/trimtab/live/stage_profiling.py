"""Profiles of a stage's code in its worker: by function with cProfile, by line with line_profiler."""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any, Protocol

CALLS, LINES = "calls", "lines"
"""What a StageCode says of its profile; "" = it has none."""


class Profiler(Protocol):
    """Runs a call, and tells its statistics."""

    def run(self, call: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """What the call returns."""

    def statistics(self) -> bytes:
        """Of the calls so far, marshalled."""


def profiler_of(kind: str) -> Profiler:
    """A profiler for one attempt. Raises ImportError where line_profiler is not installed."""
    return ByLine() if kind == LINES else ByCall()


class ByCall:
    """With cProfile: its table of functions."""

    def __init__(self) -> None:
        from cProfile import Profile  # few workers need it

        self._profile = Profile()

    def run(self, call: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """What the call returns."""
        return self._profile.runcall(call, **arguments)

    def statistics(self) -> bytes:
        """The table."""
        self._profile.create_stats()
        return marshal.dumps(self._profile.stats)


class ByLine:
    """With line_profiler: the lines of the stage and of all functions and methods of its module."""

    def __init__(self) -> None:
        from line_profiler import LineProfiler

        self._profile = LineProfiler()

    def run(self, call: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """What the call returns."""
        for function in _functions(call):
            self._profile.add_function(function)
        return self._profile.runcall(call, **arguments)

    def statistics(self) -> bytes:
        """Seconds of the unit of time, and for each function its lines with hits and units."""
        found = self._profile.get_stats()
        timings = {key: [tuple(row) for row in rows] for key, rows in found.timings.items() if rows}
        return marshal.dumps((found.unit, timings))


def _functions(call: Callable[..., Any]) -> Iterator[FunctionType]:
    """The function of a stage, and all functions and methods that its module defines, each once."""
    own: Any = call if isinstance(call, FunctionType) else type(call)
    made_in = own if isinstance(own, FunctionType) else own.__call__
    seen: set[Any] = set()
    for each in map(_undecorated, (own, *list(made_in.__globals__.values()))):
        if getattr(each, "__module__", None) != own.__module__:
            continue
        for member in map(_undecorated, vars(each).values() if isinstance(each, type) else (each,)):
            if isinstance(member, FunctionType) and member.__code__ not in seen:
                seen.add(member.__code__)
                yield member


def _undecorated(found: Any) -> Any:
    """The function or class behind a decorated one."""
    while not isinstance(found, FunctionType | type) and "__wrapped__" in getattr(found, "__dict__", {}):
        found = found.__wrapped__
    return found
