"""The protocol of backends that run the stages of chains, and what they exchange with their host.

A host decides where and when an attempt runs. A backend runs it there and reports one Outcome. Values are
bytes under a digest of their content; the host holds references only. An attempt may run twice. The host
records one of its outcomes, so a backend need not prevent it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from trimtab.errors import UsageError
from trimtab.live.model_scope import ModelRecord
from trimtab.live.shared_state import StateAddress

if TYPE_CHECKING:
    import asyncio  # worker processes do not load it

COUNTED: Final = ("gpu",)  # a node that does not name these has none
_ENOUGH: Final = 1e9  # capacity of what a node does not count

Path = tuple[str | int, ...]
"""Keys, indices and attributes, from a value to a part of it."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One execution of an instance of a stage.

    `idempotency_key` is the same in every attempt of the instance, in resumed runs too.
    """

    run: str
    stage: str  # the name that its code was opened under
    index: int  # instance in the stage's map; 0 without a map
    attempt: int  # from 1 on
    idempotency_key: str
    then: Following | None = field(default=None, compare=False)
    members: tuple[Attempt, ...] = field(default=(), compare=False)  # of a batch, if it takes contexts

    @property
    def in_turn(self) -> list[Attempt]:
        """This attempt, and those that follow it."""
        found, last = [self], self
        while last.then is not None:
            last = last.then.attempt
            found.append(last)
        return found


@dataclass(frozen=True, slots=True)
class Ref:
    """A value: its serialised bytes are in `data`, or where only its backend finds them.

    Equal values have one digest. Each time one is written it gets a place of its own, and is released there.
    """

    digest: str
    size_bytes: int
    data: bytes | None = None
    place: str = ""  # the backend's own name of these bytes; "" = nothing to release
    nodes: tuple[int, ...] = ()  # that hold them; none = every node reaches them equally


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a stage: a value, a list of values, or a part of one.

    A missing value (`None` among `refs`) is passed as None, and left out of a list.
    """

    name: str  # of the parameter
    refs: tuple[Ref | None, ...]
    is_list: bool = False
    path: Path = ()


BEFORE: Final = Ref("", 0)
"""In the inputs of a Following: the whole output of the attempt that it follows."""


@dataclass(frozen=True, slots=True)
class Following:
    """An attempt at another stage that the same worker runs next, unless the one before it fails."""

    attempt: Attempt
    inputs: Sequence[Argument]


def inputs_in_turn(attempt: Attempt, inputs: Sequence[Argument]) -> list[Argument]:
    """The inputs of an attempt and of those that follow it."""
    found = list(inputs)
    for each in attempt.in_turn:
        found += each.then.inputs if each.then is not None else ()
    return found


class Cause(Enum):
    """Why an attempt has no outputs."""

    RAISED = "raised"  # the stage's code raised
    UNSERIALISABLE = "unserialisable"  # its output cannot be serialised
    TIMEOUT = "timeout"
    WORKER_LOST = "worker lost"
    OUT_OF_MEMORY = "out of memory"
    DISK_FULL = "disk full"
    CANCELLED = "cancelled"
    INPUT_LOST = "input lost"
    LOAD_FAILED = "load failed"  # its class or code cannot be loaded
    MEMORY_LIMIT = "memory limit"  # it took more than its `memory_gib`
    PERMANENT = "permanent"  # as RAISED, and another attempt would end alike


ERROR_CHARS: Final = 2_000  # of a message that are kept
TRACE_CHARS: Final = 16_000


def shortened(text: str, most: int) -> str:
    """A text of at most about `most` characters: its beginning and its end, and how much was cut."""
    if len(text) <= most:
        return text
    tail = most // 4
    head = most - tail
    return f"{text[:head]} … [{len(text) - most:,} characters cut] … {text[-tail:]}"


