"""What commands of cluster systems have in common: options, checks before a start, times at the end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimtab.cli.output import note, print_json
from trimtab.cli.shared_options import policy_option
from trimtab.words import counted

if TYPE_CHECKING:
    from trimtab.clusters.findings import Finding
    from trimtab.domain.policy import Decider

KEPT = 100_000  # placements whose time is told at the end
DEFAULT_POLICY = "fragmentation-gradient"
Policy = Annotated[str, policy_option("Policy: NAME, NAME+ORDER or file.py:Class.", has_default=True)]
Record = Annotated[
    Path | None,
    typer.Option("--record", help="Write what runs as a trace into this folder.", metavar="FOLDER"),
]
Seed = Annotated[int, typer.Option(help="Of policies that draw.", min=0)]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Also write what the policy would choose, with the regret.")
]
Duration = Annotated[float, typer.Option("--duration", help="Seconds; 0 = until it is stopped.", min=0)]


def decider(policy: str) -> Decider:
    """The policy of a name. Raises UsageError."""
    from trimtab.policies import catalogue

    return catalogue.find(policy)


def note_degraded(degraded: Sequence[object], *, quiet: bool) -> None:
    """Say what a policy does without."""
    for each in degraded:
        note(f"note: {each}", quiet=quiet)


def note_findings(found: Sequence[Finding], command: str, *, quiet: bool) -> None:
    """Say what a check found before a start. Raises UsageError for what is a problem for good."""
    from trimtab.clusters.findings import refuse_lacking

    for finding in found:
        note(finding.text, quiet=quiet and not finding.is_problem)
    refuse_lacking(found, command)


def show_findings(found: Sequence[Finding], *, json: bool) -> None:
    """Print what a check found; ends with the exit code of bad input where something is a problem."""
    from trimtab.errors import UsageError

    problems = sum(finding.is_problem for finding in found)
    if json:
        told: list[dict[str, Any]] = [{"problem": each.is_problem, "text": each.text} for each in found]
        print_json({"problems": problems, "found": told})
    else:
        for finding in found:
            print(("problem  " if finding.is_problem else "ok       ") + finding.text)
    if problems:
        raise typer.Exit(UsageError.exit_code)


def note_times(took_s: Sequence[float], done: str, thing: str, step: str, *, quiet: bool) -> None:
    """Say how many things were done, and how long each took."""
    if took_s:
        middle_ms, last_ms = (1000.0 * sorted(took_s)[int(len(took_s) * part)] for part in (0.5, 0.95))
        text = f"{done} {counted(len(took_s), thing)}; {step} took {middle_ms:.1f} ms, p95 {last_ms:.1f} ms"
        note(text, quiet=quiet)
