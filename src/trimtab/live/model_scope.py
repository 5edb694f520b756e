"""How the models of a stage are to run, and what was measured of them: between a stage's code and its worker.

Imports little, because every worker process loads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class ModelRecord(NamedTuple):
    """A model as it runs, beside the plain one. Memory is what the process holds more; nan = not measured."""

    model: str
    how: str  # numbers, runtime, share of weights that are pruned
    error: float  # of the outputs: ‖optimised - plain‖ / ‖plain‖, the largest of all examples
    tolerance: float
    plain_s: float  # of a call with an example, the median
    call_s: float
    plain_bytes: int  # of the model as a file
    file_bytes: int
    plain_memory_bytes: float
    memory_bytes: float


@dataclass
class ModelScope:
    """Of one attempt: the stage's option `optimise`, and the models that were optimised meanwhile."""

    optimise: Mapping[str, Any]
    records: list[ModelRecord] = field(default_factory=list)


SCOPE: ContextVar[ModelScope | None] = ContextVar("models", default=None)
"""The attempt that runs here."""


@contextmanager
def models_of(optimise: Mapping[str, Any]) -> Iterator[ModelScope]:
    """Context in which a stage's code runs."""
    scope = ModelScope(optimise)
    token = SCOPE.set(scope)
    try:
        yield scope
    finally:
        SCOPE.reset(token)