@dataclass(frozen=True, slots=True)
class StageError:
    """A failed attempt. `kind` is the name of the exception, `trace` its traceback as text.

    `where` is the file, line and function of the stage's code that raised. Long texts are cut.
    """

    cause: Cause
    kind: str = ""
    message: str = ""
    trace: str = ""
    where: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", shortened(self.message, ERROR_CHARS))
        object.__setattr__(self, "trace", shortened(self.trace, TRACE_CHARS))

    def __str__(self) -> str:
        told = ": ".join(part for part in (self.kind or self.cause.value, self.message) if part)
        return f"{told} ({self.where})" if self.where else told


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of an attempt.

    `outputs` begins with the whole output. For each path in the code's `splits` the items there follow;
    `fan_out` says how many each has. `tests` says of each path in the code's `tests` whether the part of the
    output there is true. `then` is the end of the attempt that followed, if one began. A backend that knows
    nothing of following attempts leaves it out, and their stages run by themselves.
    """

    outputs: tuple[Ref, ...] = ()
    service_s: float = 0.0  # in the stage's code
    load_s: float = 0.0  # of that, before: loading its code, constructing its class
    peak_gib: float = 0.0  # of the worker's memory; 0 = not measured
    fan_out: tuple[int, ...] = ()
    tests: tuple[bool, ...] = ()
    error: StageError | None = None
    worker: str = ""  # that ran it, by a name of its node's
    profile: bytes = b""  # of the code, marshalled (`stage_profiling`); empty = it was not profiled
    then: Outcome | None = None
    models: tuple[ModelRecord, ...] = ()  # that were optimised meanwhile

    @property
    def in_turn(self) -> list[Outcome]:
        """This outcome, and those of the attempts that followed."""
        found, last = [self], self
        while last.then is not None:
            last = last.then
            found.append(last)
        return found

    @property
    def values(self) -> list[Ref]:
        """All that was made, by the attempts that followed, too."""
        return [ref for outcome in self.in_turn for ref in outcome.outputs]

    @property
    def followed_s(self) -> float:
        """How long the attempts that followed took."""
        return sum(outcome.load_s + outcome.service_s for outcome in self.in_turn[1:])


def in_one(outcomes: Sequence[Outcome]) -> Outcome:
    """The outcome of an attempt with those of the attempts that followed it."""
    made, following = outcomes[-1], reversed(outcomes[:-1])
    for outcome in following:
        made = replace(outcome, then=made)
    return made


@dataclass(frozen=True, slots=True)
class StageCode:
    """The description of a stage from which a backend runs it.

    `code` is a serialised function `(**arguments) → output`, or a class whose instances are called so.
    """

    name: str
    code: bytes
    is_class: bool = False  # constructed once per worker
    context_name: str = ""  # parameter that takes the attempt's context; "" = none
    timeout_s: float = float("inf")
    demand: Mapping[str, float] = field(default_factory=dict)  # of resources
    labels: Mapping[str, str] = field(default_factory=dict)  # that a node must have
    splits: tuple[Path, ...] = ()  # lists in the output whose items become values of their own
    tests: tuple[Path, ...] = ()  # parts of the output that conditions of other stages read
    profile: str = ""  # of its code: "calls" or "lines" (`stage_profiling`); "" = none
    states: tuple[StateAddress, ...] = ()  # that it calls
    optimise: Mapping[str, object] = field(default_factory=dict)  # how its models run
    copies: int = 1  # machines that keep its large outputs, where there are so many
    is_batch: bool = False  # its output is a list of outputs: each is a value, the whole is none


@dataclass(frozen=True, slots=True)
class StageNode:
    """A pool of workers on one machine, which a policy sees as a node."""

    name: str
    slots: int = 1  # attempts that it runs at a time
    capacity: Mapping[str, float] = field(default_factory=dict)  # of resources
    labels: Mapping[str, str] = field(default_factory=dict)
    type: str = ""  # nodes of a type are equally fast; "" = its own
    machine: str = "local"
    depth: int = 1  # attempts per slot that it takes: more than 1 hides the way to the worker
    slots_min: int = 0  # workers that it keeps when nothing waits; 0 = one for each slot, always

    def __post_init__(self) -> None:
        if not 0 <= self.slots_min <= self.slots:
            raise UsageError(
                "cannot keep so many workers", field="slots_min", value=self.slots_min,
                expected=f"0 (all) to {self.slots}, the slots of node {self.name}",
            )  # fmt: skip

    @property
    def least(self) -> int:
        """Workers that it has at any time."""
        return self.slots_min or self.slots

    def amount(self, resource: str) -> float:
        """Its capacity; of what it does not count, enough."""
        return self.capacity.get(resource, 0.0 if resource in COUNTED else _ENOUGH)

    def misfit(self, code: StageCode) -> str:
        """Why a stage fits it at no time; "" = it fits."""
        for name, wanted in code.labels.items():
            if self.labels.get(name) != wanted:
                return f"label {name} is {self.labels.get(name, 'not there')}, wanted {wanted}"
        for name, demanded in code.demand.items():
            if demanded > self.amount(name):
                return f"has {self.amount(name):g} {name}, wanted {demanded:g}"
        return ""


@dataclass(frozen=True, slots=True)
class NodeChange:
    """A change of a node: `places` attempts more (or less) at a time; `is_up`: whether it takes new ones.

    `name`: another node has taken its place; empty = it is the same.
    """

    node: int
    places: int = 0
    is_up: bool = True
    name: str = ""


class StageBackend(Protocol):
    """Runs attempts of stages on nodes. All methods are called on the host's event loop."""

    @property
    def nodes(self) -> Sequence[StageNode]:
        """The nodes, by index. Once the backend is open they change by `NodeChange` alone.

        Places for nodes that may come are among them; `open` says that they are down.
        """

    async def open(self, stages: Sequence[StageCode], on_change: Callable[[NodeChange], None]) -> None:
        """Get ready to run these stages. Raises UsageError if some can never be placed, and says why."""

    def start(self, node: int, attempt: Attempt, inputs: Sequence[Argument]) -> Awaitable[Outcome]:
        """Run an attempt on a node. Failures are outcomes; the awaitable raises nothing of the stage's."""

    def cancel(self, attempt: Attempt) -> None:
        """Stop an attempt. Its outcome has Cause.CANCELLED, unless it ended before."""

    async def put(self, data: bytes) -> Ref:
        """Make a value of the host's known to all nodes."""

    async def get(self, ref: Ref) -> bytes:
        """The bytes of a value. Raises ValueLost."""

    def release(self, refs: Sequence[Ref]) -> None:
        """The host needs these values no more."""

    async def close(self) -> None:
        """Stop all attempts and free everything; also what only `nodes` has started. May be called twice."""


