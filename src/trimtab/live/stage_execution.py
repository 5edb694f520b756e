"""Runs attempts of stages where a worker is: loads code once, calls it, and reports an Outcome.

Imports little, because every worker process loads it.

Logs of stages' own code: each record has the run, stage and attempt in which it was made.

A stage that configures logging itself finds `record.run`, `record.stage`, `record.instance` and
`record.attempt`. Elsewhere warnings go to standard error with them.
"""

from __future__ import annotations

import errno
import importlib
import logging
import os
import sysconfig
import time
import traceback
import typing
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from typing import Any, Final, NamedTuple

from trimtab.live.declared_types import misfit, shown
from trimtab.live.model_scope import models_of
from trimtab.live.shared_state import states_at
from trimtab.live.stage_backend import (
    BEFORE,
    ERROR_CHARS,
    Argument,
    Attempt,
    Cause,
    Outcome,
    Path,
    Ref,
    StageCode,
    StageError,
    in_one,
    shortened,
)
from trimtab.live.stage_profiling import Profiler, profiler_of
from trimtab.live.value_codec import Unserialisable, at_path, decode, encode, items_of

_LIBRARIES: Final = (
    str(FilePath(__file__).parents[1]),
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)
_PERMANENT: Final = (ImportError, SyntaxError, NameError, NotImplementedError)
"""Of the stage's code itself: another attempt raises them again."""

Read = Callable[[Ref], "bytes | memoryview"]
Write = Callable[[bytes], Ref]


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class StageContext:
    """The context of a stage: the attempt that runs it.

    A stage with effects outside gives them `idempotency_key`: it is the same in every attempt.
    """

    run: str
    stage: str
    index: int
    attempt: int
    idempotency_key: str
    is_cancelled: Callable[[], bool] = field(default=_never, compare=False)


class Cancelled(BaseException):
    """Raised in the code of a stage that is cancelled."""


@dataclass(frozen=True, slots=True)
class Imported:
    """A function or class that workers import. A decorated one is found under its own name too."""

    module: str
    qualname: str

    def resolve(self) -> Any:
        """The function or class."""
        found: Any = importlib.import_module(self.module)
        for name in self.qualname.split("."):
            found = getattr(found, name)
        return plain_code(found)


def plain_code(found: Any) -> Any:
    """The function or class behind a declared stage or state."""
    known = getattr(found, "__dict__", {})
    return known.get("stage_code", known.get("state_code", found))


class _Reach(NamedTuple):
    """The worker's services for an attempt."""

    read: Read
    write: Write
    is_cancelled: Callable[[], bool]


class LoadedStages:
    """The stages that a worker can run. Classes are constructed at their first attempt.

    Args:
        imported: called when the code of a stage is there, before its class is constructed.
    """

    def __init__(self, stages: Iterable[StageCode], imported: Callable[[], None] = lambda: None) -> None:
        self._imported = imported
        self._codes = {stage.name: stage for stage in stages}
        self._calls: dict[str, Callable[..., Any]] = {}
        self._output_types: dict[str, Any] = {}

    def code(self, name: str) -> StageCode:
        """The description of a stage."""
        return self._codes[name]

    def load(self, name: str) -> Callable[..., Any]:
        """The function of a stage; loads it at first."""
        found = self._calls.get(name)
        if found is None:
            found = decode(self._codes[name].code)
            if isinstance(found, Imported):
                found = found.resolve()
            self._imported()
            if self._codes[name].is_class:
                found = found()
            self._calls[name], self._output_types[name] = found, _output_type(found)
        return found

    def output_type(self, name: str) -> Any:
        """The declared type of a loaded stage's output."""
        return self._output_types[name]


def _output_type(call: Any) -> Any:
    code = call if hasattr(call, "__code__") else type(call).__call__
    try:
        return typing.get_type_hints(code).get("return", Any)
    except Exception:  # names that are not there at run time
        return Any


