"""A run of a chain over many inputs, and the runs in the loop that each input has."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple

from trimtab.chains.graph import Chain
from trimtab.chains.run_progress import Output, Progress, StageInstance
from trimtab.engine.live_runs import EnteredRun
from trimtab.live.stage_backend import Attempt, Following, Outcome, Ref, StageError
from trimtab.words import counted


class State(Enum):
    """The state of a run, or of one of its inputs."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class InputPlaces(NamedTuple):
    """Where inputs are in their file: from input `firsts[k]` on, at `starts[k]`, `starts[k]` + 1, …"""

    unit: str = "line"
    firsts: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()

    @classmethod
    def of(cls, places: Sequence[int], unit: str = "line") -> InputPlaces:
        """The place of each input."""
        breaks = [k for k, place in enumerate(places) if k == 0 or place != places[k - 1] + 1]
        return cls(unit, tuple(breaks), tuple(places[k] for k in breaks))

    def told(self, number: int) -> str:
        """An input in words: by its place in the file, or else by its number."""
        if not self.firsts:
            return str(number)
        k = bisect_right(self.firsts, number) - 1
        return f"of {self.unit} {self.starts[k] + number - self.firsts[k]}"


NO_PLACES: Final = InputPlaces()


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The settings of a run that a user gives."""

    priority: int = 0
    deadline_s: float = float("inf")  # after its start
    tenant: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    key: str = ""  # a run of this key is made once
    places: InputPlaces = NO_PLACES


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an input has no output."""

    stage: str  # "" = no stage failed
    index: int
    attempts: int
    error: StageError
    noted: str = ""  # what an earlier process has noted of it

    def __str__(self) -> str:
        if self.noted or not self.stage:
            return self.noted or str(self.error)
        return f"{self.stage}[{self.index}] after {counted(self.attempts, 'attempt')}: {self.error}"


@dataclass(frozen=True, slots=True)
class Ending:
    """One input is over. `output` has the bytes of each value in the chain's output, None where absent."""

    number: int  # of the input
    state: State
    output: tuple[Any, ...] = ()
    failure: Failure | None = None
    elapsed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PartOutput:
    """The output of one instance of a stage that the run's output has values of."""

    number: int  # of the input
    step: int
    index: int
    data: bytes


@dataclass
class StageCounts:
    """How many instances of a stage there are in each state."""

    queued: int = 0
    running: int = 0
    done: int = 0
    failed: int = 0
    skipped: int = 0
    reused: int = 0  # of those done, from the store
    retries: int = 0
    copies: int = 0  # second attempts at instances that took long
    busy_s: float = 0.0


class Copy(NamedTuple):
    """A second attempt at an instance, while the first still runs."""

    attempt: Attempt
    node: int
    expected_s: float


@dataclass(eq=False, slots=True)
class ItemRun:
    """One input on its way through the chain."""

    run: ChainRun
    number: int
    progress: Progress
    place: EnteredRun
    entered_s: float
    first_rows: list[int]
    sizes: list[float]  # of the work of each stage
    attempts: dict[StageInstance, Attempt] = field(default_factory=dict)  # that backends have
    copies: dict[StageInstance, Copy] = field(default_factory=dict)
    served: dict[StageInstance, Ended] = field(default_factory=dict)  # behind others, until they are ready
    tried: dict[StageInstance, int] = field(default_factory=dict)  # attempts begun
    raised: dict[StageInstance, int] = field(default_factory=dict)  # of these, ended by the stage's own error
    refs: list[Ref] = field(default_factory=list)  # all values that it holds
    failure: Failure | None = None
    memo_keys: dict[StageInstance, str] = field(default_factory=dict)  # of calls whose result may be kept
    saves: int = 0  # values that are on their way to the store
    ending: Ending | None = None  # waits for them

    def row(self, at: StageInstance) -> int:
        """The row of an instance."""
        return self.first_rows[at.step] + at.idx

    def after(self, at: StageInstance) -> StageInstance | None:
        """The instance that may run after this one in the same attempt."""
        step = self.run.chain.following[at.step]
        return None if step < 0 else StageInstance(step, at.idx)

    def in_turn(self, at: StageInstance, attempt: Attempt) -> list[StageInstance]:
        """The instance of an attempt, and those of the attempts that follow it."""
        found = [at]
        for _ in attempt.in_turn[1:]:
            found.append(StageInstance(self.run.chain.following[found[-1].step], at.idx))
        return found

    def new_attempt(self, at: StageInstance, then: Following | None = None) -> Attempt:
        """The next attempt at an instance, and what follows it. It counts as begun."""
        step = self.run.chain.steps[at.step]
        number = self.tried[at] = self.tried.get(at, 0) + 1
        run = f"{self.run.id}/{self.number}"
        return Attempt(run, step.code_name, at.idx, number, f"{run}/{step.name}/{at.idx}", then)


class Sent(NamedTuple):
    """What a backend is given in one call: an attempt at an instance, or a batch of several."""

    node: int
    members: Sequence[tuple[ItemRun, StageInstance, Attempt]]
    is_batch: bool = False


class Ended(NamedTuple):
    """An attempt at an instance has ended, on a node."""

    item: ItemRun
    at: StageInstance
    attempt: Attempt
    node: int
    outcome: Outcome
    is_retried: bool = False  # alone, since its batch failed: its stage has not failed by it


@dataclass(eq=False)
class ChainRun:
    """A chain over some inputs. `told` is called with each Ending, on the host's thread."""

    id: str
    chain: Chain
    template: int
    options: RunOptions
    told: Callable[[Ending], None]
    ended: Callable[[State], None]
    part: Callable[[PartOutput], None] | None = None  # wants parts of outputs as instances finish
    inputs: Iterator[tuple[int, Mapping[str, Any]]] = field(default_factory=lambda: iter(()))
    begun_s: float = 0.0
    last_s: float = 0.0  # when an input was over last
    state: State = State.RUNNING
    fault: BaseException | None = None  # of the host, by which the run ended
    is_exhausted: bool = False  # all inputs have been taken
    waiting: deque[tuple[int, Mapping[str, Any]]] = field(default_factory=deque)
    items: dict[int, ItemRun] = field(default_factory=dict)  # in the loop
    counts: list[StageCounts] = field(default_factory=list)  # [stages]
    endings: Counter[State] = field(default_factory=Counter)
    known: dict[tuple[int, StageInstance], Output] = field(default_factory=dict)  # outputs before, by input
    tried: dict[int, dict[StageInstance, int]] = field(default_factory=dict)  # attempts before, by input
    fetches: int = 0  # parts that are on their way
    done_before: set[int] = field(default_factory=set)  # inputs that were over in an earlier process
    failed_before: dict[int, str] = field(default_factory=dict)  # inputs that failed in an earlier process

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is left to do."""
        return self.is_exhausted and not self.waiting and not self.items and not self.fetches

    def fail(self, error: BaseException) -> None:
        """End it by a fault of the host or of what makes its inputs."""
        self.state, self.fault, self.is_exhausted = State.FAILED, error, True
        self.ended(self.state)
