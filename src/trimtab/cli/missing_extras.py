"""Names the extra that a command needs where one of its packages is not installed."""

from __future__ import annotations

import re
from importlib.metadata import requires
from typing import Final

from trimtab.errors import MissingExtra

EXTRA_OF: Final = {"serve": "serve", "chain": "chains", "train": "jobs"}  # command → extra with all it needs


def missing_extra(command: str | None, error: ImportError | MissingExtra) -> MissingExtra | None:
    """The error in the words of a command: with the extra that has all that the command needs.

    None for a module that is in no extra.
    """
    packages = _packages_of_extras()
    told = EXTRA_OF.get(command or "", "")
    if isinstance(error, MissingExtra):
        found = re.search(r"trimtab\[([\w-]+)\]", error.expected or "")
        if found is None or not packages.get(found[1], set()) <= packages.get(told, set()):
            return error
        return MissingExtra(error.problem, field=error.field, value=error.value, expected=_install(told))
    module = (error.name or "").partition(".")[0]
    having = [
        extra
        for extra, names in packages.items()
        if any(f"{name}_".startswith(f"{module}_") for name in names)
    ]
    if not module or not having:
        return None
    extra = told if told in having else min(having, key=lambda each: len(packages[each]))
    return MissingExtra(f"`trimtab {command}` needs {module}", expected=_install(extra))


def _install(extra: str) -> str:
    return f"pip install 'trimtab[{extra}]'"


def _packages_of_extras() -> dict[str, set[str]]:
    """Extra → packages that it brings, as they are imported."""
    found: dict[str, set[str]] = {}
    for line in requires("trimtab") or ():
        package, extra = re.match(r"[\w.-]+", line), re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        if package is not None and extra is not None:
            found.setdefault(extra[1], set()).add(package[0].replace("-", "_").lower())
    return found
