"""What a check of a cluster system found before anything starts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trimtab.errors import UsageError


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    is_problem: bool
    text: str
    is_fatal: bool = False  # nothing that could start would work


def refuse_lacking(found: Iterable[Finding], command: str) -> None:
    """Raises UsageError where something fatal was found; `command`: that tells all of it."""
    lacking = [finding.text for finding in found if finding.is_fatal]
    if lacking:
        raise UsageError("; ".join(lacking), expected=f"`{command}` without such problems")