def execute(
    stages: LoadedStages,
    attempt: Attempt,
    inputs: Sequence[Argument],
    read: Read,
    write: Write,
    is_cancelled: Callable[[], bool] = _never,
) -> Outcome:
    """Run an attempt here, and those that follow it until one fails. Every failure becomes an outcome.

    `read` finds what `write` has written.
    """
    reach = _Reach(read, write, is_cancelled)
    return in_order(attempt, inputs, lambda each, known: _run(stages, each, known, reach))


def in_order(
    attempt: Attempt,
    inputs: Sequence[Argument],
    run: Callable[[Attempt, Sequence[Argument]], Outcome],
) -> Outcome:
    """Run an attempt, and those that follow it until one fails; `run` runs one of them."""
    outcomes = [run(attempt, inputs)]
    while attempt.then is not None and outcomes[-1].error is None:
        before, following = outcomes[-1].outputs[0], attempt.then
        attempt = following.attempt
        outcomes.append(run(attempt, [_known(argument, before) for argument in following.inputs]))
    return in_one(outcomes)


def _known(argument: Argument, before: Ref) -> Argument:
    """An argument with the output of the attempt before in its place."""
    if BEFORE not in argument.refs:
        return argument
    return replace(argument, refs=tuple(before if ref == BEFORE else ref for ref in argument.refs))


def by_worker(outcome: Outcome, worker: str, peak_gib: float) -> Outcome:
    """An outcome with the worker that ran it, and the peak of its memory."""
    return in_one([replace(o, worker=worker, peak_gib=peak_gib, then=None) for o in outcome.in_turn])


def _run(stages: LoadedStages, attempt: Attempt, inputs: Sequence[Argument], reach: _Reach) -> Outcome:
    code = stages.code(attempt.stage)
    with models_of(code.optimise) as models, states_at(code.states):
        outcome = _loaded_and_run(code, stages, attempt, inputs, reach)
    return replace(outcome, models=tuple(models.records)) if models.records else outcome


def _loaded_and_run(
    code: StageCode, stages: LoadedStages, attempt: Attempt, inputs: Sequence[Argument], reach: _Reach
) -> Outcome:
    begun_s = time.perf_counter()
    try:
        call = stages.load(attempt.stage)
        profiler = profiler_of(code.profile) if code.profile else None
    except Exception as error:
        return Outcome(error=_failed(error, Cause.LOAD_FAILED))
    load_s = time.perf_counter() - begun_s
    token = CURRENT.set(attempt)
    try:
        output_type = stages.output_type(attempt.stage)
        outcome = _executed(code, call, attempt, inputs, reach, output_type, profiler)
    finally:
        CURRENT.reset(token)
    return replace(outcome, load_s=load_s)


def _executed(
    code: StageCode,
    call: Callable[..., Any],
    attempt: Attempt,
    inputs: Sequence[Argument],
    reach: _Reach,
    output_type: Any,
    profiler: Profiler | None,
) -> Outcome:
    try:
        arguments = bound(inputs, reach.read)
        if code.context_name:
            of_each = [_context(each, reach.is_cancelled) for each in attempt.members or (attempt,)]
            arguments[code.context_name] = of_each if code.is_batch else of_each[0]
    except Exception as error:
        return Outcome(error=_failed(error, Cause.INPUT_LOST))
    begun_s = time.perf_counter()
    try:
        output = call(**arguments) if profiler is None else profiler.run(call, arguments)
    except Cancelled:
        return Outcome(error=StageError(Cause.CANCELLED), service_s=time.perf_counter() - begun_s)
    except MemoryError as error:
        return Outcome(error=_failed(error, Cause.OUT_OF_MEMORY), service_s=time.perf_counter() - begun_s)
    except Exception as error:
        cause = Cause.PERMANENT if isinstance(error, _PERMANENT) else Cause.RAISED
        return Outcome(error=_failed(error, cause), service_s=time.perf_counter() - begun_s)
    service_s = time.perf_counter() - begun_s
    outcome = replace(_told(output, output_type, code, reach.write), service_s=service_s)
    return outcome if profiler is None else replace(outcome, profile=profiler.statistics())


