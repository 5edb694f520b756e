"""The options `--show-completion` and `--install-completion`, for a shell by name or the user's own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import typer
from typer._completion_classes import completion_init
from typer._completion_shared import get_completion_script, install

SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")
SHOW, INSTALL = "--show-completion", "--install-completion"
VARIABLE = "_TRIMTAB_COMPLETE"

completion_init()  # answers what a shell asks when someone presses Tab


def with_shells(arguments: Sequence[str]) -> list[str]:
    """The command line with the user's own shell after an option without a shell."""
    filled: list[str] = []
    for argument, following in zip(arguments, [*arguments[1:], "-"], strict=True):
        filled.append(argument)
        if argument in (SHOW, INSTALL) and following.startswith("-"):
            filled.append(own_shell())
    return filled


def own_shell() -> str:
    """The name of the login shell, from SHELL; bash if that is not set or has no completion."""
    name = Path(os.environ.get("SHELL", "")).name
    return name if name in SHELLS else "bash"


def show(shell: str | None) -> None:
    """Print a shell's completion script and exit."""
    if shell is not None:
        print(get_completion_script(prog_name="trimtab", complete_var=VARIABLE, shell=_known(shell)))
        raise typer.Exit


def install_for(shell: str | None) -> None:
    """Install a shell's completion for this user and exit."""
    if shell is not None:
        _, path = install(_known(shell), prog_name="trimtab", complete_var=VARIABLE)
        print(f"completion for {shell} installed in {path}; it works in the next shell")
        raise typer.Exit


def _known(shell: str) -> str:
    if shell not in SHELLS:
        raise typer.BadParameter(f"{shell!r} has no completion; expected one of {', '.join(SHELLS)}")
    return shell
