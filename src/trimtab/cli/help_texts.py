"""Parts of help texts: examples, and the meaning of exit codes."""

from __future__ import annotations

FLAG = ""  # placeholder of an option that takes no value: typer would show <bool>

OK, INTERNAL, USAGE, POLICY_FAILED, FAILED, DIFFERS, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130

EXIT_CODES = (
    "\n\n[bold]Exit codes[/bold]\n\n"
    f"{OK} done · {INTERNAL} internal error · {USAGE} wrong usage or input · "
    f"{POLICY_FAILED} a policy failed · {FAILED} inputs of a chain failed · "
    f"{DIFFERS} a rerun has other figures · {INTERRUPTED} interrupted"
)


def examples(*commands: str) -> str:
    """Commands as the epilog of a help text, one per paragraph."""
    lines = "\n\n".join(f"[cyan]{command.replace('[', '[[')}[/cyan]" for command in commands)
    return f"[bold]Examples[/bold]\n\n{lines}"