@dataclass(frozen=True, slots=True)
class StageDemand:
    """The demand of a stage on pools."""

    waiting: int = 0  # instances that are ready and have no place yet
    arrived: int = 0  # instances that became ready so far
    service_s: float = 0.0  # mean of what they took; 0 = none has ended


@runtime_checkable
class GrowingBackend(Protocol):
    """A backend whose nodes have fewer workers than slots while little waits."""

    def follow_queue(self, demand: Callable[[], Mapping[str, StageDemand]]) -> None:
        """From now on pools grow and shrink. `demand`: of each stage, by the name of its code.

        Called once the host has opened all else. Each change of a pool is a NodeChange, the first ones too.
        """


@runtime_checkable
class BoundedBackend(Protocol):
    """A backend that has room for so many values."""

    @property
    def value_bytes(self) -> float:
        """The most bytes of values; known once the backend is open. A little more does no harm."""


@runtime_checkable
class VirtualBackend(Protocol):
    """A backend in virtual time."""

    def new_loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that its host has to run on; the loop's time is that of all workers."""


@runtime_checkable
class LosableBackend(Protocol):
    """A backend on a cluster that others run, and may end."""

    def tell_loss(self, lost: Callable[[Exception], None]) -> None:
        """Call `lost` once all of the cluster is gone. Nothing can run any more; `close` is still called."""


@runtime_checkable
class RemoteBackend(Protocol):
    """A backend whose workers may be on other machines."""

    def host_address(self) -> str:
        """Where they reach the host's machine; empty = they are on it. May connect.

        Raises UsageError if they cannot reach it.
        """


class ValueLost(Exception):  # noqa: N818 - reads as the sentence it prints
    """The bytes of a value exist nowhere any more."""


def digest_of(data: bytes | memoryview) -> str:
    """The digest under which all backends and stores know these bytes."""
    return hashlib.blake2b(data, digest_size=20).hexdigest()
