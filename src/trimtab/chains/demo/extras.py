"""Names the extra where a package is missing."""

from __future__ import annotations

from importlib.util import find_spec

from trimtab.errors import MissingExtra


def require(extra: str, what: str, *modules: str) -> None:
    """Raise MissingExtra if one of the modules is not installed."""
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise MissingExtra(f"{what} needs {', '.join(missing)}", expected=f"pip install 'trimtab[{extra}]'")
