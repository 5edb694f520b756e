"""Groups of options as one parameter of a command: a dataclass with one field per option."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The command for typer: the fields of a dataclass replace each parameter of that type."""
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        group = parameter.annotation
        if isinstance(group, type) and is_dataclass(group):
            groups[parameter.name] = group
            parameters += _options(group)
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def run(**given: Any) -> None:
        made = {
            name: group(**{field.name: given.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        command(**made, **given)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def _options(group: Any) -> list[inspect.Parameter]:
    types = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=types[field.name]
        )
        for field in fields(group)
    ]


OK, INTERNAL, USAGE, POLICY_FAILED, FAILED, DIFFERS, REVEALS, INTERRUPTED = 0, 1, 2, 3, 4, 5, 6, 130

EXIT_CODES = (
    "\n\n[bold]Exit codes[/bold]\n\n"
    f"{OK} done · {INTERNAL} internal error · {USAGE} wrong usage or input · "
    f"{POLICY_FAILED} a policy failed · {FAILED} inputs of a chain failed · "
    f"{DIFFERS} a rerun has other figures · {REVEALS} a trace reveals people · {INTERRUPTED} interrupted"
)


def examples(*commands: str) -> str:
    """Commands as the epilog of a help text, one per paragraph."""
    lines = "\n\n".join(f"[cyan]{command.replace('[', '[[')}[/cyan]" for command in commands)
    return f"[bold]Examples[/bold]\n\n{lines}"
