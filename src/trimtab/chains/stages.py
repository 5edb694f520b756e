"""Stages: functions and classes with what they need, how often they are tried, and how long they take."""

from __future__ import annotations

import collections.abc
import functools
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any, Protocol

from trimtab.chains.optimise_options import optimise_options
from trimtab.errors import ChainError
from trimtab.live.declared_types import class_of, fits, shown
from trimtab.live.shared_state import Shared
from trimtab.live.stage_execution import StageContext


def check_fits(given: Any, wanted: Any, where: str) -> None:
    """Raise ChainError if a value of type `given` can't be meant for `wanted`. What is unknown fits."""
    if not fits(given, wanted):
        raise ChainError("a value of another type", field=where, value=shown(given), expected=shown(wanted))


def item_type(given: Any, where: str) -> Any:
    """The type of the items of a list type. Raises ChainError for what has no items."""
    kind = class_of(given)
    if given is Any or kind is None:
        return Any
    if kind in (str, bytes) or not issubclass(kind, collections.abc.Iterable):
        raise ChainError("maps over what is no list", field=where, value=shown(given), expected="a list")
    arguments = typing.get_args(given)
    return arguments[0] if arguments and not issubclass(kind, collections.abc.Mapping) else Any


_FROM_ZERO = (
    "cpu", "gpu", "memory_gib", "backoff_s", "backoff_max_s", "cost_s", "rate_per_s", "speculate",
    "batch_wait_s",
)  # fmt: skip
_ON_FAILURE = ("fail", "skip", "default")


@dataclass(frozen=True, slots=True)
class StageOptions:
    """The options of a stage. Each can be overridden where the stage is used (`stage.options(…)`)."""

    cpu: float = 1.0
    gpu: float = 0.0  # may be a fraction
    memory_gib: float = 0.0
    accelerator: str = ""  # type of accelerator that its node must have
    labels: Mapping[str, str] = field(default_factory=dict)  # that its node must have
    retries: int = 2  # further attempts after an error of its code
    backoff_s: float = 0.5  # before the first of them; doubles, up to `backoff_max_s`, with jitter
    backoff_max_s: float = 30.0
    timeout_s: float = float("inf")
    deterministic: bool = False  # equal inputs give equal outputs: results may be used again
    version: str = ""  # part of what a kept result is known by; for code that others call
    cost_s: float = 0.0  # a hint, for each unit of `size`; 0 = none. What is measured takes its place
    on_failure: str = "fail"  # "fail" the run, "skip" the instance, or take the "default"
    default: Any = None
    failed_max_frac: float = 1.0  # of a map's instances that may be skipped or replaced
    concurrency: int = 0  # attempts at a time in all, a batch counts as one; 0 = no limit
    rate_per_s: float = 0.0  # attempts that start in a second, a batch counts as one; 0 = no limit
    speculate: float = 0.0  # second attempt elsewhere after this multiple of the learned time; 0 = never
    batch: int = 1  # most instances that one call serves; it takes and returns lists
    batch_wait_s: float = 0.0  # longest wait for a batch to fill
    optimise: Mapping[str, Any] = field(default_factory=dict)  # of its models: see `OptimiseOptions`
    state: Sequence[Shared] = ()  # that its code calls: classes with `shared`
    copies: int = 1  # of its large outputs: 2 = on another machine too, so that none is made again
    size: str = ""  # parameter that says how much work it is, by its number or length, if an input is given

    def __post_init__(self) -> None:
        """Check the ranges. Raises ChainError."""
        for name in _FROM_ZERO:
            _require(getattr(self, name) >= 0.0, name, getattr(self, name), "a number from 0 on")
        for name, least in (("retries", 0), ("concurrency", 0), ("batch", 1)):
            value = getattr(self, name)
            _require(
                isinstance(value, int) and value >= least, name, value, f"a whole number from {least} on"
            )
        if self.optimise:
            optimise_options(self.optimise)
        for each in self.state:
            _require(isinstance(each, Shared), "state", each, "classes with @shared(restart=…)")
        _require(self.copies in (1, 2), "copies", self.copies, "1 or 2")
        _require(self.timeout_s > 0.0, "timeout_s", self.timeout_s, "a number above 0")
        _require(0.0 <= self.failed_max_frac <= 1.0, "failed_max_frac", self.failed_max_frac, "0 to 1")
        is_limited = self.concurrency > 0 or self.rate_per_s > 0.0
        _require(
            self.batch == 1 or not self.speculate, "batch", self.batch, "1 with speculate",
        )  # fmt: skip
        _require(
            not (self.speculate and is_limited), "speculate", self.speculate, "0 with concurrency, rate_per_s"
        )
        _require(
            self.on_failure in _ON_FAILURE, "on_failure", self.on_failure, f"one of {', '.join(_ON_FAILURE)}"
        )
        is_whole = self.gpu <= 1.0 or self.gpu == int(self.gpu)
        _require(is_whole, "gpu", self.gpu, "a fraction of one GPU, or whole GPUs")

    @property
    def is_paced(self) -> bool:
        """Whether its attempts begin otherwise than one by one as places are free."""
        return bool(self.batch > 1 or self.concurrency or self.rate_per_s or self.speculate)

    def demand(self) -> dict[str, float]:
        """The resources that an attempt takes."""
        amounts = {"cpu": self.cpu, "gpu": self.gpu, "memory_gib": self.memory_gib}
        return {name: amount for name, amount in amounts.items() if amount > 0.0}

    def needed_labels(self) -> dict[str, str]:
        """The labels that a node must have."""
        return {**self.labels, **({"accelerator": self.accelerator} if self.accelerator else {})}