def _context(attempt: Attempt, is_cancelled: Callable[[], bool]) -> StageContext:
    told = attempt.run, attempt.stage, attempt.index, attempt.attempt, attempt.idempotency_key
    return StageContext(*told, is_cancelled)


def bound(inputs: Sequence[Argument], read: Read) -> dict[str, Any]:
    """The arguments of a call by name."""
    values: dict[str, Any] = {}  # of this call, by digest: an output may be read at several paths
    return {argument.name: _value_of(argument, read, values) for argument in inputs}


def _value_of(argument: Argument, read: Read, values: dict[str, Any]) -> Any:
    found = [_one(ref, argument.path, read, values) for ref in argument.refs if ref is not None]
    if argument.is_list:
        return found
    return found[0] if found else None


def _one(ref: Ref, path: Path, read: Read, values: dict[str, Any]) -> Any:
    if not path:
        return decode(read(ref))
    if ref.digest not in values:
        values[ref.digest] = decode(read(ref))
    return at_path(values[ref.digest], path)


def _told(output: Any, output_type: Any, code: StageCode, write: Write) -> Outcome:
    """The outputs of a stage as values, if they are of its declared type."""
    if (bad := misfit(output, output_type)) is None:
        return written(output, code, write)
    message = (
        f"its output{bad.path} is of another type (got {shown(bad.found)}); expected {shown(bad.wanted)}, "
        "as the stage declares"
    )
    return Outcome(error=StageError(Cause.PERMANENT, "TypeError", message))


def written(output: Any, code: StageCode, write: Write) -> Outcome:
    """The outputs of a stage as values."""
    try:
        refs, counts = [write(encode(None if code.is_batch else output))], []
        tests = tuple(bool(at_path(output, path)) for path in code.tests)
        for path in code.splits:
            items = items_of(at_path(output, path))
            counts.append(len(items))
            refs += [write(encode(item)) for item in items]
    except Unserialisable as error:
        message = f"{error}; expected an output that pickles, such as a list in place of a generator"
        return Outcome(error=StageError(Cause.UNSERIALISABLE, "", message))
    except OSError as error:
        cause = Cause.DISK_FULL if error.errno in (errno.ENOSPC, errno.EDQUOT) else Cause.RAISED
        return Outcome(error=_failed(error, cause))
    except Exception as error:  # no such path in the output, or no list there
        return Outcome(error=_failed(error, Cause.RAISED))
    return Outcome(outputs=tuple(refs), fan_out=tuple(counts), tests=tests)


def _failed(error: BaseException, cause: Cause) -> StageError:
    lines = traceback.format_exception(error)
    trace = "".join(shortened(line, ERROR_CHARS) for line in lines)
    return StageError(cause, type(error).__name__, _text_of(error), trace, _where(error))


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "its text cannot be made"


def _where(error: BaseException) -> str:
    """File, line and function of the last call outside of trimtab and libraries; "" = there is none."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_library(frame.filename)]
    if not own:
        return ""
    file = own[-1].filename
    short = file.removeprefix(os.getcwd() + os.sep)
    return f"{short}:{own[-1].lineno} in {own[-1].name}"


def _is_library(file: str) -> bool:
    return file.startswith(("<frozen", *_LIBRARIES))


CURRENT: ContextVar[Attempt | None] = ContextVar("attempt", default=None)
"""The attempt that runs here."""

FORMAT = "%(levelname)s [%(run)s %(stage)s[%(instance)s] attempt %(attempt)s] %(name)s: %(message)s"


def install() -> None:
    """Give all records of this process the attempt in which they are made."""
    make = logging.getLogRecordFactory()

    def made(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record, attempt = make(*args, **kwargs), CURRENT.get()
        record.run = attempt.run if attempt else ""
        record.stage = attempt.stage if attempt else ""
        record.instance, record.attempt = (attempt.index, attempt.attempt) if attempt else ("", "")
        return record

    logging.setLogRecordFactory(made)
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(logging.Formatter(FORMAT))
