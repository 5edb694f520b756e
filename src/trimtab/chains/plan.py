"""Chains as runs need them: numbered stages, edges, codes for workers, and what each argument reads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from trimtab.chains.building import values_in
from trimtab.chains.graph import Binding, Chain, Reads, StageCall, Value
from trimtab.chains.stages import Kind, Stage
from trimtab.domain.chains import Flow, OnStageFailure, StageSpec
from trimtab.errors import ChainError
from trimtab.live.stage_backend import Path, StageCode
from trimtab.live.stage_execution import Imported, plain_code
from trimtab.live.value_codec import Unserialisable, encode, pickled

INPUT = -1
_ON_FAILURE = {"fail": OnStageFailure.FAIL, "skip": OnStageFailure.SKIP, "default": OnStageFailure.DEFAULT}
_HOST_DECIDES = 1 << 15  # retries: the host itself counts them


@dataclass(frozen=True)
class Source:
    """A value that a stage reads."""

    step: int  # INPUT = an input of the chain
    parameter: str  # of the chain, for INPUT
    path: Path
    is_map: bool  # an output for each instance
    each: bool  # instance i reads item i, or the output of instance i
    split: int = -1  # number of the list among its source's `splits`, whose items are read one by one


@dataclass(frozen=True)
class PlannedArgument:
    """An argument of a stage: what it reads, or the bytes of a constant."""

    name: str
    source: Source | None
    constant: bytes = b""


@dataclass(frozen=True)
class PlannedStage:
    """A stage of a chain, by number."""

    name: str
    stage: Stage
    arguments: tuple[PlannedArgument, ...]
    condition: Source | None
    test: int  # number of the condition among its source's `tests`
    is_map: bool
    splits: tuple[Path, ...]
    tests: tuple[Path, ...]
    after: dict[int, Flow]
    default: bytes  # the output that takes the place of a failed one
    code_name: str  # under which backends know it

    @property
    def sources(self) -> list[Source]:
        """All values that it reads, its condition too."""
        read = [a.source for a in self.arguments if a.source is not None]
        return read + ([self.condition] if self.condition is not None else [])


@dataclass(frozen=True)
class ChainPlan:
    """A chain with numbered stages."""

    chain: Chain
    steps: tuple[PlannedStage, ...]
    input_splits: tuple[tuple[str, Path], ...]

    @property
    def name(self) -> str:
        """The chain's name."""
        return self.chain.name

    @cached_property
    def output_steps(self) -> tuple[int, ...]:
        """The stages whose outputs the chain's output has values of, each once."""
        number = {step.name: k for k, step in enumerate(self.steps)}
        found = [number[value.source] for value in values_in(self.chain.output) if value.source]
        return tuple(dict.fromkeys(found))

    def all_before(self, k: int) -> set[int]:
        """The stages that a stage reads, and those that these read."""
        found: set[int] = set()
        for before in self.steps[k].after:
            found |= {before, *self.all_before(before)}
        return found

    @cached_property
    def is_sized(self) -> bool:
        """Whether some stage says which of its parameters tells how much work it is."""
        return any(step.stage.stage_options.size for step in self.steps)

    @cached_property
    def following(self) -> tuple[int, ...]:
        """Of each stage the one that may run after it in the same attempt; -1 = none.

        It alone reads that stage, and reads no other, instance by instance where both are maps.
        """
        found = []
        for k in range(len(self.steps)):
            readers = [m for m, step in enumerate(self.steps) if k in step.after]
            found.append(readers[0] if len(readers) == 1 and self._can_follow(readers[0], k) else -1)
        return tuple(found)

    def _can_follow(self, k: int, before: int) -> bool:
        """Whether a worker can run a stage right after another one that it reads.

        Both have to say what they cost: a stage that is short as a rule and waits now and then would keep
        what ran before it from being recorded, and a run that is stopped meanwhile would repeat it.
        """
        step, first = self.steps[k], self.steps[before]
        flow = Flow.EACH if first.is_map else Flow.ALL
        if step.after != {before: flow} or step.is_map is not first.is_map or step.condition is not None:
            return False
        one, other = first.stage.stage_options, step.stage.stage_options
        is_alike = one.demand() == other.demand() and one.needed_labels() == other.needed_labels()
        is_known = other.deterministic and not one.deterministic  # a kept result may answer it
        is_declared = one.cost_s > 0.0 and other.cost_s > 0.0
        return is_alike and is_declared and not (is_known or first.splits or one.is_paced or other.is_paced)

    @cached_property
    def input_conditions(self) -> tuple[Source, ...]:
        """Parts of the chain's inputs that conditions of stages read."""
        read = (step.condition for step in self.steps)
        return tuple(source for source in read if source is not None and source.step == INPUT)

    def specs(self) -> dict[str, StageSpec]:
        """The stages for the loop."""
        names = [step.name for step in self.steps]
        return {
            step.name: StageSpec(
                after={names[before]: flow for before, flow in step.after.items()},
                on_failure=_ON_FAILURE[step.stage.stage_options.on_failure],
                max_retries=_HOST_DECIDES,
                failed_max_frac=step.stage.stage_options.failed_max_frac,
                is_stored=True,
                is_map=step.is_map,
            )
            for step in self.steps
        }

    def codes(self) -> list[StageCode]:
        """The stages for workers. Raises ChainError for code that cannot be sent."""
        return [_code_of(self.name, step) for step in self.steps]


