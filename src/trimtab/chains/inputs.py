"""The inputs of a run as values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from trimtab.chains.graph import INPUT, Chain, StageCall
from trimtab.chains.run_progress import GivenInputs
from trimtab.errors import UsageError
from trimtab.live.declared_types import misfit, shown
from trimtab.live.stage_backend import Ref
from trimtab.live.value_codec import Unserialisable, at_path, encode, items_of


def named_inputs(chain: Chain, inputs: Iterable[Any]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Inputs by number, each a mapping with all parameters. Raises UsageError."""
    for number, given in enumerate(inputs):
        yield number, checked_input(chain, given, f"inputs[{number}]")


def named_input(chain: Chain, given: Any, where: str) -> Mapping[str, Any]:
    """An input as a mapping with all parameters. Raises UsageError."""
    names, defaults = list(chain.inputs), chain.defaults
    named = given if isinstance(given, Mapping) and set(given) <= set(names) else None
    if named is None and len(names) - len(defaults) <= 1 and not isinstance(given, Mapping):
        named = {names[0]: given} if names else {}
    if named is None or not set(names) <= {*named, *defaults}:
        raise UsageError("not the chain's inputs", field=where, value=given, expected=", ".join(names))
    return {**defaults, **named}


def checked_input(chain: Chain, given: Any, where: str) -> Mapping[str, Any]:
    """`named_input`. Raises UsageError for a builtin value of another type than its input declares, too.

    Others, such as NumPy's numbers, may stand for what they are not.
    """
    named = named_input(chain, given, where)
    for name, value in named.items():
        if name in chain.defaults and value is chain.defaults[name]:
            continue
        if (bad := misfit(value, chain.inputs[name])) is not None:
            at = f"{where}.{name}" if len(chain.inputs) > 1 else where
            found = value if not bad.path else shown(bad.found)
            raise UsageError(
                "a value of another type", field=f"{at}{bad.path}", value=found, expected=shown(bad.wanted)
            )
    return named


def sizes(chain: Chain, inputs: Mapping[str, Any]) -> list[float]:
    """How much work an attempt at each stage is, as far as the chain's inputs say; else 1."""
    if not chain.is_sized:
        return [1.0] * len(chain.steps)
    return [_size(step, inputs) for step in chain.steps]


def _size(step: StageCall, inputs: Mapping[str, Any]) -> float:
    name = step.stage.stage_options.size
    for argument in step.arguments if name else ():
        source = argument.source
        if argument.name == name and source is not None and source.step == INPUT and not source.each:
            value = at_path(inputs[source.parameter], source.path)
            return float(len(value) if hasattr(value, "__len__") else value)
    return 1.0


def sent(value: Any, where: str) -> bytes:
    """The bytes of a value for workers. Raises UsageError where it has none."""
    try:
        return encode(value)
    except Unserialisable as error:
        expected = "a value that pickles"
        raise UsageError(f"cannot be sent to workers: {error}", field=where, expected=expected) from error


def given_inputs(
    chain: Chain, number: int, inputs: Mapping[str, Any], put: Callable[[bytes], Ref]
) -> GivenInputs:
    """The values of an input. Raises UsageError, and what a missing path raises."""
    refs = {name: put(sent(value, f"inputs[{number}].{name}")) for name, value in inputs.items()}
    splits = tuple(
        [
            tuple([put(encode(item)) for item in items_of(at_path(inputs[n], path))])
            for n, path in chain.input_splits
        ]
    )
    conditions = [
        (c.parameter, c.path) for c in chain.input_conditions if at_path(inputs[c.parameter], c.path)
    ]
    return GivenInputs(refs, splits, frozenset(conditions))