OPTION_NAMES = tuple(option.name for option in fields(StageOptions))


def _require(is_met: bool, name: str, value: object, expected: str) -> None:
    if not is_met:
        raise ChainError("out of range", field=name, value=value, expected=expected)


class Kind(Enum):
    """How the code of a stage is called."""

    FUNCTION = "function"
    CLASS = "class"  # constructed once per worker; its instances are called


class ChainBuilder(Protocol):
    """A chain under construction, to which calls of stages are added."""

    def takes(self, given: Iterable[Any]) -> bool:
        """Whether a call with these arguments is a part of the chain: one of them is not known yet."""

    def called(self, stage: Stage, args: Sequence[Any], kwargs: Mapping[str, Any], condition: Any) -> Any:
        """Add a call; returns its output to come."""

    def mapped(self, stage: Stage, items: Sequence[Any], shared: Mapping[str, Any], condition: Any) -> Any:
        """Add a map; returns its outputs to come."""


BUILDER: ContextVar[ChainBuilder | None] = ContextVar("builder", default=None)
"""The chain that is being built here."""


class Stage:
    """A declared stage. Called on plain values it runs at once; in a chain it becomes a part of the graph."""

    def __init__(self, code: Callable[..., Any], options: StageOptions, name: str = "") -> None:
        self.stage_code, self.stage_options = code, options
        self.name = name or getattr(code, "__name__", type(code).__name__).lower().strip("_<>")
        self.kind = Kind.CLASS if inspect.isclass(code) else Kind.FUNCTION
        functools.update_wrapper(self, code, updated=())

    @functools.cached_property
    def signature(self) -> inspect.Signature:
        """The parameters of its calls, without `self`."""
        if self.kind is Kind.FUNCTION:
            return inspect.signature(self.stage_code)
        call = inspect.signature(_call_of(self.stage_code))
        return call.replace(parameters=list(call.parameters.values())[1:])

    @functools.cached_property
    def hints(self) -> dict[str, Any]:
        """The types of its parameters and of its output (`return`), where they are declared."""
        code = self.stage_code if self.kind is Kind.FUNCTION else _call_of(self.stage_code)
        try:
            found = typing.get_type_hints(code)
        except Exception:  # names that only type checkers import
            return {}
        if not self.is_batched:
            return found
        return {name: item_type(kind, f"{self.name}.{name}") for name, kind in found.items()}

    @property
    def is_batched(self) -> bool:
        """Whether its code serves several instances in a call."""
        return self.stage_options.batch > 1

    @property
    def context_name(self) -> str:
        """The parameter that takes the attempt's context; "" = none."""
        for name in self.signature.parameters:
            hint = self.hints.get(name, self.signature.parameters[name].annotation)
            if hint is StageContext or name == "ctx":
                return name
        return ""

    def options(self, **changed: Any) -> Stage:
        """The same stage with other options."""
        for name in changed:
            if name not in OPTION_NAMES:
                raise ChainError(
                    "no such option",
                    field=self.name,
                    value=name,
                    expected=f"one of {', '.join(OPTION_NAMES)}",
                )
        return Stage(self.stage_code, replace(self.stage_options, **changed), self.name)

    def named(self, name: str) -> Stage:
        """The same stage under another name."""
        return Stage(self.stage_code, self.stage_options, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run now, or in a chain add a call of this stage."""
        builder = BUILDER.get()
        if builder is not None and builder.takes((*args, *kwargs.values())):
            return builder.called(self, args, kwargs, None)
        return self._here(*args, **kwargs)

    def map(self, *items: Any, **shared: Any) -> Any:
        """One instance for each item: of a list in a value, or of the instances of another map.

        Positional arguments are taken item by item, keyword arguments go to every instance.
        """
        builder = BUILDER.get()
        if builder is not None and builder.takes((*items, *shared.values())):
            return builder.mapped(self, items, shared, None)
        rows = list(zip(*items, strict=True))
        if self.is_batched:
            same = {name: [given] * len(rows) for name, given in shared.items()}
            return self._here(*map(list, zip(*rows, strict=True)), **same) if rows else []
        return [self._here(*each, **shared) for each in rows]

    def when(self, condition: Any) -> Conditional:
        """This stage, skipped where `condition` is not true."""
        return Conditional(self, condition)

    def _here(self, *args: Any, **kwargs: Any) -> Any:
        if self.context_name and self.context_name not in kwargs:
            here = StageContext("here", self.name, 0, 1, "here")
            given = [*args, *kwargs.values()]
            kwargs[self.context_name] = [here] * len(given[0]) if self.is_batched and given else here
        call = self.stage_code if self.kind is Kind.FUNCTION else self._instance
        return call(*args, **kwargs)

    @functools.cached_property
    def _instance(self) -> Any:
        return self.stage_code()

    def __repr__(self) -> str:
        return f"<stage {self.name}>"


@dataclass(frozen=True)
class Conditional:
    """A stage with a condition."""

    stage: Stage
    condition: Any

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Add a call of the stage."""
        return _present().called(self.stage, args, kwargs, self.condition)

    def map(self, *items: Any, **shared: Any) -> Any:
        """Add a map of the stage."""
        return _present().mapped(self.stage, items, shared, self.condition)


def _present() -> ChainBuilder:
    builder = BUILDER.get()
    if builder is None:
        raise ChainError("a condition outside of a chain", expected="stage.when(…) in a function with @chain")
    return builder


def stage(code: Callable[..., Any] | None = None, /, *, name: str = "", **options: Any) -> Any:
    """Declare a function, or a class with `__call__`, a stage.

        @stage(cpu=1, retries=2, timeout_s=60)
        def caption(picture: bytes) -> str: ...

    A class is constructed once per worker, so that a model is loaded once. Options: see StageOptions. A
    parameter named `ctx` gets the attempt's context.
    """

    def declared(code: Callable[..., Any]) -> Stage:
        for option in options:
            if option not in OPTION_NAMES:
                raise ChainError(
                    "no such option",
                    field=getattr(code, "__name__", "stage"),
                    value=option,
                    expected=f"one of {', '.join(OPTION_NAMES)}",
                )
        if inspect.isclass(code) and not any("__call__" in vars(base) for base in code.__mro__):
            raise ChainError("a class without __call__", field=code.__name__, expected="a class to be called")
        return Stage(code, StageOptions(**options), name)

    return declared if code is None else declared(code)


def _call_of(code: Any) -> Any:
    """The method that runs when an instance of a class is called."""
    return code.__call__
