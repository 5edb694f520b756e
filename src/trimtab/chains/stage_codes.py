"""The stages of a chain as backends and the loop have them."""

from __future__ import annotations

from typing import Any, Final

from trimtab.chains.graph import Chain, StageCall
from trimtab.chains.stages import Kind
from trimtab.domain.chains import Flow, OnStageFailure, StageSpec
from trimtab.errors import ChainError
from trimtab.live.stage_backend import StageCode
from trimtab.live.stage_execution import Imported, plain_code
from trimtab.live.value_codec import Unserialisable, encode, pickled

_HOST_DECIDES: Final = 1 << 15  # retries: the host itself counts them


def specs_of(chain: Chain) -> dict[str, StageSpec]:
    """The stages of a chain for the loop."""
    return {step.name: _spec_of(chain, step) for step in chain.steps}


def _spec_of(chain: Chain, step: StageCall) -> StageSpec:
    options = step.stage.stage_options
    return StageSpec(
        after={chain.steps[k].name: Flow.EACH if each else Flow.ALL for k, each in step.after.items()},
        on_failure=OnStageFailure[options.on_failure.upper()],
        max_retries=_HOST_DECIDES,
        failed_max_frac=options.failed_max_frac,
        is_stored=True,
        is_map=step.is_map,
    )


def codes_of(chain: Chain) -> list[StageCode]:
    """The stages of a chain for workers. Raises ChainError for code that cannot be sent."""
    return [_code_of(chain.name, step) for step in chain.steps]


def constants_of(chain: Chain, step: StageCall) -> dict[str, bytes]:
    """The constants among a stage's arguments for workers, by parameter. Raises ChainError."""
    where = f"{chain.name}.{step.name}"
    constants = [argument for argument in step.arguments if argument.source is None]
    return {each.name: _encoded(each.constant, f"{where}.{each.name}") for each in constants}


def default_of(chain: Chain, step: StageCall) -> bytes:
    """The output of a stage that takes the place of a failed one, for workers. Raises ChainError."""
    return _encoded(step.stage.stage_options.default, f"{chain.name}.{step.name}.default")


def _encoded(value: Any, where: str) -> bytes:
    try:
        return encode(value)
    except Unserialisable as error:
        raise ChainError(
            f"cannot be sent to workers: {error}", field=where, expected="what pickles"
        ) from None


def _code_of(chain: str, step: StageCall) -> StageCode:
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


def _check_batched(where: str, step: StageCall) -> None:
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