def planned(chain: Chain) -> ChainPlan:
    """Number a chain's stages. Raises ChainError, also for constants that can't be serialised."""
    number = {step.name: k for k, step in enumerate(chain.steps)}
    splits: list[list[Path]] = [[] for _ in chain.steps]
    tests: list[list[Path]] = [[] for _ in chain.steps]
    input_splits: list[tuple[str, Path]] = []

    def source_of(value: Value, reads: Reads) -> Source:
        each = reads is Reads.EACH
        if value.source == "":
            parameter, path = str(value.path[0]), value.path[1:]
            split = _position(input_splits, (parameter, path)) if each else -1
            return Source(INPUT, parameter, path, False, each, split)
        step = number[value.source]
        split = _position(splits[step], value.path) if each and not value.is_map else -1
        return Source(step, "", value.path, value.is_map, each, split)

    made = [_planned_step(chain, step, source_of, tests) for step in chain.steps]
    steps = [replace(s, splits=tuple(splits[k]), tests=tuple(tests[k])) for k, s in enumerate(made)]
    return ChainPlan(chain, tuple(steps), tuple(input_splits))


def _planned_step(chain: Chain, step: StageCall, source_of: Any, tests: list[list[Path]]) -> PlannedStage:
    arguments = tuple(_argument(chain, step, binding, source_of) for binding in step.bindings)
    condition, test = None, -1
    if step.condition is not None:
        value = step.condition
        condition = source_of(value, Reads.EACH if value.is_map and step.is_map else Reads.WHOLE)
        if condition.step != INPUT:
            test = _position(tests[condition.step], condition.path)
    options = step.stage.stage_options
    planned = PlannedStage(
        step.name, step.stage, arguments, condition, test, step.is_map, (), (), {},
        _encoded(options.default, f"{chain.name}.{step.name}.default"), f"{chain.name}/{step.name}",
    )  # fmt: skip
    after: dict[int, Flow] = {}
    for source in planned.sources:
        if source.step != INPUT:
            flow = Flow.EACH if source.each and source.is_map else Flow.ALL
            if after.setdefault(source.step, flow) is not flow:
                raise ChainError(
                    "reads a map both as a whole and item by item",
                    field=f"{chain.name}.{step.name}",
                    value=chain.steps[source.step].name,
                )
    return replace(planned, after=after)


def _argument(chain: Chain, step: StageCall, binding: Binding, source_of: Any) -> PlannedArgument:
    if binding.value is None:
        where = f"{chain.name}.{step.name}.{binding.parameter}"
        return PlannedArgument(binding.parameter, None, _encoded(binding.constant, where))
    return PlannedArgument(binding.parameter, source_of(binding.value, binding.reads))


def _position(items: list[Any], item: Any) -> int:
    if item not in items:
        items.append(item)
    return items.index(item)


def _encoded(value: Any, where: str) -> bytes:
    try:
        return encode(value)
    except Unserialisable as error:
        raise ChainError(
            f"cannot be sent to workers: {error}", field=where, expected="what pickles"
        ) from None


def _code_of(chain: str, step: PlannedStage) -> StageCode:
    stage, options = step.stage, step.stage.stage_options
    if stage.is_batched:
        _check_batched(f"{chain}.{step.name}", step)
    return StageCode(
        name=step.code_name,
        code=sent_code(stage.stage_code, f"{chain}.{step.name}"),
        is_class=stage.kind is Kind.CLASS,
        context_name=stage.context_name,
        timeout_s=options.timeout_s,
        demand=options.demand(),
        labels=options.needed_labels(),
        splits=((),) if stage.is_batched else step.splits,
        is_batch=stage.is_batched,
        tests=step.tests,
        copies=options.copies,
        optimise=dict(options.optimise),
    )


def _check_batched(where: str, step: PlannedStage) -> None:
    """Raise ChainError for what a call that serves several instances cannot do."""
    if step.splits or step.tests:
        problem = "is batched, and its output is mapped over or a condition"
        raise ChainError(problem, field=where, expected="another stage that reads it first")
    for argument in step.arguments:
        if argument.source is not None and argument.source.is_map and not argument.source.each:
            problem = "is batched, and reads all outputs of a map"
            raise ChainError(problem, field=f"{where}.{argument.name}", expected="one value")


def sent_code(code: Any, where: str) -> bytes:
    """A function or class for workers: by its name where they can import it, else by value."""
    module, name = getattr(code, "__module__", None), getattr(code, "__qualname__", "")
    if module not in (None, "__main__") and _is_importable(module, name, code):
        return encode(Imported(str(module), name))
    try:
        return pickled(code)
    except Exception as error:
        expected = "code that pickles, with the variables around it that it reads"
        raise ChainError(f"cannot be sent to workers: {error}", field=where, expected=expected) from error


def _is_importable(module: str, name: str, code: Any) -> bool:
    import sys

    found: Any = sys.modules.get(module)
    if found is None or getattr(found, "__spec__", None) is None or "<locals>" in name:
        return False
    for part in name.split("."):
        found = getattr(found, part, None)
    return plain_code(found) is code
